"""What an engine offers to a communicator. An engine translates a plan; it does not discover."""

from typing import Any, Protocol

from fabric_client.ops import ReduceOp


class Pending(Protocol):
    """An operation that was started."""

    def test(self) -> bool:
        """Drive the operation on and tell whether it has ended; the result is then in place.

        Raises:
            EngineError: it failed.
        """
        ...


class Engine(Protocol):
    """Moves data between the ranks. Every method starts an operation and returns at once.

    Arrays come checked: contiguous, of fitting shape and dtype, inputs and outputs apart unless said otherwise. Where
    an input may be the output itself, it then comes as the same object.
    The communicator keeps them alive until the operation ended.
    """

    name: str
    rank: int
    size: int

    def all_reduce(self, array: Any, out: Any, op: ReduceOp) -> Pending:
        """Combine all ranks' arrays into every rank's ``out``, which may be ``array`` itself."""
        ...

    def reduce(self, array: Any, out: Any | None, op: ReduceOp, root: int) -> Pending:
        """Combine all ranks' arrays into the root's ``out`` (None elsewhere), which may be ``array`` itself."""
        ...

    def reduce_scatter(self, array: Any, out: Any, op: ReduceOp) -> Pending:
        """Combine all ranks' arrays; rank r's ``out`` receives block r."""
        ...

    def all_gather(self, array: Any, out: Any) -> Pending:
        """Put rank r's array into block r of every ``out``; ``array`` may be that block of ``out``."""
        ...

    def all_to_all(self, array: Any, out: Any) -> Pending:
        """Put block r of this rank's array into this rank's block of rank r's ``out``, which may be ``array``."""
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

    def farewell(self) -> Pending:
        """End when every rank has said farewell; never mistaken for a rank's other operations."""
        ...

    def shutdown(self, *, timeout: float) -> bool:
        """End the engine in order, after the farewell; tell whether it ended in time."""
        ...

    def abandon(self) -> None:
        """Give up: a peer is lost. Nothing may be waited for, now or when the process ends."""
        ...

    def describe(self) -> tuple[str, ...]:
        """Return lines for ``explain()``: what runs, from where, with which settings."""
        ...
