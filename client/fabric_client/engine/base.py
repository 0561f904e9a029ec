"""What an engine offers to a communicator. An engine translates a plan; it does not discover."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from fabric_client.ops import ReduceOp
from fabric_client.pending import Pending


class PendingEngine(Pending, Protocol):
    """An engine of some of the ranks, in the making."""

    def engine(self) -> "Engine | None":
        """Return the new engine once :meth:`test` was true; None where this rank is in none."""
        ...


class ArrayDoor(Protocol):
    """Turns users' arrays into an engine's buffers and back: a wrong array is an error here, at nobody's expense.

    A buffer is a checked array in an engine's own form, NumPy's or a description of device memory, contiguous in C
    order. It has ``shape``, ``dtype`` (a ``numpy.dtype``) and ``nbytes``; a slice of it is rows of the same memory.
    """

    def as_input(self, array: object, what: str = "array") -> Any:
        """Return a buffer to read from; what is not contiguous is copied.

        Raises:
            InputError: not an array that this engine can read.
        """
        ...

    def check_writable(self, out: object, what: str) -> Any:
        """Return a buffer to write to: the memory of ``out`` itself.

        Raises:
            InputError: not contiguous, read-only, or no array of this engine.
        """
        ...

    def as_result(self, out: object, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return the buffer that takes a result: of ``out`` when it is not None, else a new one.

        Raises:
            InputError: an ``out`` of another shape or dtype, or that cannot be written to.
        """
        ...

    def apart(self, source: Any, result: Any, *, allowed: Any) -> Any:
        """Return ``source``, or a copy of it when writing ``result`` would overwrite it meanwhile.

        Args:
            source: read by an operation.
            result: written by it.
            allowed: the part of ``result`` that ``source`` may be, exactly: the operation's way to work in place. It
                then comes back as that object, so that the engine knows it by ``is``. None: there is none.
        """
        ...

    def ready(self, array: object, out: object, op: ReduceOp) -> bool:
        """Tell at a glance that ``array`` can be reduced into ``out`` as both are; False where more must be seen.

        Four closer looks are a good part of a small message's time.
        """
        ...

    def give(self, result: Any, like: object) -> Any:
        """Return a new result to the user, in the kind of array that ``like``, the user's input, is."""
        ...

    def check_reducible(self, op: ReduceOp, dtype: Any) -> None:
        """Refuse what this engine cannot reduce.

        Raises:
            InputError: the operator has no meaning for the dtype, or not on this engine; says which have.
        """
        ...


