"""The sum of two ranks: each sends its array to the other, receives the other's, and adds.

MPI has one algorithm for any number of ranks. From a few KiB on it halves the arrays, which is a second step that two
ranks gain nothing from, and MPICH 5 adds at less than half of NumPy's speed. ``docs/mpi.md`` has the figures.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from fabric_client.arrays import Array
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import UNDER_WAY, drive_on, map_error
from fabric_client.engine.rounding import once

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
        source: this rank's part; contiguous.
        target: receives the sum: ``source`` itself, or memory apart from it, of the same shape and dtype.
        datatype: MPI's, of the elements.
        after: what is left to do then.
    """

    __slots__ = ("_after", "_receive", "_send", "_sent", "_small", "_sum", "_taken", "_target")

    def __init__(
        self,
        comm: Any,
        other: int,
        tag: int,
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
                self._receive = comm.Irecv(taken, other, tag)
            self._send = comm.Isend(sent, other, tag)
            if small:
                self._receive = comm.Irecv(taken, other, tag)
        except MPI.Exception as error:
            raise map_error(error) from error
        self._sent, self._taken, self._target, self._small, self._after = sent, taken, target, small, after
        self._sum: Callable[[], None] | None = None

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
        if self._sum is None:
            self._sum = self._adding()
        with np.errstate(over="ignore", invalid="ignore"):  # inf and nan, in silence, as MPI has it
            self._sum()
        if self._after is not None:
            self._after()
        return True

    def _adding(self) -> Callable[[], None]:
        if not self._small:
            return once(np.add, self._sent[0], self._taken[0], self._target)
        if self._taken[0] is self._target:
            return once(MPI.SUM.Reduce_local, self._sent, self._taken)
        return once(MPI.SUM.Reduce_local, self._taken, self._sent)  # in place
