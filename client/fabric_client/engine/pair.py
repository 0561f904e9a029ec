"""The sum of two ranks: each sends its array to the other, receives the other's, and adds.

MPI has one algorithm for any number of ranks. From a few KiB on it halves the arrays, which is a second step that two
ranks gain nothing from, and MPICH 5 adds at less than half of NumPy's speed. ``docs/mpi.md`` has the figures.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fabric_client.arrays import Array
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import TYPES, UNDER_WAY, drive_on, map_error

#: Below, telling NumPy to be silent about overflows costs more than adding slowly.
_ADDED_BY_MPI_BYTES = 8 << 10
#: Above, what arrives goes into memory that was used just before, and not into the result, which is in no cache yet.
_RECEIVED_IN_PLACE_BYTES = 32 << 10


class PairSum:
    """One sum under way; see :class:`fabric_client.engine.base.Pending`.

    Args:
        comm: of two ranks, or more.
        other: the other rank.
        tag: of those of one tag, both ranks start the same ones in the same order.
        source: this rank's part; contiguous, of a dtype that MPI has.
        target: receives the sum: ``source`` itself, or memory apart from it, of the same shape and dtype.
        after: what is left to do then.
    """

    __slots__ = ("_after", "_receive", "_received", "_send", "_source", "_target")

    def __init__(
        self, comm: Any, other: int, tag: int, source: Array, target: Array, after: Callable[[], None] | None
    ) -> None:
        count, datatype = source.size, TYPES[source.dtype.char]
        apart = source is not target and source.nbytes <= _RECEIVED_IN_PLACE_BYTES
        received = target if apart else np.empty_like(source)
        self._source, self._target, self._received, self._after = source, target, received, after
        try:
            # The receive first: its place is known when the message comes.
            self._receive = comm.Irecv((received, count, datatype), other, tag)
            self._send = comm.Isend((source, count, datatype), other, tag)
        except MPI.Exception as error:
            raise map_error(error) from error

    def test(self) -> bool:
        """Drive both messages on; add when both have ended, for in place the sum overwrites what is sent."""
        try:
            ended = self._receive.Test() and self._send.Test()  # what has ended is null, and stays so
        except MPI.Exception as error:
            raise map_error(error) from error
        if not ended:
            if UNDER_WAY:
                drive_on()
            return False
        self._add()
        if self._after is not None:
            self._after()
        return True

    def _add(self) -> None:
        source, received, target = self._source, self._received, self._target
        if source.nbytes > _ADDED_BY_MPI_BYTES:
            _add(source, received, target)
            return
        datatype = TYPES[source.dtype.char]
        if received is target:
            MPI.SUM.Reduce_local((source, source.size, datatype), (target, target.size, datatype))
        else:  # in place
            MPI.SUM.Reduce_local((received, received.size, datatype), (target, target.size, datatype))


@np.errstate(over="ignore", invalid="ignore")  # inf and nan, in silence, as MPI has it
def _add(one: Array, other: Array, out: Array) -> None:
    np.add(one, other, out=out)
