"""What the MPI engine moves and does not compute with: any dtype, as bytes. And the barrier."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fabric_client.arrays import Array, same_memory
from fabric_client.engine.mpi_library import MPI
from fabric_client.engine.mpi_requests import Both, MpiPending, block_of, blocks_in_bytes, in_bytes, map_error
from fabric_client.pending import Pending
from fabricd.errors import InputError


class MpiMoves:
    """Gathers, scatters, exchanges and messages of :class:`fabric_client.engine.mpi.MpiEngine`.

    Args:
        comm: what to run on; the engine's own.
    """

    def __init__(self, comm: Any) -> None:
        self.rank = int(comm.Get_rank())
        self.size = int(comm.Get_size())
        self.comm = comm

    def all_gather(self, array: Array, out: Array) -> Pending:
        """See the protocol."""
        own = out[self.rank : self.rank + 1]
        source = MPI.IN_PLACE if same_memory(array, own) else in_bytes(array)
        return self.start(self.comm.Iallgather, source, in_bytes(out, array.nbytes))

    def all_gather_v(self, array: Array, out: Array, counts: Sequence[int]) -> Pending:
        """See the protocol."""
        own = block_of(out, counts, self.rank)
        source = MPI.IN_PLACE if same_memory(array, own) else in_bytes(array)
        return self.start(self.comm.Iallgatherv, source, blocks_in_bytes(out, counts))

    def gather(self, array: Array, out: Array | None, root: int) -> Pending:
        """See the protocol."""
        if out is None:
            return self.start(self.comm.Igather, in_bytes(array), None, root)
        own = out[self.rank : self.rank + 1]
        source = MPI.IN_PLACE if same_memory(array, own) else in_bytes(array)
        return self.start(self.comm.Igather, source, in_bytes(out, array.nbytes), root)

    def gather_v(self, array: Array, out: Array | None, counts: Sequence[int] | None, root: int) -> Pending:
        """See the protocol."""
        if out is None or counts is None:
            return self.start(self.comm.Igatherv, in_bytes(array), None, root)
        own = block_of(out, counts, self.rank)
        source = MPI.IN_PLACE if same_memory(array, own) else in_bytes(array)
        return self.start(self.comm.Igatherv, source, blocks_in_bytes(out, counts), root)

    def scatter(self, array: Array | None, out: Array, root: int) -> Pending:
        """See the protocol."""
        if array is None:
            return self.start(self.comm.Iscatter, None, in_bytes(out), root)
        own = array[self.rank : self.rank + 1]
        target = MPI.IN_PLACE if same_memory(out, own) else in_bytes(out)
        return self.start(self.comm.Iscatter, in_bytes(array, out.nbytes), target, root)

    def scatter_v(self, array: Array | None, out: Array, counts: Sequence[int] | None, root: int) -> Pending:
        """See the protocol."""
        if array is None or counts is None:
            return self.start(self.comm.Iscatterv, None, in_bytes(out), root)
        own = block_of(array, counts, self.rank)
        target = MPI.IN_PLACE if same_memory(out, own) else in_bytes(out)
        return self.start(self.comm.Iscatterv, blocks_in_bytes(array, counts), target, root)

    def all_to_all(self, array: Array, out: Array) -> Pending:
        """See the protocol. MPI's way to work in place is another algorithm, which all ranks would have to choose."""
        block = array.nbytes // self.size
        source = array.copy() if array is out else array
        return self.start(self.comm.Ialltoall, in_bytes(source, block), in_bytes(out, block))

    def all_to_all_v(self, array: Array, send_counts: Sequence[int], out: Array, recv_counts: Sequence[int]) -> Pending:
        """See the protocol."""
        source, target = blocks_in_bytes(array, send_counts), blocks_in_bytes(out, recv_counts)
        return self.start(self.comm.Ialltoallv, source, target)

    def broadcast(self, array: Array, root: int) -> Pending:
        """See the protocol."""
        return self.start(self.comm.Ibcast, in_bytes(array), root)

    def send(self, array: Array, dest: int, tag: int) -> Pending:
        """See the protocol."""
        return self.start(self.comm.Isend, in_bytes(array), dest, tag)

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

        return self.start(self.comm.Irecv, in_bytes(out), source, tag, after=check_length, status=status)

    def exchange(self, array: Array, dest: int, out: Array, source: int, tag: int) -> Pending:
        """See the protocol."""
        # The receive first: its place is known when the message comes.
        return Both(self.receive(out, source, tag), self.send(array, dest, tag))

    def barrier(self) -> Pending:
        """See the protocol."""
        return self.start(self.comm.Ibarrier)

    def exchange_counts(self, counts: Sequence[int]) -> tuple[Pending, Array]:
        """See the protocol."""
        mine, theirs = np.array(counts, np.int64), np.empty(self.size, np.int64)
        return self.start(self.comm.Ialltoall, in_bytes(mine, 8), in_bytes(theirs, 8)), theirs

    def start(
        self, function: Callable[..., Any], *arguments: Any, after: Callable[[], None] | None = None, status: Any = None
    ) -> MpiPending:
        """Start an operation of MPI's.

        Args:
            function: mpi4py's.
            arguments: of it; kept until it has ended.
            after: called when it has.
            status: filled when it has.
        """
        try:
            return MpiPending(function(*arguments), after, status, keep=arguments)
        except MPI.Exception as error:
            raise map_error(error) from error
