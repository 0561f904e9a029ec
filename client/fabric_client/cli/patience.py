"""On a terminal, a command that is long at work says so once, lest it looks stuck."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_SECONDS = 5.0
#: What says by itself how it goes, or is to be silent until something happens.
_TOLD_OTHERWISE = frozenset({"run", "bench", "meet", "watch"})


@contextmanager
def told_when_long(context: Any) -> Iterator[None]:
    """Tell on standard error after some seconds that a command is at work, where that is a terminal.

    Args:
        context: of the program, which knows the command once it runs.
    """

    def tell() -> None:
        name = context.invoked_subcommand  # None while its modules are loaded
        if name is not None and name not in _TOLD_OTHERWISE:
            sys.stderr.write(f"fabricctl {name}: at work since {_SECONDS:g} s (Ctrl-C ends it)\n")

    timer = threading.Timer(_SECONDS, tell)
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()
