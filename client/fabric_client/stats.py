"""How much a communicator did: calls, bytes and seconds of each operation."""

import threading
from collections import deque
from dataclasses import dataclass

_MOST_NEW = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationStats:
    """What one kind of operation came to on this rank. Only operations that ended well count."""

    calls: int
    bytes: int  #: of the arrays that this rank handed in, or received where it handed in none
    #: From the start of each to its end; of one with ``async_op`` to when this rank learnt of its end.
    seconds: float


class Tally:
    """Counts operations. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._new: deque[tuple[str, int, float]] = deque()
        self._counted: dict[str, list[float]] = {}

    def add(self, name: str, nbytes: int, seconds: float) -> None:
        """Count one operation."""
        new = self._new
        new.append((name, nbytes, seconds))  # counted later, many at a time: that takes less of each
        if len(new) >= _MOST_NEW:
            with self._lock:
                self._count()

    def _count(self) -> None:
        new = self._new
        while new:
            name, nbytes, seconds = new.popleft()
            counted = self._counted.setdefault(name, [0, 0, 0.0])
            counted[0] += 1
            counted[1] += nbytes
            counted[2] += seconds

    def read(self) -> dict[str, OperationStats]:
        """Return what was counted, by the operations' names."""
        with self._lock:
            self._count()
            return {
                name: OperationStats(calls=int(calls), bytes=int(nbytes), seconds=seconds)
                for name, (calls, nbytes, seconds) in sorted(self._counted.items())
            }
