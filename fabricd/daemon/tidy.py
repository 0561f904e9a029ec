"""Memory: what stays is left alone, and what a crowd took is given back when it has gone."""

import ctypes
import gc
import logging
from contextlib import suppress

_log = logging.getLogger("fabricd.server")

#: So many connections fewer than there were, and half of them, are a crowd that has gone: some 8 MB.
_CROWD = 256
#: Looks, one a second, after which all that a crowd has left behind is free: timers of long polls are the last.
_LOOKS = 20
#: Looks between two rounds while memory is near its end: with a map of 10,000 nodes each takes a while.
_REST = 30
#: malloc(3) gives blocks of this size back to the machine at once, such as bodies of requests; left to itself it stops
#: doing so after the first. Source: mallopt(3), M_MMAP_THRESHOLD.
_M_MMAP_THRESHOLD, _LARGE_BYTES = -3, 1 << 18


def settle() -> None:
    """Have the garbage collector leave alone what is there by now, and malloc give large blocks back.

    Its rounds then hold the event loop up for less, and come often enough that what connections leave behind is free
    before the next ones come.
    """
    gc.collect()
    gc.freeze()
    with suppress(AttributeError):  # glibc's; other C libraries have none
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


class Tidier:
    """Gives memory back to the machine after a crowd, which the allocators would keep for the next one.

    They do not fill the holes between what stays and what has gone well: each crowd would take a little more. Where
    memory is near its end it is given back at once: what is kept for later counts as used.
    """

    def __init__(self) -> None:
        self._most = 0
        self._looks = 0
        self._rest = 0

    def look(self, connections: int, *, short: bool = False) -> None:
        """Give memory back when there have been far fewer connections than before for a while. Call it every second.

        Args:
            connections: open now.
            short: memory is near its end.
        """
        self._most = max(self._most, connections)
        gone = self._most - connections >= _CROWD and connections <= self._most // 2
        self._looks = self._looks + 1 if gone else 0
        self._rest = max(0, self._rest - 1)
        if self._looks < _LOOKS and (self._rest or not short):
            return
        _log.debug("giving memory back", extra={"facts": {"connections": connections, "before": self._most}})
        self._most, self._looks, self._rest = connections, 0, _REST
        gc.collect()
        with suppress(AttributeError):  # as above
            ctypes.CDLL(None).malloc_trim(0)
