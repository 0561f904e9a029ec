"""Standard input, output and error: a launcher may have closed them. Standard library only."""

import os
import sys
from contextlib import suppress


def open_standard_streams() -> None:
    """Open what the launcher closed, or a socket would get its number, and all that is printed with it."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode))


def flushed(program: str, status: int) -> int:
    """Write out what standard output still buffers; return the exit status, which is 1 where that is impossible."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if status == 0 and not isinstance(error, BrokenPipeError):  # else it was told already, or nobody listens
            sys.stderr.write(f"{program}: {error}\n")
        with suppress(OSError):  # the interpreter flushes once more at its end, and must not fail, too
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return status or 1
    return status
