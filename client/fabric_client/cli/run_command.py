"""``fabricctl run``: ranks on this host, through a group."""

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fabric_client.cli.launcher import Job, end_on_signals, run_job
from fabric_client.cli.own_daemon import daemon_for_job
from fabricd.errors import InputError

RanksOption = Annotated[int, typer.Option("-n", "--ranks", min=1, max=4096, help="How many ranks.")]
GroupOption = Annotated[str | None, typer.Option("--group", help="The group's name; by default a random one.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        name="run", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}, no_args_is_help=True
    )(run)


def run(
    context: typer.Context,
    ranks: RanksOption,
    group: GroupOption = None,
    timeout: Annotated[float | None, typer.Option(min=0.1, help="End the job after so many seconds.")] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that the other ranks have to end when one has failed.")
    ] = 10.0,
    prefix: Annotated[bool, typer.Option("--prefix", help="Put [rank] before every line of output.")] = False,
) -> None:
    """Run a command as N ranks on this host.

    For example: fabricctl run -n 4 -- python train.py

    Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as under torchrun, and
    create_communicator() needs no arguments. Signals are passed on. The exit status is that of the first rank that
    failed. Without a running daemon one is started for the job's own time.
    """
    command = context.args
    if not command:
        raise InputError("no command to run", hint="fabricctl run -n 4 -- python train.py")
    with job_environment(group) as environ:
        job = Job(command=command, ranks=ranks, environ=environ, prefix=prefix, timeout=timeout, grace=grace)
        status = run_job(job)
    raise typer.Exit(status)


@contextlib.contextmanager
def job_environment(group: str | None) -> Iterator[dict[str, str]]:
    """Yield an environment in which ranks find their daemon, their group and its secret.

    The secret is new for each job and lies in a file that only this user can read.
    """
    end_on_signals()
    with daemon_for_job() as url, tempfile.TemporaryDirectory(prefix="fabricctl-") as name:
        path = Path(name) / "secret"
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32) + "\n", encoding="ascii")
        environ = {key: value for key, value in os.environ.items() if key != "FABRICD_GROUP_SECRET"}
        yield {
            **environ,
            "FABRICD_URL": url,
            "FABRICD_GROUP": group or f"run-{secrets.token_hex(8)}",
            "FABRICD_GROUP_SECRET_FILE": str(path),
            "FABRICD_INCARNATION": "0",
        }
