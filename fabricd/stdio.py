"""Standard input, output and error: a launcher may have closed them. Standard library only."""

import os
import sys


def open_standard_streams() -> None:
    """Open what the launcher closed, or a socket would get its number, and all that is printed with it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode))
