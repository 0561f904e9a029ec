"""The MPI engine: MPICH over UCX, for arrays in host memory. Translates a plan, and no more."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fabric_client import arrays
from fabric_client.arrays import Array
from fabric_client.engine.base import ArrayDoor
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_moves import MpiMoves
from fabric_client.engine.mpi_requests import OPS, TYPES, MakingEngine, MpiPending, map_error, typed
from fabric_client.engine.pair import PairSum
from fabric_client.engine.pair_link import MOST_BYTES, PairLink
from fabric_client.engine.rounding import divided, narrowed, reduced_in_float32
from fabric_client.engine.segments import Segments
from fabric_client.ops import ReduceOp
from fabric_client.pending import Pending
from fabricd.units import format_size

# A module's name is looked up faster than an enum's member.
_SUM, _AVERAGE = ReduceOp.SUM, ReduceOp.AVERAGE
_PAIR = "all_reduce of sums: each of the two ranks adds what the other sends, in small pieces whatever else runs"


class MpiEngine(MpiMoves):
    """MPI's collectives over one communicator; see :class:`fabric_client.engine.base.Engine`.

    float16 and bfloat16 are reduced in float32 and rounded once.

    Args:
        comm: what to run on; the engine's own.
        control: the same ranks; for what must not be mistaken for an operation that another rank is in.
        segments: of the same ranks; takes what is too large to be reduced in one go.
        link: where two ranks have a connection of their own.
        end: ends it, given seconds; tells whether it ended in time.
        lines: for ``describe``.
    """

    name = "mpi"
    arrays: ArrayDoor = arrays
    direct_memory: bool | None = None

    def __init__(
        self,
        comm: Any,
        control: Any,
        segments: Segments,
        link: PairLink | None = None,
        *,
        end: Callable[[float], bool] = lambda timeout: True,
        lines: tuple[str, ...] = (),
    ) -> None:
        super().__init__(comm)
        self._control = control
        self._segments = segments
        self._in_one_go = segments.size.nbytes
        self._link = link
        self._other = 1 - self.rank if self.size == 2 else None
        self._end = end
        self._lines = lines

    def all_reduce(self, array: Array, out: Array, op: ReduceOp) -> Pending:
        """See the protocol."""
        link = self._link
        if link is not None and op is _SUM and array.nbytes <= MOST_BYTES and array.dtype.char in TYPES:
            return link.start(array, out)
        if array.nbytes > self._in_one_go and self.size > 1:
            pending = self._in_pieces(
                array,
                out,
                lambda part, result: self._all_reduce(self._segments.comm, part, result, op),
                ask=self._other is None or (op is not _SUM and op is not _AVERAGE),
            )
        else:
            pending = self._all_reduce(self.comm, array, out, op)
        return pending if link is None else link.beside(pending, array.nbytes)

    def _all_reduce(self, comm: Any, array: Array, out: Array, op: ReduceOp) -> Pending:
        datatype = TYPES.get(array.dtype.char)  # written out, for nothing is called as often
        if datatype is None:
            wide = array.astype(np.float32)
            narrow = narrowed(wide, out, op, self.size)
            return self.start(comm.Iallreduce, MPI.IN_PLACE, typed(wide), OPS[op], after=narrow)
        if self._other is not None and (op is _SUM or op is _AVERAGE):
            own, after = self._segments.comm, divided(out, op, 2) if op is _AVERAGE else None
            return PairSum(own, self._other, comm is own, array, out, datatype, after)
        count = array.size
        source = MPI.IN_PLACE if array is out else (array, count, datatype)
        try:
            request = comm.Iallreduce(source, (out, count, datatype), OPS[op])
        except MPI.Exception as error:
            raise map_error(error) from error
        return MpiPending(request, divided(out, op, self.size) if op is _AVERAGE else None)

    def reduce(self, array: Array, out: Array | None, op: ReduceOp, root: int) -> Pending:
        """See the protocol."""
        if array.nbytes > self._in_one_go and self.size > 1:
            return self._in_pieces(
                array, out, lambda part, result: self._reduce(self._segments.comm, part, result, op, root)
            )
        return self._reduce(self.comm, array, out, op, root)

    def _reduce(self, comm: Any, array: Array, out: Array | None, op: ReduceOp, root: int) -> Pending:
        after: Callable[[], None] | None = None
        if reduced_in_float32(array):
            wide = array.astype(np.float32)
            if out is not None:
                after = narrowed(wide, out, op, self.size)
            array, out = wide, None if out is None else wide
        elif out is not None:
            after = divided(out, op, self.size)
        source = MPI.IN_PLACE if array is out else typed(array)
        target = None if out is None else typed(out)
        return self.start(comm.Ireduce, source, target, OPS[op], root, after=after)

    def _in_pieces(
        self, array: Array, out: Any, start: Callable[[Array, Any], Pending], *, ask: bool = True
    ) -> Pending:
        source, target = array.reshape(-1), None if out is None else out.reshape(-1)

        def piece(part: slice) -> Pending:
            if array is out:  # in place, which is known by that
                return start(own := source[part], own)
            return start(source[part], None if target is None else target[part])

        return self._segments.run(array.size, array.nbytes, piece, ask=ask)

    def reduce_scatter(self, array: Array, out: Array, op: ReduceOp) -> Pending:
        """See the protocol."""
        array, part, after = self._scattered(array, out, op)
        start = self.comm.Ireduce_scatter_block
        return self.start(start, typed(array, part.size), typed(part), OPS[op], after=after)

    def reduce_scatter_v(self, array: Array, out: Array, op: ReduceOp, counts: Sequence[int]) -> Pending:
        """See the protocol."""
        array, part, after = self._scattered(array, out, op)
        start = self.comm.Ireduce_scatter
        return self.start(start, typed(array), typed(part), list(counts), OPS[op], after=after)

    def _scattered(self, array: Array, out: Array, op: ReduceOp) -> tuple[Array, Array, Callable[[], None] | None]:
        """Return what to reduce, what receives a part of it, and what is left to do then."""
        if not reduced_in_float32(array):
            return array, out, divided(out, op, self.size)
        part = np.empty(out.shape, np.float32)
        return array.astype(np.float32), part, narrowed(part, out, op, self.size)

    def split(self, color: int | None, key: int) -> MakingEngine:
        """See the protocol."""
        return self._derive(lambda: self.comm.Split(MPI.UNDEFINED if color is None else color, key))

    def subgroup(self, ranks: Sequence[int], tag: int) -> MakingEngine:
        """Make an engine of these ranks, in this order. Only they call it, with one tag from 0 to 2**20."""
        group = self.comm.Get_group().Incl(list(ranks))
        return self._derive(lambda: self.comm.Create_group(group, tag))

    def _derive(self, make: Callable[[], Any]) -> MakingEngine:
        def engine() -> MpiEngine | None:
            comm = make()
            if comm == MPI.COMM_NULL:
                return None
            comm.Set_errhandler(MPI.ERRORS_RETURN)
            control, segments = comm.Dup(), Segments(comm.Dup(), self._segments.size, self._segments.before_start)

            def free(timeout: float) -> bool:
                segments.comm.Free()
                control.Free()
                comm.Free()
                return True

            return MpiEngine(comm, control, segments, end=free, lines=self._lines)

        return MakingEngine(engine)

    def farewell(self) -> Pending:
        """See the protocol."""
        return self.start(self._control.Ibarrier)

    def shutdown(self, *, timeout: float) -> bool:
        """See the protocol."""
        if self._link is not None:
            self._link.close()
        return self._end(timeout)

    def abandon(self) -> None:
        """See the protocol. MPI is left as it is: ending it would wait for the lost."""
        self._segments.abandon()
        if self._link is not None:
            self._link.close()

    def describe(self) -> tuple[str, ...]:
        """See the protocol."""
        pieces = f"all_reduce and reduce of more than {format_size(self._in_one_go)}: {self._segments.describe()}"
        pair = () if self._other is None else (_PAIR,)
        link = () if self._link is None else (self._link.describe(),)
        return (*self._lines, *pair, *link, pieces)
