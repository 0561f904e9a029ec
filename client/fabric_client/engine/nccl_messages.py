"""What the NCCL engine does by messages between ranks, as one operation: NCCL has no collective for it."""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fabric_client.engine.base import ArrayDoor
from fabric_client.engine.device import DeviceArray
from fabric_client.engine.device_arrays import DeviceArrays
from fabric_client.engine.nccl_comm import NcclComm
from fabric_client.engine.nccl_types import BYTES
from fabric_client.pending import ENDED, Pending
from fabricd.errors import InputError

#: Address and bytes of one rank's part.
Block = tuple[int, int]


class NcclMessages:
    """Gathers, scatters, exchanges and messages of :class:`fabric_client.engine.nccl.NcclEngine`.

    Args:
        comm: what to run on; the engine's own.
        rank: of this process.
        size: number of ranks.
    """

    def __init__(self, comm: NcclComm, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.comm = comm
        self._door = DeviceArrays(comm.device)
        self.arrays: ArrayDoor = self._door

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
        blocks = dict(enumerate(blocks_of(out, counts)))
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
        blocks = dict(enumerate(blocks_of(array, counts)))
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
        outgoing = dict(enumerate(blocks_of(source, send_counts)))
        return self.messages(what, outgoing, dict(enumerate(blocks_of(out, recv_counts))), source, out)

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

        outgoing, incoming = (dict(enumerate(blocks_of(one, [1] * self.size))) for one in (sent, came))
        return self.messages("exchange of counts", outgoing, incoming, sent, came, after=fetch), result

    def _start(self, what: str, call: Callable[[Any, int], None], *buffers: DeviceArray | None) -> Pending:
        """Start an operation in the stream of the first buffer."""
        used = [buffer for buffer in buffers if buffer is not None]
        if not any(buffer.nbytes for buffer in used):
            return ENDED
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


def blocks_of(buffer: DeviceArray, counts: Sequence[int]) -> list[Block]:
    """Return where each rank's part is, of so many elements; the parts lie one behind the other."""
    sizes = [count * buffer.dtype.itemsize for count in counts]
    return [(buffer.address + start, size) for start, size in zip(accumulate(sizes, initial=0), sizes, strict=False)]


def _check_tag(tag: int) -> None:
    if tag:
        raise InputError(f"tag {tag}: NCCL has no tags", hint="leave it out; the messages of two ranks come in order")
