"""The daemon's command line: ``fabricd serve | probe | check-config``."""

import os
import sys
from typing import NoReturn

INSTALL = "python3 -m pip install 'fabricd[daemon]'"


def main() -> NoReturn:
    """Run it. Exit status: 0 fine, 1 a negative answer, 2 usage or input error, 3 cannot reach what was asked."""
    _open_standard_streams()
    try:
        from fabricd.cli.main import run
    except ModuleNotFoundError as error:
        if (error.name or "fabricd").split(".")[0] == "fabricd":
            raise
        sys.stderr.write(f"fabricd: {error.name} is not installed; the daemon needs it: {INSTALL}\n")
        sys.exit(2)
    sys.exit(run())


def _open_standard_streams() -> None:
    """Open what the launcher closed, or a socket would get its number, and all that is printed with it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode))
