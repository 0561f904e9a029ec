"""What all operations of a communicator share: how they are started and what they give back."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from fabric_client.calls import COUNT_MAX, Call, differing, mark_of
from fabric_client.ops import ReduceOp, parse_op
from fabric_client.pending import Pending
from fabricd.errors import EngineError, InputError

if TYPE_CHECKING:
    from fabric_client.runner import Runner

#: What a call gives back: the user's ``out``, or the new result in the kind of the user's input; None for nothing.
Given = tuple[object, Any, object] | None

_PAYLOAD_MAX = 1 << 16
_WORD_BYTES = 7  #: of a payload, in one count: counts are of 63 bits


class Operations:
    """Base of the mixins that :class:`fabric_client.Communicator` is made of.

    Attributes:
        rank: this process's place, 0 to size - 1.
        size: number of ranks.
    """

    rank: int
    size: int

    def __init__(self, runner: "Runner") -> None:
        self.rank = runner.engine.rank
        self.size = runner.engine.size
        self._runner = runner
        self._engine = runner.engine
        self._arrays = runner.engine.arrays

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
        """Run a collective and return what it gives, or start it and return its Work."""
        runner = self._runner
        with runner.collectives:
            if async_op:
                return runner.work(name, name, timeout, nbytes, partial(self._give, given), start, arguments)
            runner.run(name, name, timeout, nbytes, start, arguments)
        return given[0] if given is not None and given[0] is not None else self._give(given)

    def _message(
        self,
        name: str,
        what: str,
        given: Given,
        timeout: float | None,
        async_op: bool,
        nbytes: int,
        start: Callable[..., Pending],
        *arguments: Any,
    ) -> Any:
        """Run an operation between two ranks, or start it; several may run at once."""
        if async_op:
            give = partial(self._give, given)
            return self._runner.work(name, what, timeout, nbytes, give, start, arguments)
        self._runner.run(name, what, timeout, nbytes, start, arguments)
        return self._give(given)

    def _give(self, given: Given) -> Any:
        if given is None:
            return None
        out, result, like = given
        return self._arrays.give(result, like) if out is None else out

    def _reducible(self, array: object, op: str | ReduceOp) -> tuple[Any, ReduceOp]:
        operator = op if type(op) is ReduceOp else parse_op(op)
        source = self._arrays.as_input(array)
        self._arrays.check_reducible(operator, source.dtype)
        return source, operator

    def _check_rank(self, rank: object, what: str) -> None:
        if not is_between(rank, 0, self.size - 1):
            raise InputError(f"{what} {rank!r} is not a rank of this group", hint=f"valid: 0 to {self.size - 1}")

    def _exchange_counts(self, counts: Sequence[int], call: Call, timeout: float | None) -> list[int]:
        """Give ``counts[r]`` to each rank r; return what each gave to this one.

        Args:
            counts: below 2**43.
            call: what they are for. A mark of it goes with each, which costs nothing.
            timeout: seconds.

        Raises:
            InputError: the ranks' calls differ; each rank raises the same.
        """
        mark = mark_of(call)
        if max(counts) > COUNT_MAX:
            raise InputError(f"{call.operation}: {max(counts)} rows are too many to be told", hint="pass counts")
        words = self._exchange_words([mark + count for count in counts], call.operation, timeout)
        received = [word - mark for word in words]
        if min(received) < 0 or max(received) > COUNT_MAX:  # of another mark
            raise differing(call.operation, self._share(call.told(), timeout))
        return received

    def _exchange_words(self, words: Sequence[int], what: str, timeout: float | None) -> list[int]:
        """Give ``words[r]``, of 63 bits, to each rank r; return what each gave to this one, for ``what``."""
        received: list[Iterable[int]] = []

        def start() -> Pending:
            pending, answer = self._engine.exchange_counts(words)
            received.append(answer)
            return pending

        with self._runner.collectives:
            self._runner.run("exchange_counts", what, timeout, 8 * self.size, start)
        return list(map(int, received[0]))

    def _share(self, payload: bytes, timeout: float | None) -> list[bytes]:
        """Give a few bytes to all ranks; return everybody's. For the communicator's own business, on any engine."""
        lengths = self._exchange_words([len(payload)] * self.size, "exchange_counts", timeout)
        if max(lengths) > _PAYLOAD_MAX:
            raise EngineError(f"a rank shares {max(lengths)} bytes: it runs another version, or another operation")
        parts: list[bytearray] = [bytearray() for _ in lengths]
        for first in range(0, max(lengths), _WORD_BYTES):
            word = int.from_bytes(payload[first : first + _WORD_BYTES].ljust(_WORD_BYTES, b"\0"))
            told = self._exchange_words([word] * self.size, "exchange_counts", timeout)
            for part, own in zip(parts, told, strict=True):
                part += own.to_bytes(_WORD_BYTES)
        return [bytes(part[:length]) for part, length in zip(parts, lengths, strict=True)]

    def _exchange_rows(
        self, counts: Sequence[int], source: Any, operation: str, detail: str, timeout: float | None
    ) -> list[int]:
        """Exchange numbers of rows such as those of ``source``; ``detail`` of the call is as in ``Call``."""
        call = Call(operation, source.dtype, source.shape[1:], f" a row, {detail}", not source.shape[0])
        return self._exchange_counts(counts, call, timeout)

    def _rows_of_all(
        self, source: Any, counts: Sequence[int] | None, operation: str, timeout: float | None, detail: str = ""
    ) -> list[int]:
        """Return how many rows each rank has, as given or as exchanged; ``detail`` is of the call then."""
        check_rows(source, operation)
        mine = source.shape[0]
        if counts is None:
            return self._exchange_rows([mine] * self.size, source, operation, f"counts left out{detail}", timeout)
        rows = check_counts(counts, self.size, "counts")
        if rows[self.rank] != mine:
            raise InputError(f"counts give rank {self.rank} {rows[self.rank]} rows, and its array has {mine}")
        return rows

    def _own_rows(self, result: Any, rows: Sequence[int]) -> Any:
        first = sum(rows[: self.rank])
        return result[first : first + rows[self.rank]]


def in_elements(counts: Sequence[int], array: Any) -> list[int]:
    """Return counts of rows as counts of elements."""
    row = 1
    for length in array.shape[1:]:
        row *= length
    return [count * row for count in counts]


def is_between(value: object, least: int, greatest: int) -> bool:
    """Tell whether a value is an integer, of Python's or NumPy's, within bounds."""
    try:
        return hasattr(value, "__index__") and not isinstance(value, bool) and least <= value.__index__() <= greatest
    except TypeError:  # an array of several, or a tensor of another type
        return False


def check_leading_axis(array: Any, size: int, operation: str) -> None:
    """Refuse an array whose first axis does not count the ranks.

    Raises:
        InputError: says the shape it should have.
    """
    if not array.shape or array.shape[0] != size:
        raise InputError(
            f"{operation} takes an array whose first axis counts the {size} ranks, not shape {array.shape}",
            hint=f"array.reshape({size}, -1) makes one when the number of elements is a multiple of {size}",
        )


def check_rows(array: Any, operation: str) -> None:
    """Refuse an array that has no rows.

    Raises:
        InputError: it is 0-d.
    """
    if not array.shape:
        raise InputError(f"{operation} takes an array of rows, not a 0-d one", hint="array.reshape(1)")


def check_counts(counts: object, size: int, what: str, rows: int | None = None) -> list[int]:
    """Return counts of rows, one for each rank, which together are ``rows`` of an array.

    Raises:
        InputError: they are not.
    """
    found = list(counts) if isinstance(counts, Sequence) or hasattr(counts, "__array__") else None  # type: ignore[call-overload]  # iterable either way
    if found is None or len(found) != size or not all(is_between(count, 0, 2**62) for count in found):
        raise InputError(
            f"{what} {counts!r:.100} are not {size} counts of rows", hint="one integer for each rank, from 0"
        )
    if rows is not None and sum(found) != rows:
        raise InputError(f"{what} are {sum(found)} rows together, and the array has {rows}")
    return [int(count) for count in found]
