"""Calls that are drawn, continued: what moves arrays."""

from collections.abc import Callable
from typing import Any

from tests.contract.calls import Array, Call, Reducing, joined, rows_of
from tests.contract.expected import equal, stacked


class Calls(Reducing):
    """Draws collectives of one communicator, alike on all of its ranks."""

    def any(self) -> Call:
        """Draw one."""
        makers = [
            self.all_reduce, self.all_reduce, self.reduce, self.reduce_scatter, self.reduce_scatter_v,
            self._broadcast, self._all_gather, self._all_gather_v, self._gather, self._gather_v, self._scatter,
            self._scatter_v, self._all_to_all, self._all_to_all_v, self._barrier,
        ]  # fmt: skip
        return makers[int(self.draw.integers(len(makers)))]()

    def _broadcast(self) -> Call:
        comm, shape, dtype, root = self.comm, self.shape(), self.dtype(), self.root()
        expected = self.inputs(shape, dtype)[root]
        name = f"broadcast {dtype} {shape} from {root}"
        value = self.layouts.value
        if self.rank == root:
            source = self.layouts.source(expected)
            return Call(
                name, lambda **more: comm.broadcast(source, root, **more), lambda got: equal(value(got), expected)
            )
        target = self.layouts.target(shape, dtype)
        return Call(
            name, lambda **more: comm.broadcast(target.array, root, **more),
            lambda got: equal(target.host, expected), [target], gives_out=True,
        )  # fmt: skip

    def _all_gather(self) -> Call:
        comm, shape, dtype = self.comm, self.shape(), self.dtype()
        arrays = self.inputs(shape, dtype)
        everything = stacked(arrays)
        return self.with_out(
            f"all_gather {dtype} {shape}", lambda source, out, **more: comm.all_gather(source, out=out, **more),
            arrays[self.rank], everything.shape, lambda got: equal(got, everything), self._block_of,
        )  # fmt: skip

    def _block_of(self, out: Any) -> Any:
        """Return this rank's block, a view also where it is 0-d."""
        return out[self.rank : self.rank + 1].reshape(out.shape[1:])

    def _all_gather_v(self) -> Call:
        comm, dtype, counts, row, known = self.comm, self.dtype(), self.counts(), self.shape(), self.either()
        arrays = self.inputs([(count, *row) for count in counts], dtype)
        everything, given = joined(arrays), counts if known else None
        return self.with_out(
            f"all_gather_v {dtype} {counts} {row} {known}",
            lambda source, out, **more: comm.all_gather_v(source, counts=given, out=out, **more),
            arrays[self.rank], everything.shape, lambda got: equal(got, everything),
            lambda out: out[rows_of(counts, self.rank)],
        )  # fmt: skip

    def _gather(self) -> Call:
        comm, shape, dtype, root = self.comm, self.shape(), self.dtype(), self.root()
        arrays = self.inputs(shape, dtype)
        everything = stacked(arrays)
        name = f"gather {dtype} {shape} to {root}"

        def start(source: Any, out: Any, **more: Any) -> Any:
            return comm.gather(source, root, out=out, **more)

        if self.rank != root:
            return self.beside(name, start, arrays[self.rank])
        return self.with_out(
            name, start, arrays[root], everything.shape, lambda got: equal(got, everything), self._block_of
        )

    def _gather_v(self) -> Call:
        comm, dtype, counts, row, root = self.comm, self.dtype(), self.counts(), self.shape(), self.root()
        arrays = self.inputs([(count, *row) for count in counts], dtype)
        everything, given = joined(arrays), counts if self.either() else None
        name = f"gather_v {dtype} {counts} {row} to {root}"

        def start(source: Any, out: Any, **more: Any) -> Any:
            return comm.gather_v(source, root, counts=given, out=out, **more)

        if self.rank != root:
            return self.beside(name, start, arrays[self.rank])
        return self.with_out(
            name, start, arrays[root], everything.shape, lambda got: equal(got, everything),
            lambda out: out[rows_of(counts, root)],
        )  # fmt: skip

    def _scatter(self) -> Call:
        comm, block, dtype, root = self.comm, self.shape(), self.dtype(), self.root()
        blocks = self.inputs((self.size, *block), dtype)[root]
        return self._from_root(
            f"scatter {dtype} {block} from {root}", blocks, blocks[self.rank : self.rank + 1].reshape(block), root,
            lambda source, out, **more: comm.scatter(source, root, out=out, **more),
        )  # fmt: skip

    def _scatter_v(self) -> Call:
        comm, counts, row, dtype, root = self.comm, self.counts(), self.shape(), self.dtype(), self.root()
        whole = self.inputs((sum(counts), *row), dtype)[root]
        return self._from_root(
            f"scatter_v {dtype} {counts} {row} from {root}", whole, whole[rows_of(counts, self.rank)], root,
            lambda source, out, **more: comm.scatter_v(source, counts, root, out=out, **more),
        )  # fmt: skip

    def _from_root(self, name: str, whole: Array, expected: Array, root: int, start: Callable[..., Any]) -> Call:
        way = self.layouts.way(2)
        source = self.layouts.source(whole) if self.rank == root else None
        if self.rank == root and way == 0:
            return Call(
                name, lambda **more: start(source, None, **more),
                lambda got: equal(self.layouts.value(got), expected),
            )  # fmt: skip
        target = self.layouts.target(expected.shape, expected.dtype)
        return Call(
            name, lambda **more: start(source, target.array, **more), lambda got: equal(target.host, expected),
            [target], gives_out=True,
        )  # fmt: skip

    def _all_to_all(self) -> Call:
        comm, block, dtype = self.comm, self.shape(), self.dtype()
        arrays = self.inputs((self.size, *block), dtype)
        expected = stacked([array[self.rank : self.rank + 1].reshape(block) for array in arrays])
        return self.with_out(
            f"all_to_all {dtype} {block}", lambda source, out, **more: comm.all_to_all(source, out=out, **more),
            arrays[self.rank], expected.shape, lambda got: equal(got, expected), lambda out: out,
        )  # fmt: skip

    def _all_to_all_v(self) -> Call:
        comm, dtype, row = self.comm, self.dtype(), self.shape()
        sent = [self.counts() for _ in range(self.size)]
        arrays = self.inputs([(sum(counts), *row) for counts in sent], dtype)
        expected = joined([array[rows_of(counts, self.rank)] for counts, array in zip(sent, arrays, strict=True)])
        given = [counts[self.rank] for counts in sent] if self.either() else None
        return self.with_out(
            f"all_to_all_v {dtype} {sent} {row}",
            lambda source, out, **more: comm.all_to_all_v(source, sent[self.rank], recv_counts=given, out=out, **more),
            arrays[self.rank], expected.shape, lambda got: equal(got, expected), None,
        )  # fmt: skip

    def _barrier(self) -> Call:
        return Call("barrier", self.comm.barrier, lambda got: "" if got is None else "a result")
