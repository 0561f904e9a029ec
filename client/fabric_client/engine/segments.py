"""Large reductions in pieces, one after another: faster than in one go, where a piece stays in the processor's cache.

MPI takes a temporary buffer of an operation's size for each reduction. Whatever is as large as that buffer leaves the
caches, and the C library maps buffers beyond 32 MiB anew each time (mallopt(3), M_MMAP_THRESHOLD), so that the kernel
clears all of its pages. ``docs/mpi.md`` has the figures.
"""

import math
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from fabric_client.arrays import Array
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import UNDER_WAY, MpiPending, map_error, typed
from fabric_client.engine.pair_link import SAME_ARRAYS
from fabric_client.engine.piece_size import FEWEST_SWITCHES_BYTES, PieceSize
from fabric_client.pending import Pending
from fabricd.errors import EngineError, FabricError
from fabricd.units import format_size

#: From more pieces on ranks ask one another first whether they are crowded.
_ASKING_PIECES = 4
#: Each wait for a peer may then take a time slice, and small pieces wait often. Alone, a rank is hardly ever displaced.
_CROWDED_SWITCHES_PER_SECOND = 50
_LOOK_SECONDS = 0.1
#: Given now, when the piece before was started, and a name: why no more may be.
BeforeStart: TypeAlias = "Callable[[float, float, str], FabricError | None]"


def agree(comm: Any, own: PieceSize, complete: Callable[[Pending], None]) -> PieceSize:
    """Return the size of piece for all ranks: the least of theirs, for they must cut alike. Collective."""
    least = np.array([own.nbytes], np.int64)
    complete(MpiPending(comm.Iallreduce(MPI.IN_PLACE, typed(least), MPI.MIN)))
    nbytes = int(least[0])
    return own if nbytes == own.nbytes else PieceSize(nbytes, f"the least of all ranks; here {own.because}")


class Crowding:
    """Tells whether this process has to share its CPUs: how often it was displaced, of late.

    Args:
        switches: how often that was so far. Source: getrusage(2), ru_nivcsw.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        switches: Callable[[], int] = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._switches = switches
        self._clock = clock
        self._looked = clock(), switches()
        self._crowded = False

    def look(self) -> bool:
        """Return whether it is so."""
        (then, before), now = self._looked, self._clock()
        if now - then >= _LOOK_SECONDS:
            switches = self._switches()
            self._crowded = switches - before > _CROWDED_SWITCHES_PER_SECOND * (now - then)
            self._looked = now, switches
        return self._crowded


class Segments:
    """The operations in pieces of one engine, one after another in the order of their starts.

    The ranks start collectives in one order and test them in any, so pieces cannot go between the other operations:
    they have a communicator of their own.

    Args:
        comm: the same ranks as the engine's; nothing else runs on it.
        size: up to how much is done in one go.
        before_start: asked before each piece; its peers may have ended since the one before.
    """

    def __init__(self, comm: Any, size: PieceSize, before_start: BeforeStart = lambda *_: None) -> None:
        self.comm = comm
        self.size = size
        self.before_start = before_start
        self._started = time.monotonic()  #: the latest piece
        self._waiting: deque[_Segmented] = deque()
        #: Works are tested from any thread. Who finds it taken, by another thread or below itself, has nothing to do.
        self._lock = threading.Lock()
        self._error: FabricError | None = None
        self._given_up = False
        self._crowding = Crowding()

    def run(self, count: int, nbytes: int, start: Callable[[slice], Pending], *, ask: bool = True) -> Pending:
        """Start an operation on ``count`` elements, which are ``nbytes`` together.

        Args:
            count: elements.
            nbytes: of all of them.
            start: starts it for some elements, on this ``comm``.
            ask: let pieces be larger while ranks are crowded.
        """
        operation = _Segmented(self, count, nbytes, start, ask)
        with self._lock:
            self._waiting.append(operation)
            if self.advance not in UNDER_WAY:
                UNDER_WAY.append(self.advance)
        self.advance()
        return operation

    def advance(self) -> None:
        """Drive on what is first, and then the next. An error ends all, and each of them tells it."""
        if self._lock.locked():
            return
        with self._lock:
            try:
                while self._waiting and not self._given_up and self._waiting[0].advance():
                    self._waiting.popleft()
            except FabricError as error:
                self._error = error
            if self._given_up or self._error is not None:
                self._waiting.clear()
            if not self._waiting:
                self._rest()

    def ask(self, nbytes: int) -> tuple[Array, Pending]:
        """Ask all ranks whether one is crowded, and for the most and the least (negative) bytes that one has.

        The answer is in the first, when the second has ended.
        """
        answer = np.array([self._crowding.look(), nbytes, -nbytes], np.int64)
        try:
            return answer, MpiPending(self.comm.Iallreduce(MPI.IN_PLACE, typed(answer), MPI.MAX))
        except MPI.Exception as error:
            raise map_error(error) from error

    def look_up(self) -> bool:
        """Tell whether the next piece is to be started, or raise why it must not be."""
        if self._given_up:
            return False
        now = time.monotonic()
        since, self._started = self._started, now
        error = self.before_start(now, since, "an operation in pieces")
        if error is not None:
            raise error
        return True

    def describe(self) -> str:
        """Return how large operations are cut, and why, for ``explain()``."""
        told = f"in pieces of so much ({self.size.because})"
        if self.size.nbytes >= FEWEST_SWITCHES_BYTES:
            return told
        return f"{told}, of {format_size(FEWEST_SWITCHES_BYTES)} while other processes take the ranks' CPUs"

    def check(self) -> None:
        """Raise what ended them."""
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """Start no more pieces. Waits for nobody: a signal's handler may call it in the middle of :meth:`advance`."""
        self._given_up = True
        self.advance()

    def _rest(self) -> None:
        if self.advance in UNDER_WAY:
            UNDER_WAY.remove(self.advance)


