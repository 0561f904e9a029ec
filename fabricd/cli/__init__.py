"""The daemon's command line: ``fabricd serve | probe | check-config``."""

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
            from fabricd.cli.main import run
    except ModuleNotFoundError as error:
        if (error.name or "fabricd").split(".")[0] == "fabricd":
            raise
        sys.stderr.write(f"fabricd: {error.name} is not installed; the daemon needs it: {install_line('daemon')}\n")
        sys.exit(2)
    sys.exit(flushed("fabricd", run()))
