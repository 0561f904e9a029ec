"""The MPI engine: MPICH over UCX, for arrays in host memory. Translates a plan, and no more."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from fabric_client.arrays import Array, same_memory
from fabric_client.engine import mpi_library
from fabric_client.engine.base import Pending
from fabric_client.engine.mpi_library import MPI
from fabric_client.ops import ReduceOp
from fabricd.errors import EngineError, InputError

_OPS = {
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
#: numpy's type characters name C types, as MPI's datatypes do.
_TYPES = {
    "?": MPI.UINT8_T,  # false and true are 0 and 1; MPI's own bool has neither minimum nor maximum
    "b": MPI.SIGNED_CHAR,
    "B": MPI.UNSIGNED_CHAR,
    "h": MPI.SHORT,
    "H": MPI.UNSIGNED_SHORT,
    "i": MPI.INT,
    "I": MPI.UNSIGNED,
    "l": MPI.LONG,
    "L": MPI.UNSIGNED_LONG,
    "q": MPI.LONG_LONG,
    "Q": MPI.UNSIGNED_LONG_LONG,
    "f": MPI.FLOAT,
    "d": MPI.DOUBLE,
    "g": MPI.LONG_DOUBLE,
    "F": MPI.C_FLOAT_COMPLEX,
    "D": MPI.C_DOUBLE_COMPLEX,
    "G": MPI.C_LONG_DOUBLE_COMPLEX,
}

_HALF = np.dtype(np.float16).char
#: Error classes that a broken connection can end in.
_FROM_OUTSIDE = frozenset({MPI.ERR_OTHER, MPI.ERR_INTERN, MPI.ERR_UNKNOWN, MPI.ERR_PROC_ABORTED})


class MpiPending:
    """A request of MPI, and what is left to do when it has ended."""

    __slots__ = ("_after", "_request", "_status")

    def __init__(self, request: Any, after: Callable[[], None] | None = None, status: Any = None) -> None:
        self._request = request
        self._after = after
        self._status = status

    def test(self) -> bool:
        """Drive MPI on; see :class:`fabric_client.engine.base.Pending`."""
        try:
            ended = self._request.Test(self._status)
        except MPI.Exception as error:
            raise map_error(error) from error
        if ended and self._after is not None:
            self._after()
            self._after = None
        return bool(ended)


class _Both:
    """Two operations as one."""

    def __init__(self, *parts: Pending) -> None:
        self._waiting = list(parts)

    def test(self) -> bool:
        """Drive both on; true when none is left."""
        self._waiting = [part for part in self._waiting if not part.test()]
        return not self._waiting


def map_error(error: Any) -> EngineError:
    """Return what an MPI exception means. The only place where MPI's errors are translated.

    ``details["peer_may_be_lost"]`` tells whether a lost rank could be behind it.
    """
    kind = error.Get_error_class()
    details = {"mpi_class": kind, "peer_may_be_lost": kind in _FROM_OUTSIDE}
    if kind == MPI.ERR_TRUNCATE:
        return EngineError("a message is longer than the array that receives it", details=details)
    return EngineError("MPI: " + " ".join(error.Get_error_string().split()), details=details)


class MpiEngine:
    """MPI's collectives over one communicator; see :class:`fabric_client.engine.base.Engine`.

    Args:
        comm: what to run on; the engine's own.
        control: the same ranks; for what must not be mistaken for an operation that another rank is in.
        owns_mpi: MPI was started by this client, which therefore ends it.
        before_finalize: called just before MPI ends.
        lines: for ``describe``.
    """

    name = "mpi"

    def __init__(
        self,
        comm: Any,
        control: Any,
        *,
        owns_mpi: bool,
        before_finalize: Callable[[float], None] = lambda deadline: None,
        lines: tuple[str, ...] = (),
    ) -> None:
        self.rank = int(comm.Get_rank())
        self.size = int(comm.Get_size())
        self._comm = comm
        self._control = control
        self._owns_mpi = owns_mpi
        self._before_finalize = before_finalize
        self._lines = lines

    def all_reduce(self, array: Array, out: Array, op: ReduceOp) -> Pending:
        """See the protocol."""
        if array.dtype.char == _HALF:
            wide = array.astype(np.float32)
            return self._start(
                self._comm.Iallreduce, MPI.IN_PLACE, _typed(wide), _OPS[op], after=self._narrow(wide, out, op)
            )
        source = MPI.IN_PLACE if array is out else _typed(array)
        return self._start(self._comm.Iallreduce, source, _typed(out), _OPS[op], after=self._averaged(out, op))

    def reduce(self, array: Array, out: Array | None, op: ReduceOp, root: int) -> Pending:
        """See the protocol."""
        after: Callable[[], None] | None = None
        if array.dtype.char == _HALF:
            wide = array.astype(np.float32)
            if out is not None:
                after = self._narrow(wide, out, op)
            array, out = wide, None if out is None else wide
        elif out is not None:
            after = self._averaged(out, op)
        source = MPI.IN_PLACE if array is out else _typed(array)
        target = None if out is None else _typed(out)
        return self._start(self._comm.Ireduce, source, target, _OPS[op], root, after=after)

    def reduce_scatter(self, array: Array, out: Array, op: ReduceOp) -> Pending:
        """See the protocol."""
        if array.dtype.char == _HALF:
            wide, part = array.astype(np.float32), np.empty(out.shape, np.float32)
            narrow = self._narrow(part, out, op)
            return self._start(
                self._comm.Ireduce_scatter_block, _typed(wide, part.size), _typed(part), _OPS[op], after=narrow
            )
        divide = self._averaged(out, op)
        return self._start(
            self._comm.Ireduce_scatter_block, _typed(array, out.size), _typed(out), _OPS[op], after=divide
        )

    def all_gather(self, array: Array, out: Array) -> Pending:
        """See the protocol."""
        own = out[self.rank : self.rank + 1]
        source = MPI.IN_PLACE if same_memory(array, own) else _bytes(array)
        return self._start(self._comm.Iallgather, source, _bytes(out, array.nbytes))

    def all_to_all(self, array: Array, out: Array) -> Pending:
        """See the protocol."""
        block = array.nbytes // self.size
        source = MPI.IN_PLACE if array is out else _bytes(array, block)
        return self._start(self._comm.Ialltoall, source, _bytes(out, block))

    def broadcast(self, array: Array, root: int) -> Pending:
        """See the protocol."""
        return self._start(self._comm.Ibcast, _bytes(array), root)

    def send(self, array: Array, dest: int, tag: int) -> Pending:
        """See the protocol."""
        return self._start(self._comm.Isend, _bytes(array), dest, tag)

    def receive(self, out: Array, source: int, tag: int) -> Pending:
        """See the protocol."""
        status = MPI.Status()

        def check_length() -> None:
            came = status.Get_count(MPI.BYTE)
            if came != out.nbytes:
                raise InputError(
                    f"rank {source} sent {came} bytes, and the array that receives them has {out.nbytes}",
                    hint="the message was received; its beginning is in the array",
                )

        return self._start(self._comm.Irecv, _bytes(out), source, tag, after=check_length, status=status)

    def exchange(self, array: Array, dest: int, out: Array, source: int, tag: int) -> Pending:
        """See the protocol."""
        # The receive first: its place is known when the message comes.
        return _Both(self.receive(out, source, tag), self.send(array, dest, tag))

    def barrier(self) -> Pending:
        """See the protocol."""
        return self._start(self._comm.Ibarrier)

    def farewell(self) -> Pending:
        """See the protocol."""
        return self._start(self._control.Ibarrier)

    def shutdown(self, *, timeout: float) -> bool:
        """See the protocol."""
        if not self._owns_mpi:
            return True
        deadline = time.monotonic() + timeout
        self._before_finalize(deadline)
        return mpi_library.finalize(deadline=deadline, clock=time.monotonic)

    def abandon(self) -> None:
        """See the protocol. MPI is left as it is: ending it would wait for the lost."""

    def describe(self) -> tuple[str, ...]:
        """See the protocol."""
        return self._lines

    def _start(
        self, function: Callable[..., Any], *arguments: Any, after: Callable[[], None] | None = None, status: Any = None
    ) -> MpiPending:
        try:
            return MpiPending(function(*arguments), after, status)
        except MPI.Exception as error:
            raise map_error(error) from error

    def _averaged(self, out: Array, op: ReduceOp) -> Callable[[], None] | None:
        if op is not ReduceOp.AVERAGE:
            return None

        def divide() -> None:
            np.divide(out, self.size, out=out)

        return divide

    def _narrow(self, wide: Array, out: Array, op: ReduceOp) -> Callable[[], None]:
        """Return what brings a float16 reduction back from the float32 that it was done in."""

        def narrow() -> None:
            if op is ReduceOp.AVERAGE:
                np.divide(wide, self.size, out=wide)
            with np.errstate(over="ignore"):  # beyond float16's range is inf, as in any float16 arithmetic
                out[...] = wide

        return narrow


def _typed(array: Array, count: int | None = None) -> list[Any]:
    """Return a buffer for data that is computed with; ``count`` is of one block where MPI counts blocks."""
    return [array, array.size if count is None else count, _TYPES[array.dtype.char]]


def _bytes(array: Array, count: int | None = None) -> list[Any]:
    """Return a buffer for data that is only moved: any dtype, as bytes."""
    return [array, array.nbytes if count is None else count, MPI.BYTE]
