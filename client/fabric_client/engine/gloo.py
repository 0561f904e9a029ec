"""The Gloo engine: PyTorch's collectives over TCP, for arrays in host memory. Translates a plan, and no more.

For hosts that have PyTorch and no MPI. Gloo works an operation off in threads of its own, so data move while the
process computes.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.distributed import AllToAllOptions, BroadcastOptions, GatherOptions, ReduceOptions, ScatterOptions
from torch.distributed import ReduceOp as TorchOp

from fabric_client.arrays import Array, same_memory
from fabric_client.engine.base import ArrayDoor
from fabric_client.engine.gloo_arrays import GlooArrays, as_bytes, as_numbers
from fabric_client.engine.gloo_works import Farewell, GlooPending, GlooSplit, Member, Message
from fabric_client.engine.rounding import divided, narrowed, reduced_in_float32
from fabric_client.ops import ReduceOp
from fabric_client.pending import ENDED, Pending

_OPS = {
    ReduceOp.SUM: TorchOp.SUM,
    ReduceOp.PRODUCT: TorchOp.PRODUCT,
    ReduceOp.MIN: TorchOp.MIN,
    ReduceOp.MAX: TorchOp.MAX,
    ReduceOp.AVERAGE: TorchOp.SUM,  # and divided afterwards
    ReduceOp.BITWISE_AND: TorchOp.BAND,
    ReduceOp.BITWISE_OR: TorchOp.BOR,
    ReduceOp.BITWISE_XOR: TorchOp.BXOR,
}


class GlooEngine:
    """Gloo's collectives over one process group; see :class:`fabric_client.engine.base.Engine`.

    float16 and bfloat16 are reduced in float32 and rounded once; complex numbers are two real ones. What Gloo has no
    operation for, blocks of different sizes, are several operations as one.

    Args:
        member: what to run on; the engine's own.
        lines: for ``describe``.
    """

    name = "gloo"
    arrays: ArrayDoor = GlooArrays()
    direct_memory: bool | None = None

    def __init__(self, member: Member, *, lines: tuple[str, ...] = ()) -> None:
        self.rank = member.rank
        self.size = member.size
        self._member = member
        self._group = member.group
        self._lines = lines
        self._splits = 0

    def all_reduce(self, array: Array, out: Array, op: ReduceOp) -> Pending:
        """See the protocol."""
        if array is not out:
            np.copyto(out, array)
        if not out.nbytes:
            return ENDED
        numbers, after = self._reducing(out, out, op)
        return GlooPending(self._group.allreduce([numbers], _OPS[op]), after=after)

    def reduce(self, array: Array, out: Array | None, op: ReduceOp, root: int) -> Pending:
        """See the protocol."""
        target = array.copy() if out is None else out  # Gloo leaves parts of the sum in every rank's buffer
        if out is not None and array is not out:
            np.copyto(out, array)
        if not target.nbytes:
            return ENDED
        numbers, after = self._reducing(target, target, op)
        options = ReduceOptions()
        options.rootRank, options.reduceOp = root, _OPS[op]
        return GlooPending(self._group.reduce([numbers], options), after=None if out is None else after)

    def reduce_scatter(self, array: Array, out: Array, op: ReduceOp) -> Pending:
        """See the protocol."""
        return self.reduce_scatter_v(array, out, op, [out.size] * self.size)

    def reduce_scatter_v(self, array: Array, out: Array, op: ReduceOp, counts: Sequence[int]) -> Pending:
        """See the protocol. Gloo itself makes it of an all_reduce, which must not change the user's array."""
        whole = array.copy().reshape(-1)
        if not whole.nbytes:
            return ENDED
        first = sum(counts[: self.rank])
        numbers, after = self._reducing(whole, whole, op)

        def take_block() -> None:
            if after is not None:
                after()
            out.reshape(-1)[...] = whole[first : first + out.size]

        return GlooPending(self._group.allreduce([numbers], _OPS[op]), after=take_block)

    def _reducing(self, array: Array, out: Array, op: ReduceOp) -> tuple[torch.Tensor, Callable[[], None] | None]:
        """Return what to reduce in place, and what is left to do then."""
        if reduced_in_float32(array):
            wide = array.astype(np.float32)
            return as_numbers(wide), narrowed(wide, out, op, self.size)
        return as_numbers(array), divided(out, op, self.size)

    def all_gather(self, array: Array, out: Array) -> Pending:
        """See the protocol."""
        if not out.nbytes:
            return ENDED
        own = out[self.rank : self.rank + 1]
        source = array.copy() if same_memory(array, own) else array
        return GlooPending(self._group._allgather_base(as_bytes(out), as_bytes(source)), keep=source)

    def all_gather_v(self, array: Array, out: Array, counts: Sequence[int]) -> Pending:
        """See the protocol. One broadcast for each rank."""
        blocks = _blocks(out, counts)
        own = blocks[self.rank]
        if not same_memory(array, own):
            np.copyto(own, array.reshape(-1))
        return GlooPending(
            *(self._broadcast(block, root) for root, block in enumerate(blocks) if block.nbytes), keep=out
        )

    def gather(self, array: Array, out: Array | None, root: int) -> Pending:
        """See the protocol."""
        if not array.nbytes:
            return ENDED
        options = GatherOptions()
        options.rootRank = root
        targets = [] if out is None else [[as_bytes(out[rank : rank + 1]) for rank in range(self.size)]]
        source = array.copy() if out is not None and same_memory(array, out[self.rank : self.rank + 1]) else array
        return GlooPending(self._group.gather(targets, [as_bytes(source)], options), keep=source)

    def gather_v(self, array: Array, out: Array | None, counts: Sequence[int] | None, root: int) -> Pending:
        """See the protocol. An exchange in which only the root receives."""
        to = [array.size if rank == root else 0 for rank in range(self.size)]
        if out is None or counts is None:
            return self._exchange(array, to, np.empty(0, array.dtype), [0] * self.size)
        source = array.copy() if same_memory(array, _blocks(out, counts)[self.rank]) else array
        return self._exchange(source, to, out, counts)

    def scatter(self, array: Array | None, out: Array, root: int) -> Pending:
        """See the protocol."""
        if not out.nbytes:
            return ENDED
        options = ScatterOptions()
        options.rootRank = root
        sources: list[list[torch.Tensor]] = []
        if array is not None:
            sources = [[as_bytes(array[rank : rank + 1]) for rank in range(self.size)]]
            if same_memory(out, array[self.rank : self.rank + 1]):
                sources[0][self.rank] = sources[0][self.rank].clone()
        return GlooPending(self._group.scatter([as_bytes(out)], sources, options), keep=(array, sources))

    def scatter_v(self, array: Array | None, out: Array, counts: Sequence[int] | None, root: int) -> Pending:
        """See the protocol. An exchange in which only the root sends."""
        come = [out.size if rank == root else 0 for rank in range(self.size)]
        if array is None or counts is None:
            return self._exchange(np.empty(0, out.dtype), [0] * self.size, out, come)
        source = array.copy() if same_memory(out, _blocks(array, counts)[self.rank]) else array
        return self._exchange(source, counts, out, come)

    def all_to_all(self, array: Array, out: Array) -> Pending:
        """See the protocol."""
        each = [array.size // self.size] * self.size
        return self._exchange(array.copy() if array is out else array, each, out, each)

    def all_to_all_v(self, array: Array, send_counts: Sequence[int], out: Array, recv_counts: Sequence[int]) -> Pending:
        """See the protocol."""
        return self._exchange(array, send_counts, out, recv_counts)

    def _exchange(self, array: Array, send_counts: Sequence[int], out: Array, recv_counts: Sequence[int]) -> Pending:
        width = out.dtype.itemsize
        come, go = ([count * width for count in counts] for counts in (recv_counts, send_counts))
        work = self._group.alltoall_base(as_bytes(out), as_bytes(array), come, go, AllToAllOptions())
        return GlooPending(work, keep=array)

    def broadcast(self, array: Array, root: int) -> Pending:
        """See the protocol."""
        return GlooPending(self._broadcast(array, root), keep=array) if array.nbytes else ENDED

    def _broadcast(self, array: Array, root: int) -> Any:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        return self._group.broadcast([as_bytes(array)], options)

    def send(self, array: Array, dest: int, tag: int) -> Pending:
        """See the protocol."""
        return Message(self._member, self._group.send([as_bytes(array)], dest, tag), keep=array)

    def receive(self, out: Array, source: int, tag: int) -> Pending:
        """See the protocol. Gloo takes a message of another length for an error, which ends the group."""
        return Message(self._member, self._group.recv([as_bytes(out)], source, tag), keep=out)

    def exchange(self, array: Array, dest: int, out: Array, source: int, tag: int) -> Pending:
        """See the protocol."""
        incoming = self._group.recv([as_bytes(out)], source, tag)
        outgoing = self._group.send([as_bytes(array)], dest, tag)
        return Message(self._member, incoming, outgoing, keep=(array, out))

    def barrier(self) -> Pending:
        """See the protocol."""
        return GlooPending(self._group.barrier())

    def exchange_counts(self, counts: Sequence[int]) -> tuple[Pending, Array]:
        """See the protocol."""
        mine, theirs = np.array(counts, np.int64), np.empty(self.size, np.int64)
        return self.all_to_all(mine, theirs), theirs

    def split(self, color: int | None, key: int) -> GlooSplit:
        """See the protocol."""
        self._splits += 1
        wishes = np.empty((self.size, 2), np.int64)
        told = self.all_gather(np.array([-1 if color is None else color, key], np.int64), wishes)

        def engine(member: Member) -> GlooEngine:
            return GlooEngine(member, lines=self._lines)

        return GlooSplit(self._member, color, wishes, told, f"{self._splits}", engine)

    def farewell(self) -> Pending:
        """See the protocol. By the store, so that no operation of another rank's can be mistaken for it."""
        return Farewell(self._member)

    def shutdown(self, *, timeout: float) -> bool:
        """See the protocol."""
        self._member.end()
        return True

    def abandon(self) -> None:
        """See the protocol. Gloo's threads are left as they are: ending them would wait for the lost."""
        self._member.abandon()

    def describe(self) -> tuple[str, ...]:
        """See the protocol."""
        return self._lines


def _blocks(array: Array, counts: Sequence[int]) -> list[Array]:
    """Return flat parts of so many elements, which lie one behind the other."""
    flat = array.reshape(-1)
    return [flat[end - count : end] for count, end in zip(counts, accumulate(counts), strict=True)]
