"""Making much that stays, fast: modules, large maps. Standard library only."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collecting() -> Iterator[None]:
    """Do not look for garbage while much is made that stays.

    Modules leave hardly any, and looking takes a tenth of their time; of a map of ten thousand nodes, a million
    objects, it takes half. What was made meanwhile is not looked through later, either.
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
