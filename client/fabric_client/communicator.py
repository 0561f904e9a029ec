"""The communicator: collectives over NumPy arrays, on the path that the plan chose."""

from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from fabric_client.arrays import Array, apart, as_input, as_result, check_leading_axis, check_writable
from fabric_client.explain import explain_communicator
from fabric_client.ops import ReduceOp, check_op_for_dtype, parse_op
from fabricd.errors import InputError

if TYPE_CHECKING:
    from fabric_client.environment import Identity
    from fabric_client.runner import Runner

_TAG_MAX = 2**20  # MPI promises 32767, MPICH over UCX more than this


class Communicator:
    """The ranks of a group, able to talk. Made by :func:`fabric_client.create_communicator`.

    Blocking: every method returns when this rank's part is done, so the arrays may be used again. An operation that
    lasts longer than its ``timeout`` raises OperationTimeoutError. Ctrl-C is heard while waiting.

    Arrays: NumPy, in C order. A strided input is copied first; a strided ``out`` is refused. Arrays of a wrong dtype or
    shape are refused before anything is sent. Zero elements and 0-d arrays are fine, and so are more than 2**31
    elements. What is only moved may have any dtype without Python objects. Reductions take the integers, floats,
    complex numbers and bool that :class:`ReduceOp` has a meaning for, in native byte order; float16 is reduced in
    float32 and rounded once at the end. Masked arrays are refused.

    Not checked, because checking would cost a message: all ranks must pass the same shape, dtype, operator and root,
    and call the same collectives in the same order. When they do not, results may be garbage without an error, an
    operation may wait until its timeout, or MPI may report an error. An InputError on one rank alone is such a case:
    let it end the rank, and the others are told.

    Threads: collectives from several threads run one after another, in the order in which they come, so threads must
    agree on an order among all ranks; ``send`` and ``recv`` may run beside them and beside each other.

    A failed peer: a pending operation raises RankLostError, which names the group and the ranks, also when it is not
    with the lost rank that this one exchanges data; afterwards every operation raises CommunicatorError, and the
    process may end as it likes: nothing waits for the lost.

    Attributes:
        rank: this process's place, 0 to size - 1.
        size: number of ranks.
        group: the group's name.
    """

    def __init__(self, runner: "Runner", identity: "Identity") -> None:
        self.rank = runner.engine.rank
        self.size = runner.engine.size
        self.group = runner.group
        self._runner = runner
        self._identity = identity

    def all_reduce(
        self, array: Array, op: str | ReduceOp = ReduceOp.SUM, *, out: Array | None = None, timeout: float | None = None
    ) -> Array:
        """Combine all ranks' arrays; every rank gets the result.

        Shapes:
            array: any, the same on every rank; out: the same. ``out=array`` works in place.

        Args:
            array: this rank's part.
            op: how to combine.
            out: receives the result; None makes a new array.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or operator that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source, operator = self._reducible(array, op)
        result = as_result(out, source.shape, source.dtype)
        if out is not None:
            source = apart(source, result, allowed=result)
        self._runner.collective("all_reduce", timeout, self._runner.engine.all_reduce, source, result, operator)
        return result

    def reduce(
        self,
        array: Array,
        op: str | ReduceOp = ReduceOp.SUM,
        root: int = 0,
        *,
        out: Array | None = None,
        timeout: float | None = None,
    ) -> Array | None:
        """Combine all ranks' arrays; the root gets the result.

        Shapes:
            array: any, the same on every rank; out, on the root only: the same. ``out=array`` works in place.

        Args:
            array: this rank's part.
            op: how to combine.
            root: the rank that gets the result.
            out: receives the result on the root, ignored elsewhere.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out`` or the new array on the root, None elsewhere.

        Raises:
            InputError: an array, operator or root that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        source, operator = self._reducible(array, op)
        result = as_result(out, source.shape, source.dtype) if self.rank == root else None
        if result is not None and out is not None:
            source = apart(source, result, allowed=result)
        self._runner.collective("reduce", timeout, self._runner.engine.reduce, source, result, operator, root)
        return result

    def reduce_scatter(
        self, array: Array, op: str | ReduceOp = ReduceOp.SUM, *, out: Array | None = None, timeout: float | None = None
    ) -> Array:
        """Combine all ranks' arrays; rank r gets block r of the result.

        Shapes:
            array: ``(size, *block)`` on every rank; out: ``block``. An ``out`` inside ``array`` is allowed, and
            costs a copy of ``array``.

        Args:
            array: this rank's part; ``array.reshape(comm.size, -1)`` gives a flat one its first axis.
            op: how to combine.
            out: receives this rank's block; None makes a new array.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array or operator that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source, operator = self._reducible(array, op)
        check_leading_axis(source, self.size, "reduce_scatter")
        result = as_result(out, source.shape[1:], source.dtype)
        if out is not None:
            source = apart(source, result, allowed=None)
        self._runner.collective("reduce_scatter", timeout, self._runner.engine.reduce_scatter, source, result, operator)
        return result

    def all_gather(self, array: Array, *, out: Array | None = None, timeout: float | None = None) -> Array:
        """Collect every rank's array on every rank.

        Shapes:
            array: any, the same on every rank; out: ``(size, *array.shape)``, with rank r's array in ``out[r]``.
            ``array=out[rank]`` works in place.

        Args:
            array: this rank's part.
            out: receives all parts; None makes a new array.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source = as_input(array)
        result = as_result(out, (self.size, *source.shape), source.dtype)
        if out is not None:
            source = apart(source, result, allowed=result[self.rank : self.rank + 1])
        self._runner.collective("all_gather", timeout, self._runner.engine.all_gather, source, result)
        return result

    def all_to_all(self, array: Array, *, out: Array | None = None, timeout: float | None = None) -> Array:
        """Exchange blocks: rank r's ``out[s]`` is what rank s had in ``array[r]``.

        Shapes:
            array: ``(size, *block)`` on every rank; out: the same. ``out=array`` works in place.

        Args:
            array: one block for each rank.
            out: receives one block from each rank; None makes a new array.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out``, or the new array.

        Raises:
            InputError: an array that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        source = as_input(array)
        check_leading_axis(source, self.size, "all_to_all")
        result = as_result(out, source.shape, source.dtype)
        if out is not None:
            source = apart(source, result, allowed=result)
        self._runner.collective("all_to_all", timeout, self._runner.engine.all_to_all, source, result)
        return result

    def broadcast(self, array: Array, root: int = 0, *, timeout: float | None = None) -> Array:
        """Copy the root's array into every other rank's array, in place.

        Shapes:
            array: any, the same shape and dtype on every rank; contiguous and, except on the root, writable.

        Args:
            array: the data on the root; receives it elsewhere.
            root: the rank that has the data.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``array``.

        Raises:
            InputError: an array or root that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._check_rank(root, "root")
        data = as_input(array) if self.rank == root else check_writable(array, "array")
        self._runner.collective("broadcast", timeout, self._runner.engine.broadcast, data, root)
        return array

    def send(self, array: Array, dest: int, *, tag: int = 0, timeout: float | None = None) -> None:
        """Send an array to one rank.

        Returns when the array may be used again; a long message waits for its receiver. Two ranks that send to each
        other before they receive may wait for ever: use :meth:`sendrecv`.

        Args:
            array: what to send.
            dest: another rank.
            tag: only a ``recv`` of the same tag takes it; 0 to 2**20.
            timeout: seconds; None takes the communicator's.

        Raises:
            InputError: an array, rank or tag that cannot be used; nothing was sent.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        data = as_input(array)
        self._check_peer(dest, "dest", tag)
        self._runner.run(f"send to rank {dest}", timeout, self._runner.engine.send, data, dest, tag)

    def recv(self, out: Array, source: int, *, tag: int = 0, timeout: float | None = None) -> Array:
        """Receive an array from one rank.

        Shapes:
            out: contiguous, of as many bytes as the sender sends.

        Args:
            out: receives the data.
            source: another rank.
            tag: the sender's tag.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out``.

        Raises:
            InputError: an array, rank or tag that cannot be used, or a message shorter than ``out``.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken, as it is
                after a message longer than ``out``.
        """
        data = check_writable(out, "out")
        self._check_peer(source, "source", tag)
        self._runner.run(f"recv from rank {source}", timeout, self._runner.engine.receive, data, source, tag)
        return out

    def sendrecv(
        self, array: Array, dest: int, out: Array, source: int, *, tag: int = 0, timeout: float | None = None
    ) -> Array:
        """Send to one rank and receive from one (the same or another) at once.

        Shapes:
            array: any; out: contiguous, of as many bytes as the sender sends, apart from ``array``.

        Args:
            array: what to send.
            dest: rank to send to.
            out: receives the data.
            source: rank to receive from.
            tag: of both messages.
            timeout: seconds; None takes the communicator's.

        Returns:
            ``out``.

        Raises:
            InputError: an array, rank or tag that cannot be used, or a message shorter than ``out``.
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        data, target = as_input(array), check_writable(out, "out")
        self._check_peer(dest, "dest", tag)
        self._check_peer(source, "source", tag)
        data = apart(data, target, allowed=None)
        what = f"sendrecv to rank {dest} and from rank {source}"
        self._runner.run(what, timeout, self._runner.engine.exchange, data, dest, target, source, tag)
        return out

    def barrier(self, *, timeout: float | None = None) -> None:
        """Return when every rank has come.

        Args:
            timeout: seconds; None takes the communicator's.

        Raises:
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: the communicator is broken.
        """
        self._runner.collective("barrier", timeout, self._runner.engine.barrier)

    def explain(self) -> str:
        """Return the plan in a few lines: which path, why, and what was set for it. Local; nothing is sent."""
        return explain_communicator(self._runner, self._identity)

    def close(self, *, timeout: float | None = None) -> None:
        """End the communicator together with the other ranks, which must close theirs, too. Safe to repeat.

        A process that ends without closing leaves its group: others see it as lost when they need it.

        Args:
            timeout: seconds to wait for the others; None takes the communicator's.

        Raises:
            RankLostError, GroupAbortedError, OperationTimeoutError, EngineError: it did not end in order; this rank's
                part is over nevertheless.
        """
        self._runner.close(timeout)

    def abort(self, reason: str) -> None:
        """End the group at once: every rank's pending operation raises GroupAbortedError with this reason.

        Args:
            reason: shown to the other ranks; no secrets.
        """
        self._runner.abort(f"rank {self.rank}: {reason}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._runner.give_up(error)

    def __repr__(self) -> str:
        state = ", closed" if self._runner.closed else ""
        return f"<Communicator of group {self.group!r}: rank {self.rank} of {self.size}{state}>"

    def _reducible(self, array: object, op: str | ReduceOp) -> tuple[Array, ReduceOp]:
        operator = parse_op(op)
        source = as_input(array)
        check_op_for_dtype(operator, source.dtype)
        if not source.dtype.isnative:
            raise InputError(f"cannot reduce {source.dtype}: not in this machine's byte order")
        return source, operator

    def _check_rank(self, rank: object, what: str) -> None:
        if not _is_between(rank, 0, self.size - 1):
            raise InputError(f"{what} {rank!r} is not a rank of this group", hint=f"valid: 0 to {self.size - 1}")

    def _check_peer(self, rank: int, what: str, tag: int) -> None:
        self._check_rank(rank, what)
        if rank == self.rank:
            raise InputError(f"{what} {rank} is this rank itself", hint="copy the array instead")
        if not _is_between(tag, 0, _TAG_MAX):
            raise InputError(f"tag {tag!r} cannot be used", hint=f"valid: 0 to {_TAG_MAX}")


def _is_between(value: object, least: int, greatest: int) -> bool:
    """Tell whether a value is an integer, of Python's or NumPy's, within bounds."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= int(value) <= greatest
