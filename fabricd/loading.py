"""Importing many modules fast. Standard library only."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collecting() -> Iterator[None]:
    """Do not look for garbage while modules are imported: they leave hardly any, and looking takes a tenth of the time.

    What was made meanwhile is not looked through later, either.
    """
    if not gc.isenabled():  # somebody else does so, or the user wants it so
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