class _Segmented:
    """One operation in pieces; before them the ranks agree on how many, where that is not settled."""

    __slots__ = (
        "_answer", "_ask", "_count", "_current", "_ended", "_nbytes", "_next", "_queue", "_start", "_starting",
        "_step",
    )  # fmt: skip

    def __init__(self, queue: Segments, count: int, nbytes: int, start: Callable[[slice], Pending], ask: bool) -> None:
        self._queue = queue
        self._count = count
        self._nbytes = nbytes
        self._start = start
        # Few pieces are not worth it: asking is one more message's way.
        self._ask = ask and queue.size.nbytes < FEWEST_SWITCHES_BYTES and nbytes > _ASKING_PIECES * queue.size.nbytes
        self._starting = False
        self._step = 0  #: elements of a piece
        self._next = 0
        self._answer: Array | None = None
        self._current: Pending | None = None
        self._ended = False

    def test(self) -> bool:
        """See :class:`fabric_client.pending.Pending`."""
        self._queue.advance()
        if not self._ended:
            self._queue.check()
        return self._ended

    def advance(self) -> bool:
        """Start the next piece as soon as one has ended; tell whether all have."""
        if self._current is None and self._ask:
            self._answer, self._current = self._queue.ask(self._nbytes)
        while self._current is None or self._current.test():
            if self._next >= self._count:
                self._ended = True
                return True
            if not self._step:
                self._step = self._choose_step()
            if self._starting:  # Ctrl-C came in between, and only MPI knows whether it has the piece
                raise EngineError("an operation in pieces was interrupted while one of them was started")
            if not self._queue.look_up():
                return False
            self._starting = True
            part = slice(self._next, self._next + self._step)
            self._current, self._next = self._start(part), part.stop
            self._starting = False
        return False

    def _choose_step(self) -> int:
        crowded, most, least = (0, 0, 0) if self._answer is None else map(int, self._answer)
        if most != -least:
            raise EngineError(
                f"a large all_reduce or reduce: the ranks' arrays are of {-least} to {most} bytes", hint=SAME_ARRAYS
            )
        piece = FEWEST_SWITCHES_BYTES if crowded else self._queue.size.nbytes
        return math.ceil(self._count / math.ceil(self._nbytes / piece))
