"""The commands of ``fabricctl``, and how errors become exit statuses.

A command's module is loaded when the command is named, and all of them for the list of ``--help``: what starts ranks
shall not wait for what plans.
"""

import importlib
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fabric_client.cli.closing import exit_status
from fabric_client.cli.manual import PAGES, WHOLE, epilog
from fabric_client.cli.patience import told_when_long
from fabricd import __version__
from fabricd.errors import UnavailableError
from fabricd.install import install_line
from fabricd.loading import no_collecting

#: Each command, and the module of ``fabric_client.cli`` that adds it.
COMMANDS = {
    "topo": "topo",
    "paths": "paths",
    "nodes": "nodes",
    "networks": "networks",
    "doctor": "doctor",
    "read-log": "read_log",
    "measure": "measure",
    "watch": "watch",
    "order": "order",
    "env": "env",
    "export": "export",
    "plan": "plan",
    "plan-diff": "plan_diff",
    "calibrate": "calibrate",
    "meet": "meet_command",
    "run": "run_command",
    "bench": "bench_command",
    "capture-cluster": "capture_cluster",
    "simulate": "simulate",
}


class _Commands(TyperGroup):
    """Loads commands when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self._load(*COMMANDS)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None for none, which the caller compares with all that there are."""
        self._load(*([cmd_name] if cmd_name in COMMANDS else COMMANDS))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named.

        Raises:
            UsageError: its words are wrong; with what to do.
        """
        from fabric_client.cli.usage import UsageError, with_advice

        try:
            with told_when_long(ctx):
                return super().invoke(ctx)
        except UsageError as error:
            raise with_advice(error) from None

    def _load(self, *names: str) -> None:
        for name in names:
            if name not in self.commands:
                alone = typer.Typer(add_completion=False, rich_markup_mode=None)
                _module_of(name).register(alone)
                self.commands[name] = typer.main.get_command(alone)
                self.commands[name].epilog = epilog(name)
                self.commands[name].short_help = PAGES[name].summary


def _module_of(command: str) -> Any:
    try:
        with no_collecting():
            return importlib.import_module(f"fabric_client.cli.{COMMANDS[command]}")
    except ModuleNotFoundError as error:
        if (error.name or "fabricd").split(".")[0] in ("fabricd", "fabric_client"):
            raise
        raise UnavailableError(
            f"{error.name} is not installed; the command line needs it", hint=install_line("cli")
        ) from error


app = typer.Typer(
    cls=_Commands,
    name="fabricctl",
    help="Asks the map, explains paths, and runs ranks on the best one.",
    epilog=WHOLE,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def run() -> int:
    """Run the command line and return its exit status; errors go to standard error, without a traceback."""
    if "_FABRICCTL_COMPLETE" in os.environ:  # a shell asks what could follow, or for the script that makes it ask
        from typer.completion import completion_init  # type: ignore[attr-defined]  # its own, from a private module

        completion_init()
    return exit_status(app)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.", is_eager=True)] = False,
) -> None:
    if version:
        typer.echo(f"fabricctl {__version__}")
        raise typer.Exit
