"""Calls that are drawn: a collective, what this rank passes to it, and what must come of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator, InputError, ReduceOp
from tests.contract.expected import BFLOAT16, combined, data, differs, equal
from tests.contract.layouts import Layouts, Target
from tests.contract.subject import Subject

Array = NDArray[Any]

#: Elements, and how often: none, one, few, more than an eager message, more than is reduced in one go.
_SIZES = ((0, 2), (1, 3), (2, 1), (7, 3), (255, 2), (1031, 3), (20_011, 2), (90_001, 1))


@dataclass(slots=True)
class Call:
    """One operation of one rank."""

    name: str
    start: Callable[..., Any]  #: given the keywords ``async_op`` and so on
    wrong: Callable[[Any], str]  #: given its result; "" where all is well
    targets: list[Target] = field(default_factory=list)
    gives_out: bool = False  #: its result is in memory that this object keeps, so that nobody needs its handle

    def check(self, result: Any) -> str:
        """Return what is wrong, or ""."""
        said = self.wrong(result) or next((said for target in self.targets if (said := target.intact())), "")
        return f"{self.name}: {said}" if said else ""


class Reducing:
    """Draws reductions of one communicator, alike on all of its ranks.

    Args:
        comm: which.
        subject: its engine.
        draw: seeded alike on all ranks.
        layouts: this rank's own.
    """

    def __init__(self, comm: Communicator, subject: Subject, draw: np.random.Generator, layouts: Layouts) -> None:
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self._subject = subject
        self.draw = draw
        self.layouts = layouts

    def shape(self) -> tuple[int, ...]:
        """Draw a shape."""
        count = int(self.draw.choice([size for size, _ in _SIZES], p=_weights()))
        form = int(self.draw.integers(4))
        if form == 0 and count == 1:
            return ()
        if form == 1:
            return (count, 1 + int(self.draw.integers(3)))
        return (3, -(-count // 3)) if form == 2 else (count,)

    def dtype(self, *, reduced: bool = False) -> Any:
        """Draw a dtype."""
        choices = [*self._subject.numeric, BFLOAT16, *(() if reduced else self._subject.moved)]
        return choices[int(self.draw.integers(len(choices)))]

    def inputs(self, shape: tuple[int, ...] | list[tuple[int, ...]], dtype: Any) -> list[Array]:
        """Draw what each rank passes."""
        seed = int(self.draw.integers(1 << 40))
        shapes = shape if isinstance(shape, list) else [shape] * self.size
        return [data(seed + rank, own, dtype) for rank, own in enumerate(shapes)]

    def counts(self) -> list[int]:
        """Draw rows of each rank."""
        return [int(count) for count in self.draw.integers(0, 6, self.size)]

    def root(self) -> int:
        """Draw a rank."""
        return int(self.draw.integers(self.size))

    def either(self) -> bool:
        """Draw one of two."""
        return bool(self.draw.integers(2))

    def _reducible(self) -> tuple[Any, ReduceOp]:
        dtype = self.dtype(reduced=True)
        valid = []
        for op in ReduceOp:
            try:
                self.comm._arrays.check_reducible(op, np.dtype(dtype))
            except InputError:
                continue
            valid.append(op)
        return dtype, valid[int(self.draw.integers(len(valid)))]

    def with_out(
        self,
        name: str,
        start: Callable[..., Any],
        mine: Array,
        shape: tuple[int, ...],
        wrong: Callable[[Any], str],
        own: Callable[[Any], Any] | None,
    ) -> Call:
        """Let ``start(source, out)`` make a new array, fill a given one, or work in place.

        Args:
            name: of the call.
            start: calls it, given source, out and keywords.
            mine: what this rank passes.
            shape: of its result.
            wrong: judges a result, as NumPy's array.
            own: the part of ``out`` that ``mine`` may be; None: there is none.
        """
        value = self.layouts.value
        way = self.layouts.way(3 if own is not None else 2)
        if way == 0:
            source = self.layouts.source(mine)

            def wrong_or_changed(result: Any) -> str:
                return wrong(value(result)) or ("" if equal(value(source), mine) == "" else "input changed")

            return Call(name, lambda **more: start(source, None, **more), wrong_or_changed)
        target = self.layouts.target(shape, mine.dtype)
        out = target.array
        if way == 1 or own is None:
            source = self.layouts.source(mine)
        else:
            source = own(out)
            value(source)[...] = mine

        def wrong_out(result: Any) -> str:
            return wrong(target.host) or ("" if result is None or result is out else "returned another array")

        way_name = ("new", "out", "in place")[way]
        return Call(
            f"{name} {way_name}", lambda **more: start(source, out, **more), wrong_out, [target], gives_out=True
        )

    def all_reduce(self) -> Call:
        comm, (dtype, op), shape = self.comm, self._reducible(), self.shape()
        arrays = self.inputs(shape, dtype)
        expected, allowed = combined(arrays, op, wide16=self._subject.wide16)
        return self.with_out(
            f"all_reduce {op} {dtype} {shape}",
            lambda source, out, **more: comm.all_reduce(source, op, out=out, **more),
            arrays[self.rank], shape,
            lambda got: differs(got, expected, allowed, shape, dtype),
            lambda out: out,
        )  # fmt: skip

    def reduce(self) -> Call:
        comm, (dtype, op), shape, root = self.comm, self._reducible(), self.shape(), self.root()
        arrays = self.inputs(shape, dtype)
        expected, allowed = combined(arrays, op, wide16=self._subject.wide16)
        name = f"reduce {op} {dtype} {shape} to {root}"

        def start(source: Any, out: Any, **more: Any) -> Any:
            return comm.reduce(source, op, root, out=out, **more)

        if self.rank != root:
            return self.beside(name, start, arrays[self.rank])
        return self.with_out(
            name, start, arrays[root], shape,
            lambda got: differs(got, expected, allowed, shape, dtype), lambda out: out,
        )  # fmt: skip

    def beside(self, name: str, start: Callable[..., Any], mine: Array) -> Call:
        """A rank that only gives to the root."""
        source = self.layouts.source(mine)

        def wrong(result: Any) -> str:
            if result is not None:
                return "a result beside the root"
            return "" if equal(self.layouts.value(source), mine) == "" else "input changed"

        return Call(name, lambda **more: start(source, None, **more), wrong)

    def reduce_scatter(self) -> Call:
        comm, (dtype, op), block = self.comm, self._reducible(), self.shape()
        arrays = self.inputs((self.size, *block), dtype)
        total, bound = combined(arrays, op, wide16=self._subject.wide16)
        expected, allowed = np.asarray(total[self.rank]), np.asarray(bound[self.rank])
        return self.with_out(
            f"reduce_scatter {op} {dtype} {block}",
            lambda source, out, **more: comm.reduce_scatter(source, op, out=out, **more),
            arrays[self.rank], block,
            lambda got: differs(got, expected, allowed, block, dtype), None,
        )  # fmt: skip

    def reduce_scatter_v(self) -> Call:
        comm, (dtype, op), counts = self.comm, self._reducible(), self.counts()
        row = self.shape()
        arrays = self.inputs((sum(counts), *row), dtype)
        total, bound = combined(arrays, op, wide16=self._subject.wide16)
        own, shape = rows_of(counts, self.rank), (counts[self.rank], *row)
        return self.with_out(
            f"reduce_scatter_v {op} {dtype} {counts} {row}",
            lambda source, out, **more: comm.reduce_scatter_v(source, counts, op, out=out, **more),
            arrays[self.rank], shape,
            lambda got: differs(got, total[own], bound[own], shape, dtype), None,
        )  # fmt: skip


def _weights() -> list[float]:
    total = sum(weight for _, weight in _SIZES)
    return [weight / total for _, weight in _SIZES]


def rows_of(counts: Sequence[int], rank: int) -> slice:
    """Return where the rows of a rank are."""
    first = sum(counts[:rank])
    return slice(first, first + counts[rank])


def joined(arrays: Sequence[Array]) -> Array:
    """Return rows one behind the other; numpy.concatenate would change the byte order."""
    joined = np.empty((sum(len(array) for array in arrays), *arrays[0].shape[1:]), arrays[0].dtype)
    first = 0
    for array in arrays:
        joined[first : first + len(array)] = array
        first += len(array)
    return joined
