"""The commands of ``fabricctl``, and how errors become exit statuses."""

import importlib.metadata
import sys
from typing import Annotated

import typer

from fabric_client.cli import (
    bench_command,
    calibrate,
    capture_cluster,
    env,
    export,
    meet_command,
    networks,
    nodes,
    order,
    paths,
    plan,
    plan_diff,
    run_command,
    simulate,
    topo,
)
from fabric_client.cli.show import clean
from fabric_client.cli.source import close_daemons
from fabricd.errors import FabricError

app = typer.Typer(
    name="fabricctl",
    help="Asks the map, explains paths, and runs ranks on the best one.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
#: Each module adds its commands.
for _module in (
    topo,
    paths,
    nodes,
    networks,
    order,
    env,
    export,
    plan,
    plan_diff,
    calibrate,
    meet_command,
    run_command,
    bench_command,
    capture_cluster,
    simulate,
):
    _module.register(app)


def run() -> int:
    """Run the command line and return its exit status; errors go to standard error, without a traceback."""
    try:
        app()
    except FabricError as error:
        # Messages name what machines and files call their parts.
        sys.stderr.write(f"fabricctl: {clean(error, keep=chr(10))}\n")
        return error.exit_status
    except OSError as error:  # of standard output or temporary files: a full disk, a terminal that went away
        sys.stderr.write(f"fabricctl: {clean(error)}\n")
        return 1
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    finally:
        close_daemons()
    return 0


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fabricctl {importlib.metadata.version('fabricd')}")
        raise typer.Exit
