"""The NCCL engine: collectives of GPUs through CuPy's binding. Translates a plan, and no more."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fabric_client.engine.base import PendingEngine
from fabric_client.engine.device import DeviceArray
from fabric_client.engine.nccl_comm import NcclComm
from fabric_client.engine.nccl_log import NcclLog
from fabric_client.engine.nccl_messages import NcclMessages, blocks_of
from fabric_client.engine.nccl_split import Split
from fabric_client.engine.nccl_types import BYTES, INT32, nccl_op, nccl_type
from fabric_client.ops import ReduceOp
from fabric_client.pending import Pending
from fabricd.errors import CommunicatorError


class NcclEngine(NcclMessages):
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
        super().__init__(comm, rank, size)
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
        blocks = blocks_of(array, counts)

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
        blocks = blocks_of(out, counts)

        def call(raw: Any, stream: int) -> None:
            with self.comm.group():
                for root, (address, nbytes) in enumerate(blocks):
                    source = array.address if root == self.rank else address
                    if nbytes:
                        raw.broadcast(source, address, nbytes, BYTES, root, stream)

        return self._start("all_gather_v", call, out, array)

    def broadcast(self, array: DeviceArray, root: int) -> Pending:
        """See the protocol."""

        def call(raw: Any, stream: int) -> None:
            raw.broadcast(array.address, array.address, array.nbytes, BYTES, root, stream)

        return self._start("broadcast", call, array)

    def barrier(self) -> Pending:
        """See the protocol. Ends behind what the current stream was given before it, on every rank."""
        token, stream = self._token.address, self.comm.device.stream(None)

        def call(raw: Any) -> None:
            raw.allReduce(token, token, 1, INT32, nccl_op(ReduceOp.MAX), stream)

        return self.comm.start("barrier", call, stream)

    def split(self, color: int | None, key: int) -> PendingEngine:
        """See the protocol."""
        return Split(self.comm, color, key, self.adopt)

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
