"""How much a communicator did: calls, bytes and seconds of each operation."""

import threading
from dataclasses import dataclass


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
        self._counted: dict[str, list[float]] = {}

    def add(self, name: str, nbytes: int, seconds: float) -> None:
        """Count one operation."""
        with self._lock:
            try:
                counted = self._counted[name]
            except KeyError:
                counted = self._counted[name] = [0, 0, 0.0]
            counted[0] += 1
            counted[1] += nbytes
            counted[2] += seconds

    def read(self) -> dict[str, OperationStats]:
        """Return what was counted, by the operations' names."""
        with self._lock:
            return {
                name: OperationStats(calls=int(calls), bytes=int(nbytes), seconds=seconds)
                for name, (calls, nbytes, seconds) in sorted(self._counted.items())
            }
