"""The sum of two ranks: each sends its array to the other, receives the other's, and adds.

MPI has one algorithm for any number of ranks. From a few KiB on it halves the arrays, which is a second step that two
ranks gain nothing from, and MPICH 5 adds at less than half of NumPy's speed. ``docs/mpi.md`` has the figures.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from fabric_client.arrays import Array
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import UNDER_WAY, drive_on, map_error
from fabric_client.engine.pair_link import SAME_ARRAYS
from fabricd.errors import EngineError

#: Below, telling NumPy to be silent about overflows costs more than adding slowly.
_ADDED_BY_MPI_BYTES = 8 << 10
#: Above, what arrives goes into memory that was used just before, and not into the result, which is in no cache yet.
_RECEIVED_IN_PLACE_BYTES = 32 << 10
_BYTE, _Status = MPI.BYTE, MPI.Status
_reduce = MPI.SUM.Reduce_local


class PairSum:
    """One sum under way; see :class:`fabric_client.pending.Pending`.

    Args:
        comm: of two ranks, or more.
        other: the other rank.
        piece: of a larger array. Pieces have a tag of their own: they are started later than what the program started
            after them. Of one tag, both ranks start the same ones in the same order.
        source: this rank's part; contiguous.
        target: receives the sum: ``source`` itself, or memory apart from it, of the same shape and dtype.
        datatype: MPI's, of the elements.
        after: what is left to do then.
    """

    __slots__ = ("_after", "_piece", "_receive", "_send", "_sent", "_small", "_status", "_sum", "_taken", "_target")

    def __init__(
        self,
        comm: Any,
        other: int,
        piece: bool,
        source: Array,
        target: Array,
        datatype: Any,
        after: Callable[[], None] | None,
    ) -> None:
        small = source.nbytes <= _ADDED_BY_MPI_BYTES
        apart = source is not target and source.nbytes <= _RECEIVED_IN_PLACE_BYTES
        received = target if apart else np.empty(source.shape, source.dtype)
        sent, taken = (source, source.size, datatype), (received, source.size, datatype)
        try:
            # A large message finds its place known when it comes. A small one is on its way before anything else.
            if not small:
                self._receive = comm.Irecv(taken, other, piece)
            self._send = comm.Isend(sent, other, piece)
            if small:
                self._receive = comm.Irecv(taken, other, piece)
        except MPI.Exception as error:
            raise map_error(error) from error
        self._sent, self._taken, self._target, self._small, self._after = sent, taken, target, small, after
        self._piece, self._status = piece, _Status()
        self._sum: Iterator[object] | None = None

    def test(self) -> bool:
        """Drive both messages on; add when both have ended, for in place the sum overwrites what is sent.

        Raises:
            EngineError: MPI failed, or the other rank's array has another size.
        """
        receive = self._receive
        try:
            # What has ended is null, and stays so; another test would make its status an empty one.
            ended = (not receive or receive.Test(self._status)) and self._send.Test()
        except MPI.Exception as error:
            raise self._told(error) from error
        if not ended:
            if UNDER_WAY:
                drive_on()
            return False
        if self._sum is None:
            came = self._status.Get_count(_BYTE)
            if came != self._sent[0].nbytes:  # MPI takes a shorter message for a good one
                raise self._differs(f"{came} bytes")
            self._sum = self._adding()
        if self._small:
            next(self._sum, None)
        else:
            with np.errstate(over="ignore", invalid="ignore"):  # inf and nan, in silence, as MPI has it
                next(self._sum, None)
        if self._after is not None:
            self._after()
        return True

    def _adding(self) -> Iterator[object]:
        """Return what adds when it is first asked for: ``rounding.once``, without the time of a call around it."""
        if not self._small:
            return map(np.add, (self._sent[0],), (self._taken[0],), (self._target,))
        if self._taken[0] is self._target:
            return map(_reduce, (self._sent,), (self._taken,))
        return map(_reduce, (self._taken,), (self._sent,))  # in place

    def _told(self, error: Any) -> EngineError:
        if error.Get_error_class() == MPI.ERR_TRUNCATE:
            return self._differs(f"more than {self._sent[0].nbytes}")
        return map_error(error)

    def _differs(self, its: str) -> EngineError:
        what = "a piece of all_reduce" if self._piece else "all_reduce"
        told = f"{what} of {self._sent[0].nbytes} bytes: the other rank's is of {its}"
        return EngineError(told, hint=SAME_ARRAYS)
