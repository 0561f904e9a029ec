"""The cells of what combines arrays."""

from typing import Any

import numpy as np

from fabric_client import InputError, ReduceOp
from tests.contract.cells import LARGE, SHAPES, Cells
from tests.contract.expected import combined, data, differs, equal

#: The large arrays go through each operator's own arithmetic once more; these are the ways an engine can go wrong.
LARGE_OPS = (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MIN, ReduceOp.BITWISE_XOR)


class Reductions(Cells):
    def reductions(self) -> None:
        for shape in SHAPES:
            for dtype in self.numeric:
                for op in ReduceOp:
                    if not self.has_meaning(op, dtype):
                        self.refused(shape, dtype, op)
                    elif shape != LARGE or op in LARGE_OPS:
                        self.reduce_all_ways(shape, dtype, op)
        self.varying_scatter()
        self.overlapping()

    def has_meaning(self, op: ReduceOp, dtype: Any) -> bool:
        try:
            self.comm._arrays.check_reducible(op, np.dtype(dtype))
        except InputError:
            return False
        return True

    def refused(self, shape: tuple[int, ...], dtype: Any, op: ReduceOp) -> None:
        """What has no meaning is refused on every rank alike, and leaves the ranks in step."""
        try:
            self.comm.all_reduce(self.put(data(0, shape, dtype)), op)
        except InputError:
            self.check("refused", "")
        else:
            self.check(f"all_reduce {op} {dtype}", "was not refused")

    def reduce_all_ways(self, shape: tuple[int, ...], dtype: Any, op: ReduceOp) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        mine = arrays[comm.rank]
        expected, allowed = combined(arrays, op, wide16=self.subject.wide16)
        name = f"{op} {dtype} {shape}"
        for way, source, out in self.ways(mine):
            got = comm.all_reduce(source, op, out=out)
            self.check(f"all_reduce {name} {way}", differs(self.get(got), expected, allowed, shape, dtype))
            self.check(f"all_reduce {name} {way}", "" if out is None or got is out else "returned another array")
            if way != "in place":
                unchanged = np.array_equal(self.get(source), mine)
                self.check(f"all_reduce {name} {way}", "" if unchanged else "input changed")
        ways = list(self.ways(mine))
        for turn in range(max(self.size, len(ways))):  # every root and every way, but not each with each
            root, (way, source, out) = turn % self.size, ways[turn % len(ways)]
            result = comm.reduce(source, op, root, out=out)
            if comm.rank == root:
                self.check(f"reduce {name} {way} {root}", differs(self.get(result), expected, allowed, shape, dtype))
            else:
                self.check(f"reduce {name} {root}", "" if result is None else "a result beside the root")
        self.scatter((self.size, *shape), dtype, op)

    def scatter(self, shape: tuple[int, ...], dtype: Any, op: ReduceOp) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        total, bound = combined(arrays, op, wide16=self.subject.wide16)
        expected, allowed = np.asarray(total[comm.rank]), np.asarray(bound[comm.rank])
        for way, out in (("new", None), ("out", self.empty(shape[1:], dtype))):
            got = comm.reduce_scatter(self.put(arrays[comm.rank]), op, out=out)
            said = differs(self.get(got), expected, allowed, shape[1:], dtype)
            self.check(f"reduce_scatter {op} {dtype} {shape} {way}", said)

    def varying_scatter(self) -> None:
        """Rank r gets r + 1 rows, and rank 0 none in the second turn."""
        comm = self.comm
        for turn in (1, 0):
            counts = [rank + turn for rank in range(self.size)]
            first = sum(counts[: comm.rank])
            own = slice(first, first + counts[comm.rank])
            for dtype in self.numeric:
                for op in (ReduceOp.SUM, ReduceOp.AVERAGE, ReduceOp.MAX):
                    if not self.has_meaning(op, dtype):
                        continue
                    arrays = self.inputs((sum(counts), 3), dtype)
                    total, bound = combined(arrays, op, wide16=self.subject.wide16)
                    for out in (None, self.empty((counts[comm.rank], 3), dtype)):
                        got = comm.reduce_scatter_v(self.put(arrays[comm.rank]), counts, op, out=out)
                        said = differs(self.get(got), total[own], bound[own], (counts[comm.rank], 3), dtype)
                        self.check(f"reduce_scatter_v {op} {dtype} {counts}", said)

    def overlapping(self) -> None:
        """An ``out`` that overlaps the input in another way than in place works, too."""
        comm, arrays = self.comm, self.inputs((100,), "i4")
        buffer = self.put(np.concatenate([arrays[comm.rank], np.zeros(50, "i4")]))
        got = comm.all_reduce(buffer[:100], out=buffer[50:150])
        self.check("overlapping all_reduce", equal(self.get(got), sum(arrays)))
        blocks = self.inputs((self.size, 10), "i4")
        own = self.put(blocks[comm.rank])
        got = comm.reduce_scatter(own, out=own[comm.rank])
        self.check("in place reduce_scatter", equal(self.get(got), sum(array[comm.rank] for array in blocks)))
        whole = [data(rank, (6, 8), "f8") for rank in range(self.size)]
        expected, allowed = combined([array[:, ::2] for array in whole], ReduceOp.SUM)
        got = comm.all_reduce(self.put(whole[comm.rank])[:, ::2])  # strided: copied
        self.check("strided all_reduce", differs(self.get(got), expected, allowed, (6, 4), "f8"))
