"""The NCCL engine: collectives of GPUs through CuPy's binding. Translates a plan, and no more."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fabric_client.engine.base import ArrayDoor, Pending, PendingEngine
from fabric_client.engine.device import DeviceArray
from fabric_client.engine.device_arrays import DeviceArrays
from fabric_client.engine.nccl_comm import NcclComm, NothingToDo
from fabric_client.engine.nccl_log import NcclLog
from fabric_client.engine.nccl_types import BYTES, INT32, nccl_op, nccl_type
from fabric_client.ops import ReduceOp
from fabricd.errors import CommunicatorError, InputError

#: Address and bytes of one rank's part.
Block = tuple[int, int]


class NcclEngine:
    """NCCL's collectives over one communicator; see :class:`fabric_client.engine.base.Engine`.

    An operation waits for its turn in the stream that the program works with when it starts it: CuPy's current one,
    or PyTorch's where the array is a tensor. What the program gives that stream afterwards finds the result.

    float16 and bfloat16 are reduced in their own precision, as NCCL does it. Complex numbers are two real ones.

    Args:
        comm: what to run on; the engine's own.
        rank: of this process.
        size: number of ranks.
        farewell: for the first engine of a group: comes together with the other ranks beside NCCL.
        log: what NCCL says of its connections.
        lines: for ``describe``.
    """

    name = "nccl"

    def __init__(
        self,
        comm: NcclComm,
        rank: int,
        size: int,
        *,
        farewell: Callable[[], Pending] | None = None,
        log: NcclLog | None = None,
        lines: tuple[str, ...] = (),
    ) -> None:
        self.rank = rank
        self.size = size
        self.comm = comm
        self._door = DeviceArrays(comm.device)
        self.arrays: ArrayDoor = self._door
        self._farewell = farewell
        self._log = NcclLog() if log is None else log
        self._lines = lines
        self._children: list[NcclEngine] = []
        self._token = self._door.as_result(None, (1,), np.dtype(np.int32))

    @property
    def direct_memory(self) -> bool | None:
        """See the protocol. Of all of the process's communicators."""
        return self._log.direct_memory()

    def all_reduce(self, array: DeviceArray, out: DeviceArray, op: ReduceOp) -> Pending:
        """See the protocol."""
        kind, parts = nccl_type(array.dtype)

        def call(raw: Any, stream: int) -> None:
            raw.allReduce(array.address, out.address, array.size * parts, kind, nccl_op(op), stream)

        return self._start("all_reduce", call, array, out)

    def reduce(self, array: DeviceArray, out: DeviceArray | None, op: ReduceOp, root: int) -> Pending:
        """See the protocol."""
        kind, parts = nccl_type(array.dtype)
        target = 0 if out is None else out.address

        def call(raw: Any, stream: int) -> None:
            raw.reduce(array.address, target, array.size * parts, kind, nccl_op(op), root, stream)

        return self._start("reduce", call, array, out)

    def reduce_scatter(self, array: DeviceArray, out: DeviceArray, op: ReduceOp) -> Pending:
        """See the protocol."""
        kind, parts = nccl_type(array.dtype)

        def call(raw: Any, stream: int) -> None:
            raw.reduceScatter(array.address, out.address, out.size * parts, kind, nccl_op(op), stream)

        return self._start("reduce_scatter", call, array, out)

    def reduce_scatter_v(self, array: DeviceArray, out: DeviceArray, op: ReduceOp, counts: Sequence[int]) -> Pending:
        """See the protocol. NCCL has none: one reduction for each rank, in one group."""
        kind, parts = nccl_type(array.dtype)
        blocks = _blocks(array, counts)

        def call(raw: Any, stream: int) -> None:
            with self.comm.group():
                for root, (address, nbytes) in enumerate(blocks):
                    target = out.address if root == self.rank else 0
                    if nbytes:
                        raw.reduce(address, target, counts[root] * parts, kind, nccl_op(op), root, stream)

        return self._start("reduce_scatter_v", call, array, out)

    def all_gather(self, array: DeviceArray, out: DeviceArray) -> Pending:
        """See the protocol."""

        def call(raw: Any, stream: int) -> None:
            raw.allGather(array.address, out.address, array.nbytes, BYTES, stream)

        return self._start("all_gather", call, array, out)

    def all_gather_v(self, array: DeviceArray, out: DeviceArray, counts: Sequence[int]) -> Pending:
        """See the protocol. NCCL has none: one broadcast of each rank, in one group."""
        blocks = _blocks(out, counts)

        def call(raw: Any, stream: int) -> None:
            with self.comm.group():
                for root, (address, nbytes) in enumerate(blocks):
                    source = array.address if root == self.rank else address
                    if nbytes:
                        raw.broadcast(source, address, nbytes, BYTES, root, stream)

        return self._start("all_gather_v", call, out, array)

    def gather(self, array: DeviceArray, out: DeviceArray | None, root: int) -> Pending:
        """See the protocol."""
        counts = None if out is None else [array.size] * self.size
        return self._gather("gather", array, out, counts, root)

    def gather_v(self, array: DeviceArray, out: DeviceArray | None, counts: Sequence[int] | None, root: int) -> Pending:
        """See the protocol."""
        return self._gather("gather_v", array, out, counts, root)

    def _gather(
        self, what: str, array: DeviceArray, out: DeviceArray | None, counts: Sequence[int] | None, root: int
    ) -> Pending:
        own = (array.address, array.nbytes)
        if out is None or counts is None:
            return self.messages(what, {root: own}, {}, array)
        blocks = dict(enumerate(_blocks(out, counts)))
        return self.messages(what, {root: own}, blocks, array, out)

    def scatter(self, array: DeviceArray | None, out: DeviceArray, root: int) -> Pending:
        """See the protocol."""
        counts = None if array is None else [out.size] * self.size
        return self._scatter("scatter", array, out, counts, root)

    def scatter_v(
        self, array: DeviceArray | None, out: DeviceArray, counts: Sequence[int] | None, root: int
    ) -> Pending:
        """See the protocol."""
        return self._scatter("scatter_v", array, out, counts, root)

    def _scatter(
        self, what: str, array: DeviceArray | None, out: DeviceArray, counts: Sequence[int] | None, root: int
    ) -> Pending:
        own = (out.address, out.nbytes)
        if array is None or counts is None:
            return self.messages(what, {}, {root: own}, out)
        blocks = dict(enumerate(_blocks(array, counts)))
        return self.messages(what, blocks, {root: own}, array, out)

    def all_to_all(self, array: DeviceArray, out: DeviceArray) -> Pending:
        """See the protocol."""
        counts = [array.size // self.size] * self.size
        return self._all_to_all("all_to_all", array, counts, out, counts)

    def all_to_all_v(
        self, array: DeviceArray, send_counts: Sequence[int], out: DeviceArray, recv_counts: Sequence[int]
    ) -> Pending:
        """See the protocol."""
        return self._all_to_all("all_to_all_v", array, send_counts, out, recv_counts)

    def _all_to_all(
        self,
        what: str,
        array: DeviceArray,
        send_counts: Sequence[int],
        out: DeviceArray,
        recv_counts: Sequence[int],
    ) -> Pending:
        # NCCL has no such exchange in place: what is sent must stay until all is sent.
        source = self._door.copy(array) if array is out and array.nbytes else array
        outgoing = dict(enumerate(_blocks(source, send_counts)))
        return self.messages(what, outgoing, dict(enumerate(_blocks(out, recv_counts))), source, out)

    def broadcast(self, array: DeviceArray, root: int) -> Pending:
        """See the protocol."""

        def call(raw: Any, stream: int) -> None:
            raw.broadcast(array.address, array.address, array.nbytes, BYTES, root, stream)

        return self._start("broadcast", call, array)

    def send(self, array: DeviceArray, dest: int, tag: int) -> Pending:
        """See the protocol. NCCL has no tags: the messages of two ranks are in order."""
        _check_tag(tag)
        return self.messages(f"send to rank {dest}", {dest: (array.address, array.nbytes)}, {}, array)

    def receive(self, out: DeviceArray, source: int, tag: int) -> Pending:
        """See the protocol. NCCL does not tell how much was sent."""
        _check_tag(tag)
        return self.messages(f"recv from rank {source}", {}, {source: (out.address, out.nbytes)}, out)

    def exchange(self, array: DeviceArray, dest: int, out: DeviceArray, source: int, tag: int) -> Pending:
        """See the protocol."""
        _check_tag(tag)
        outgoing, incoming = {dest: (array.address, array.nbytes)}, {source: (out.address, out.nbytes)}
        return self.messages("sendrecv", outgoing, incoming, array, out)

    def barrier(self) -> Pending:
        """See the protocol. Ends behind what the current stream was given before it, on every rank."""
        token, stream = self._token.address, self.comm.device.stream(None)

        def call(raw: Any) -> None:
            raw.allReduce(token, token, 1, INT32, nccl_op(ReduceOp.MAX), stream)

        return self.comm.start("barrier", call, stream)

    def exchange_counts(self, counts: Sequence[int]) -> tuple[Pending, Iterable[int]]:
        """See the protocol."""
        dtype = np.dtype(np.int64)
        sent, came = (self._door.as_result(None, (self.size,), dtype) for _ in range(2))
        device, told = self.comm.device, np.empty(self.size, dtype)
        device.upload(sent.address, np.asarray(counts, dtype), sent.stream)
        result: list[int] = []

        def fetch() -> None:
            device.download(told, came.address)
            result.extend(int(count) for count in told)

        outgoing, incoming = (dict(enumerate(_blocks(one, [1] * self.size))) for one in (sent, came))
        return self.messages("exchange of counts", outgoing, incoming, sent, came, after=fetch), result

    def split(self, color: int | None, key: int) -> PendingEngine:
        """See the protocol."""
        from fabric_client.engine.nccl_split import Split

        return Split(self, color, key)

    def adopt(self, raw: Any, rank: int, size: int) -> "NcclEngine":
        """Return an engine on a communicator that was made of this one's; it ends with this one at the latest."""
        comm = NcclComm(self.comm.binding, raw, self.comm.device, self.comm.watchdog)
        child = NcclEngine(comm, rank, size, log=self._log, lines=self._lines)
        self._children = [one for one in self._children if one.comm.alive] + [child]
        return child

    def farewell(self) -> Pending:
        """See the protocol. Beside NCCL, which could mistake it for an operation that another rank is in."""
        return self.barrier() if self._farewell is None else self._farewell()

    def shutdown(self, *, timeout: float) -> bool:
        """See the protocol."""
        deadline = time.monotonic() + timeout
        ended = [child.shutdown(timeout=max(0.0, deadline - time.monotonic())) for child in self._children]
        return all([*ended, self.comm.destroy(timeout=max(0.0, deadline - time.monotonic()))])

    def abandon(self) -> None:
        """See the protocol."""
        for child in self._children:
            child.abandon()
        self.comm.end(CommunicatorError("the communicator was given up"))

    def describe(self) -> tuple[str, ...]:
        """See the protocol."""
        return self._lines

    def _start(self, what: str, call: Callable[[Any, int], None], *buffers: DeviceArray | None) -> Pending:
        """Start an operation in the stream of the first buffer."""
        used = [buffer for buffer in buffers if buffer is not None]
        if not any(buffer.nbytes for buffer in used):
            return NothingToDo()
        stream = self._stream_of(used)
        return self.comm.start(what, lambda raw: call(raw, stream), stream)

    def messages(
        self,
        what: str,
        outgoing: dict[int, Block],
        incoming: dict[int, Block],
        *buffers: DeviceArray,
        after: Callable[[], None] | None = None,
    ) -> Pending:
        """Start messages to and from ranks, as one operation; a message to this rank itself is a copy.

        Args:
            what: its name, for errors.
            outgoing: what each rank is sent.
            incoming: where what each rank sends is put.
            buffers: the arrays that the blocks are parts of.
            after: called when it has ended.
        """
        stream = self._stream_of(buffers)
        own, mine = outgoing.pop(self.rank, None), incoming.pop(self.rank, None)
        if own is not None and mine is not None and own[1] and own[0] != mine[0]:
            self.comm.device.copy(mine[0], own[0], own[1], stream)

        def call(raw: Any) -> None:
            with self.comm.group():
                for peer, (address, nbytes) in outgoing.items():
                    if nbytes:
                        raw.send(address, nbytes, BYTES, peer, stream)
                for peer, (address, nbytes) in incoming.items():
                    if nbytes:
                        raw.recv(address, nbytes, BYTES, peer, stream)

        return self.comm.start(what, call, stream, after=after, keep=buffers)

    def _stream_of(self, buffers: Sequence[DeviceArray]) -> int:
        stream = buffers[0].stream
        for other in {buffer.stream for buffer in buffers} - {stream}:
            self.comm.device.follow(stream, other)
        return stream


def _blocks(buffer: DeviceArray, counts: Sequence[int]) -> list[Block]:
    """Return where each rank's part is, of so many elements; the parts lie one behind the other."""
    sizes = [count * buffer.dtype.itemsize for count in counts]
    return [(buffer.address + start, size) for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)]


def _check_tag(tag: int) -> None:
    if tag:
        raise InputError(f"tag {tag}: NCCL has no tags", hint="leave it out; the messages of two ranks come in order")
