"""The client's command line: ``fabricctl``."""

import sys
from typing import NoReturn

from fabricd.install import install_line
from fabricd.loading import no_collecting
from fabricd.stdio import flushed, open_standard_streams


def main() -> NoReturn:
    """Run it. Exit status: 0 fine, 1 a negative answer, 2 usage or input error, 3 cannot reach what was asked."""
    open_standard_streams()
    try:
        with no_collecting():
            from fabric_client.cli.main import run
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
