"""A communicator whose ranks compare their calls first; see ``create_communicator(check_calls=True)``."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fabric_client.calls import Call
from fabric_client.communicator import Communicator
from fabric_client.operations import Given
from fabric_client.ops import ReduceOp
from fabric_client.pending import Pending
from fabric_client.runner import Runner
from fabricd.errors import InputError

_SHOWN = 4


class CheckedCommunicator(Communicator):
    """Before each collective the ranks tell one another what they call. Where that differs, every rank raises the same.

    By small messages that any engine has. They are waited for, with ``async_op`` as well. Nothing has been moved then,
    so the communicator is as it was.
    """

    def _collective(
        self,
        name: str,
        given: Given,
        timeout: float | None,
        async_op: bool,
        nbytes: int,
        start: Callable[..., Pending],
        *arguments: Any,
    ) -> Any:
        call = call_of(name, arguments)
        flows = _flows(name, arguments, self.rank, self.size)
        if flows is None:
            self._exchange_counts([0] * self.size, call, timeout)
        else:
            self._compare_flows(*flows, call, timeout)
        return super()._collective(name, given, timeout, async_op, nbytes, start, *arguments)

    def _compare_flows(self, sent: Sequence[int], expected: Sequence[int], call: Call, timeout: float | None) -> None:
        """Refuse counts that do not fit together: only the two ranks that exchange something know theirs."""
        came = self._exchange_counts(sent, call, timeout)
        wrong = [
            f"rank {rank} gives rank {self.rank} {count} elements, which expects {fits}"
            for rank, (count, fits) in enumerate(zip(came, expected, strict=True))
            if count != fits
        ]
        if not any(self._exchange_counts([len(wrong)] * self.size, call, timeout)):
            return
        told = [text.decode() for text in self._share("".join(wrong[:1]).encode(), timeout) if text]
        raise InputError(
            f"{call.operation}: the ranks' counts differ: {'; '.join(told[:_SHOWN])}",
            hint="nothing was moved, and the communicator is as it was",
            details={"counts": told},
        )

    def _derive(
        self, what: str, color: int | None, key: int, name: str, timeout: float | None
    ) -> "Communicator | None":
        self._exchange_counts([0] * self.size, Call(what, detail=f" {name}" if what == "subgroup" else ""), timeout)
        return super()._derive(what, color, key, name, timeout)

    def explain(self) -> str:
        """Return the plan in a few lines; see :meth:`Communicator.explain`."""
        return f"{super().explain()}\ncalls: compared by all ranks before each collective (check_calls)"


def asked_by_any(runner: Runner, wanted: bool, timeout: float) -> bool:
    """Tell whether any rank wants calls compared; collective, over an engine of host memory. For where no plan says it.

    Args:
        runner: of all ranks.
        wanted: what this one wants.
        timeout: seconds.
    """
    told = np.array([wanted], np.uint8)
    runner.run("create", "create", timeout, 1, runner.engine.all_reduce, (told, told, ReduceOp.MAX))
    return bool(told[0])


def call_of(operation: str, arguments: Sequence[Any]) -> Call:
    """Return what must be the same on all ranks of a collective.

    Args:
        operation: its name.
        arguments: those that an engine gets for it.
    """
    if not arguments:
        return Call(operation)
    array = arguments[1 if operation in ("scatter", "scatter_v") else 0]  # there only the root has a first one
    words = [str(one) if isinstance(one, ReduceOp) else f"root {one}" for one in arguments if _is_word(one)]
    by_rows = operation.endswith("_v")
    detail = "".join([" a row" if by_rows else "", *(f", {word}" for word in words)])
    return Call(operation, array.dtype, array.shape[1:] if by_rows else array.shape, detail)


def _is_word(argument: object) -> bool:
    return isinstance(argument, ReduceOp | int | np.integer)


def _flows(
    operation: str, arguments: Sequence[Any], rank: int, size: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return how many elements this rank gives to each rank, and expects of each; None where the call says it all."""
    nothing = [0] * size
    match operation, *arguments:
        case "reduce_scatter_v", _, _, _, counts:
            return counts, [counts[rank]] * size
        case "all_gather_v", _, _, counts:
            return [counts[rank]] * size, counts
        case "all_to_all_v", _, sent, _, received:
            return sent, received
        case "gather_v", array, _, counts, root:
            return _only(root, _elements(array), size), nothing if counts is None else counts
        case "scatter_v", _, out, counts, root:
            return nothing if counts is None else counts, _only(root, _elements(out), size)
    return None


def _only(rank: int, count: int, size: int) -> list[int]:
    return [count if other == rank else 0 for other in range(size)]


def _elements(buffer: Any) -> int:
    return math.prod(buffer.shape)