class Engine(Protocol):
    """Moves data between the ranks. Every method starts an operation and returns at once.

    Buffers come checked, from the engine's own ``arrays``: contiguous, of fitting shape and dtype, inputs and outputs
    apart unless said otherwise. Where an input may be the output itself, it then comes as the same object, or for a
    part of the output as a slice of it. The communicator keeps them alive until the operation ended.

    Several operations may be pending at once. All ranks start collectives in the same order, but test them in any:
    an operation whose ``test`` starts messages of its own must keep those apart from operations that were started
    after it, for example by a queue that works off in the order of the starts.

    Counts are of elements, of all axes together, one for each rank; blocks lie one behind the other without gaps.

    Attributes:
        name: "mpi", "nccl".
        rank: of this process in this engine.
        size: number of ranks.
        arrays: what it takes.
    """

    name: str
    rank: int
    size: int
    arrays: ArrayDoor

    @property
    def direct_memory(self) -> bool | None:
        """Whether GPUs' memory goes to network cards directly. None: not known, or the engine's is of hosts."""
        ...

    def all_reduce(self, array: Any, out: Any, op: ReduceOp) -> Pending:
        """Combine all ranks' arrays into every rank's ``out``, which may be ``array`` itself."""
        ...

    def reduce(self, array: Any, out: Any | None, op: ReduceOp, root: int) -> Pending:
        """Combine all ranks' arrays into the root's ``out`` (None elsewhere), which may be ``array`` itself."""
        ...

    def reduce_scatter(self, array: Any, out: Any, op: ReduceOp) -> Pending:
        """Combine all ranks' arrays; rank r's ``out`` receives block r."""
        ...

    def reduce_scatter_v(self, array: Any, out: Any, op: ReduceOp, counts: Sequence[int]) -> Pending:
        """Combine all ranks' arrays; rank r's ``out`` receives block r, of ``counts[r]`` elements."""
        ...

    def all_gather(self, array: Any, out: Any) -> Pending:
        """Put rank r's array into block r of every ``out``; ``array`` may be that block of ``out``."""
        ...

    def all_gather_v(self, array: Any, out: Any, counts: Sequence[int]) -> Pending:
        """Put rank r's array, of ``counts[r]`` elements, into block r of every ``out``; it may be that block."""
        ...

    def gather(self, array: Any, out: Any | None, root: int) -> Pending:
        """Put rank r's array into block r of the root's ``out`` (None elsewhere); there it may be that block."""
        ...

    def gather_v(self, array: Any, out: Any | None, counts: Sequence[int] | None, root: int) -> Pending:
        """Put rank r's array into block r, of ``counts[r]`` elements, of the root's ``out``; it may be that block.

        ``out`` and ``counts`` are None on the other ranks.
        """
        ...

    def scatter(self, array: Any | None, out: Any, root: int) -> Pending:
        """Put block r of the root's array (None elsewhere) into rank r's ``out``; on the root it may be that block."""
        ...

    def scatter_v(self, array: Any | None, out: Any, counts: Sequence[int] | None, root: int) -> Pending:
        """Put block r, of ``counts[r]`` elements, of the root's array into rank r's ``out``; it may be that block.

        ``array`` and ``counts`` are None on the other ranks.
        """
        ...

    def all_to_all(self, array: Any, out: Any) -> Pending:
        """Put block r of this rank's array into this rank's block of rank r's ``out``, which may be ``array``."""
        ...

    def all_to_all_v(self, array: Any, send_counts: Sequence[int], out: Any, recv_counts: Sequence[int]) -> Pending:
        """Put block r, of ``send_counts[r]`` elements, of this rank's array into this rank's block of rank r's ``out``.

        There it is of the ``recv_counts`` of that rank.
        """
        ...

    def broadcast(self, array: Any, root: int) -> Pending:
        """Copy the root's array into everybody's."""
        ...

    def send(self, array: Any, dest: int, tag: int) -> Pending:
        """Send to one rank."""
        ...

    def receive(self, out: Any, source: int, tag: int) -> Pending:
        """Receive from one rank exactly as many bytes as ``out`` has."""
        ...

    def exchange(self, array: Any, dest: int, out: Any, source: int, tag: int) -> Pending:
        """Send to one rank and receive from one, at once."""
        ...

    def barrier(self) -> Pending:
        """End when every rank has come."""
        ...

    def exchange_counts(self, counts: Sequence[int]) -> tuple[Pending, Iterable[int]]:
        """Give ``counts[r]``, from 0 to 2**63 - 1, to each rank r.

        What each rank gave to this one is in the second, when the first has ended.
        """
        ...

    def split(self, color: int | None, key: int) -> PendingEngine:
        """Make an engine of the ranks of one color, in the order of their keys, then of their ranks.

        A color of None is in none. Collective over all ranks of this engine.
        """
        ...

    def farewell(self) -> Pending:
        """End when every rank has said farewell; never mistaken for a rank's other operations."""
        ...

    def shutdown(self, *, timeout: float) -> bool:
        """End the engine in order, after the farewell; tell whether it ended in time.

        One that was made by ``split`` ends alone; the first ends with all that were made of it.
        """
        ...

    def abandon(self) -> None:
        """Give up: a peer is lost. Nothing may be waited for, now or when the process ends."""
        ...

    def describe(self) -> tuple[str, ...]:
        """Return lines for ``explain()``: what runs, from where, with which settings."""
        ...
