"""Requests, buffers, operators and errors of MPI, between this client's terms and mpi4py's."""

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fabric_client.arrays import Array
from fabric_client.engine.base import Engine
from fabric_client.engine.mpi_library import MPI, reason_of
from fabric_client.ops import ReduceOp
from fabric_client.pending import Pending
from fabricd.errors import EngineError

OPS = {
    ReduceOp.SUM: MPI.SUM,
    ReduceOp.PRODUCT: MPI.PROD,
    ReduceOp.MIN: MPI.MIN,
    ReduceOp.MAX: MPI.MAX,
    ReduceOp.AVERAGE: MPI.SUM,  # and divided afterwards
    ReduceOp.LOGICAL_AND: MPI.LAND,
    ReduceOp.LOGICAL_OR: MPI.LOR,
    ReduceOp.LOGICAL_XOR: MPI.LXOR,
    ReduceOp.BITWISE_AND: MPI.BAND,
    ReduceOp.BITWISE_OR: MPI.BOR,
    ReduceOp.BITWISE_XOR: MPI.BXOR,
}
#: numpy's type characters name C types, as MPI's datatypes do. 16-bit floats have none: see ``rounding``.
TYPES = {
    "?": MPI.UINT8_T,  # false and true are 0 and 1; MPI's own bool has neither minimum nor maximum
    "b": MPI.SIGNED_CHAR,
    "B": MPI.UNSIGNED_CHAR,
    "h": MPI.SHORT,
    "H": MPI.UNSIGNED_SHORT,
    "i": MPI.INT,
    "I": MPI.UNSIGNED,
    "l": MPI.LONG,
    "L": MPI.UNSIGNED_LONG,
    # NumPy takes "q" and "l" for equal where they are of one size, and MPI does not.
    "q": MPI.LONG if np.dtype("q") == np.dtype("l") else MPI.LONG_LONG,
    "Q": MPI.UNSIGNED_LONG if np.dtype("Q") == np.dtype("L") else MPI.UNSIGNED_LONG_LONG,
    "f": MPI.FLOAT,
    "d": MPI.DOUBLE,
    "g": MPI.LONG_DOUBLE,
    "F": MPI.C_FLOAT_COMPLEX,
    "D": MPI.C_DOUBLE_COMPLEX,
    "G": MPI.C_LONG_DOUBLE_COMPLEX,
}
#: Error classes that a broken connection can end in.
_FROM_OUTSIDE = frozenset({MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN, MPI.ERR_PROC_ABORTED})
#: How long one look at a thread takes at most; waiting lets that thread have the interpreter.
_LOOK_SECONDS = 0.001
#: What only moves on when it is asked to, of any communicator: a wait for anything must drive it, as MPI drives its
#: own. A peer may not come to what this rank waits for before that has ended.
UNDER_WAY: list[Callable[[], None]] = []


class MpiPending:
    """A request of MPI, and what is left to do when it has ended.

    Args:
        request: mpi4py's. Those of reductions and of Iallgatherv do not hold their buffers (seen with mpi4py 4.1.2).
        after: called when it has ended.
        status: filled when it has ended.
        keep: buffers that nobody else holds.
    """

    __slots__ = ("_after", "_keep", "_request", "_status")

    def __init__(
        self, request: Any, after: Callable[[], None] | None = None, status: Any = None, keep: object = None
    ) -> None:
        self._request = request
        self._after = after
        self._status = status
        self._keep = keep

    def test(self) -> bool:
        """Drive MPI on; see :class:`fabric_client.pending.Pending`."""
        try:
            # What Ctrl-C kept from being heard of has ended, and another Test would make its status an empty one.
            ended = (self._status is not None and not self._request) or self._request.Test(self._status)
        except MPI.Exception as error:
            raise map_error(error) from error
        if not ended:
            if UNDER_WAY:
                drive_on()
            return False
        if self._after is not None:
            self._after()
            self._after = None
        return True


class Both:
    """Two operations as one."""

    def __init__(self, *parts: Pending) -> None:
        self._waiting = list(parts)

    def test(self) -> bool:
        """Drive both on; true when none is left."""
        self._waiting = [part for part in self._waiting if not part.test()]
        return not self._waiting


class MakingEngine:
    """An engine in the making. MPI makes communicators in blocking calls only: a thread waits for this one.

    Args:
        make: makes it; None where this rank is in none.
    """

    def __init__(self, make: Callable[[], Engine | None]) -> None:
        self._make = make
        self._made: Engine | None = None
        self._error: Exception | None = None
        self._ended = threading.Event()
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:  # the user's code started MPI so
            self._run()
        else:
            threading.Thread(target=self._run, name="fabricd-split", daemon=True).start()

    def _run(self) -> None:
        try:
            self._made = self._make()
        except MPI.Exception as error:
            self._error = error
        finally:
            self._ended.set()

    def test(self) -> bool:
        """See :class:`fabric_client.pending.Pending`."""
        if not self._ended.wait(_LOOK_SECONDS):
            drive_on()
            return False
        if self._error is not None:
            raise map_error(self._error) from self._error
        return True

    def engine(self) -> Engine | None:
        """See :class:`fabric_client.engine.base.PendingEngine`."""
        return self._made


def drive_on() -> None:
    """Drive on what is under way."""
    for advance in tuple(UNDER_WAY):
        advance()


def map_error(error: Any) -> EngineError:
    """Return what an MPI exception means. The only place where MPI's errors are translated.

    ``details["peer_may_be_lost"]`` tells whether a lost rank could be behind it.
    """
    kind = error.Get_error_class()
    details = {"mpi_class": kind, "peer_may_be_lost": kind in _FROM_OUTSIDE}
    if kind == MPI.ERR_TRUNCATE:
        return EngineError("a message is longer than the array that receives it", details=details)
    return EngineError(f"MPI: {reason_of(error.Get_error_string())}", details=details)


def typed(array: Array, count: int | None = None) -> list[Any]:
    """Return a buffer for data that is computed with; ``count`` is of one block where MPI counts blocks."""
    return [array, array.size if count is None else count, TYPES[array.dtype.char]]


def in_bytes(array: Array, count: int | None = None) -> list[Any]:
    """Return a buffer for data that is only moved: any dtype, as bytes."""
    return [array, array.nbytes if count is None else count, MPI.BYTE]


def blocks_in_bytes(array: Array, counts: Sequence[int]) -> list[Any]:
    """Return a buffer of blocks of so many elements, one behind the other."""
    sizes = [count * array.dtype.itemsize for count in counts]
    return [array, (sizes, [0, *accumulate(sizes)][:-1]), MPI.BYTE]


def block_of(array: Array, counts: Sequence[int], rank: int) -> Array:
    """Return one of those blocks, flat."""
    first = sum(counts[:rank])
    return array.reshape(-1)[first : first + counts[rank]]
