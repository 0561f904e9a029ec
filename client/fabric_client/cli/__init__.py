"""The client's command line: ``fabricctl``."""

import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from fabricd.install import install_line
from fabricd.loading import no_collecting
from fabricd.stdio import flushed, open_standard_streams


def main() -> NoReturn:
    """Run it. Exit status: 0 fine, 1 a negative answer, 2 usage or input error, 3 cannot reach what was asked."""
    open_standard_streams()
    try:
        with no_collecting():
            run = _command()
    except ModuleNotFoundError as error:
        if (error.name or "fabricd").split(".")[0] in ("fabricd", "fabric_client"):
            raise
        sys.stderr.write(
            f"fabricctl: {error.name} is not installed; the command line needs it: {install_line('cli')}\n"
        )
        sys.exit(2)
    except KeyboardInterrupt:  # the imports take a moment
        sys.exit(130)
    sys.exit(flushed("fabricctl", run()))


def _command() -> Callable[[], int]:
    """Return what runs the command line: for a plain ``run`` no more than that takes, because a job waits for it."""
    if sys.argv[1:2] == ["run"]:
        from fabric_client.cli.run_options import read_plainly

        if (plain := read_plainly(sys.argv[2:])) is not None:
            from fabric_client.cli.closing import exit_status
            from fabric_client.cli.run_job import run_here

            return partial(exit_status, partial(run_here, *plain))
    from fabric_client.cli.main import run

    return run
