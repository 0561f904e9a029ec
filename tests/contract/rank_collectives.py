"""One rank of the contract of collectives: every cell against NumPy. Prints {"cells": N, "wrong": [...]} as JSON.

Every rank makes the data of all ranks, so it knows what each result must be. Results of integers, minima, maxima and
moved data must be exact; sums, products and averages of floats may differ by the bound of :func:`tolerance`, because
an engine adds in its own order.
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator, InputError, ReduceOp, create_communicator
from fabric_client.ops import check_reducible

Array = NDArray[Any]
Cell = Callable[[], str]

#: Every numeric type that NumPy has on this platform, and bool.
NUMERIC = "?bBhHiIlLqQefdgFDG"
#: Of data that are only moved, in addition.
MOVED = ["M8[ns]", "S5", "U3", ">i4", [("a", "i1"), ("b", "f8")]]
#: Elements: none, 0-d, an odd few, more than an eager message of most types.
SHAPES: list[tuple[int, ...]] = [(0,), (), (3, 5), (20_011,)]

_FUNCTIONS: dict[ReduceOp, Callable[[Any, Any], Any]] = {
    ReduceOp.SUM: np.add,
    ReduceOp.AVERAGE: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.LOGICAL_AND: np.logical_and,
    ReduceOp.LOGICAL_OR: np.logical_or,
    ReduceOp.LOGICAL_XOR: np.logical_xor,
    ReduceOp.BITWISE_AND: np.bitwise_and,
    ReduceOp.BITWISE_OR: np.bitwise_or,
    ReduceOp.BITWISE_XOR: np.bitwise_xor,
}
_EXACT = (ReduceOp.MIN, ReduceOp.MAX)


def data(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a rank's array: pseudo-random, of moderate size, with zeros and negative numbers."""
    draw = np.random.default_rng([rank, *shape])
    numbers = draw.integers(-4, 5, size=shape)
    kind = np.dtype(dtype).kind
    if kind == "c":
        return np.asarray(numbers / 4 + 1j * draw.integers(-4, 5, size=shape) / 4, dtype)
    if kind == "f":
        return np.asarray(numbers / 8 + draw.random(shape) / 64, dtype)
    if kind in "iu":
        return np.asarray(numbers).astype(dtype)
    if kind == "b":
        return np.asarray(numbers > 0)
    raw = draw.integers(32, 127, size=(*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    if kind == "U":
        return np.char.mod("%03d", np.asarray(numbers) + 10 * rank).astype(dtype).reshape(shape)
    return raw.reshape(-1).view(dtype).reshape(shape)


def combined(arrays: list[Array], op: ReduceOp) -> tuple[Array, Array]:
    """Return what NumPy makes of all ranks' arrays, and how far an engine's result may be from it."""
    dtype = arrays[0].dtype
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(dtype.kind, dtype)
    total = np.asarray(reduce(_FUNCTIONS[op], [array.astype(wide) for array in arrays]))
    if op is ReduceOp.AVERAGE:
        total = total / len(arrays)
    return total, tolerance(arrays, op, total)


def tolerance(arrays: list[Array], op: ReduceOp, total: Array) -> Array:
    """Return the greatest error allowed of each element.

    n - 1 additions in any order differ by at most (n - 1) * eps * sum(|x|) to first order, a product by (n - 1) * eps
    of itself (complex: twice as much), a final rounding or division by eps more. float16 is computed in float32, so
    that only its own final rounding counts: half an eps of the result, or of the smallest normal number.
    """
    dtype = arrays[0].dtype
    if dtype.kind not in "fc" or op in _EXACT:
        return np.zeros(total.shape)
    size = len(arrays)
    eps = np.finfo(dtype).eps
    if dtype == np.float16:
        return np.maximum(np.abs(total), np.finfo(dtype).tiny) * eps / 2 * 1.01
    if op is ReduceOp.PRODUCT:
        return np.abs(total) * (2 * size + 1) * eps * (2 if dtype.kind == "c" else 1) + np.finfo(dtype).tiny
    magnitude = np.asarray(sum(np.abs(array.astype(np.clongdouble)) for array in arrays))
    return magnitude * (size + 1) * eps


def differs(got: Any, expected: Array, allowed: Array, shape: tuple[int, ...], dtype: Any) -> str:
    """Return what is wrong with a result, or ""."""
    if not isinstance(got, np.ndarray) or got.shape != shape or got.dtype != np.dtype(dtype):
        return (
            f"{type(got).__name__} {getattr(got, 'dtype', '')} {getattr(got, 'shape', '')} instead of {dtype} {shape}"
        )
    if not np.any(allowed):
        wrong = got != expected.astype(got.dtype)
    else:
        wrong = ~(np.abs(got.astype(np.clongdouble) - expected) <= allowed)
    count = int(np.count_nonzero(wrong))
    return f"{count} of {got.size} elements wrong" if count else ""


class Contract:
    """All cells for one communicator."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.size = comm.size
        self.cells = 0
        self.wrong: list[str] = []

    def check(self, name: str, said: str) -> None:
        self.cells += 1
        if said:
            self.wrong.append(f"{name}: {said}")

    def run(self) -> None:
        for shape in SHAPES:
            for dtype in NUMERIC:
                for op in ReduceOp:
                    if self.has_meaning(op, dtype):
                        self.reductions(shape, dtype, op)
                    else:
                        self.refused(shape, dtype, op)
            for dtype in [*NUMERIC, *MOVED]:
                self.moves(shape, dtype)
        self.strided()
        self.overlapping()

    def has_meaning(self, op: ReduceOp, dtype: str) -> bool:
        try:
            check_reducible(op, np.dtype(dtype))
        except InputError:
            return False
        return True

    def refused(self, shape: tuple[int, ...], dtype: str, op: ReduceOp) -> None:
        """What has no meaning is refused on every rank alike, and leaves the ranks in step."""
        try:
            self.comm.all_reduce(data(0, shape, dtype), op)
        except InputError:
            self.check("refused", "")
        else:
            self.check(f"all_reduce {op} {dtype}", "was not refused")

    def inputs(self, shape: tuple[int, ...], dtype: Any) -> list[Array]:
        return [data(rank, shape, dtype) for rank in range(self.size)]

    def ways(self, mine: Array) -> Iterator[tuple[str, Array, Array | None]]:
        """Yield new array, given array, and in place."""
        yield "new", mine, None
        yield "out", mine, np.empty_like(mine)
        own = mine.copy()
        yield "in place", own, own

    def reductions(self, shape: tuple[int, ...], dtype: str, op: ReduceOp) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        mine = arrays[comm.rank]
        expected, allowed = combined(arrays, op)
        name = f"{op} {dtype} {shape}"
        for way, source, out in self.ways(mine):
            before = None if way == "in place" else source.copy()
            got = comm.all_reduce(source, op, out=out)
            self.check(f"all_reduce {name} {way}", differs(got, expected, allowed, shape, dtype))
            self.check(f"all_reduce {name} {way}", "" if out is None or got is out else "returned another array")
            self.check(
                f"all_reduce {name} {way}", "" if before is None or np.array_equal(source, before) else "input changed"
            )
        ways = list(self.ways(mine))
        for turn in range(max(self.size, len(ways))):  # every root and every way, but not each with each
            root, (way, source, out) = turn % self.size, ways[turn % len(ways)]
            result = comm.reduce(source, op, root, out=out)
            if comm.rank == root:
                self.check(f"reduce {name} {way} {root}", differs(result, expected, allowed, shape, dtype))
            else:
                self.check(f"reduce {name} {root}", "" if result is None else "a result beside the root")
        self.scatter((self.size, *shape), dtype, op)

    def scatter(self, shape: tuple[int, ...], dtype: str, op: ReduceOp) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        expected, allowed = (part[comm.rank] for part in combined(arrays, op))
        for way, out in (("new", None), ("out", np.empty(shape[1:], dtype))):
            got = comm.reduce_scatter(arrays[comm.rank], op, out=out)
            said = differs(got, np.asarray(expected), np.asarray(allowed), shape[1:], dtype)
            self.check(f"reduce_scatter {op} {dtype} {shape} {way}", said)

    def moves(self, shape: tuple[int, ...], dtype: Any) -> None:
        self.gather(shape, dtype)
        self.exchange_blocks((self.size, *shape), dtype)
        comm, arrays = self.comm, self.inputs(shape, dtype)
        for root in range(self.size):
            array = arrays[root].copy() if comm.rank == root else np.empty(shape, dtype)
            got = comm.broadcast(array, root)
            self.check(f"broadcast {dtype} {shape} {root}", equal(got, arrays[root]))
            self.check("broadcast", "" if got is array else "returned another array")
        if self.size > 1:
            self.messages(shape, dtype)

    def gather(self, shape: tuple[int, ...], dtype: Any) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        everything = stacked(arrays)
        mine = arrays[comm.rank]
        self.check(f"all_gather {dtype} {shape}", equal(comm.all_gather(mine), everything))
        out = np.empty((self.size, *shape), dtype)
        self.check(f"all_gather {dtype} {shape} out", equal(comm.all_gather(mine, out=out), everything))
        out = np.zeros((self.size, *shape), dtype)
        out[comm.rank] = mine
        block = out[comm.rank : comm.rank + 1].reshape(shape)  # a view, also of a 0-d block
        self.check(f"all_gather {dtype} {shape} in place", equal(comm.all_gather(block, out=out), everything))

    def exchange_blocks(self, shape: tuple[int, ...], dtype: Any) -> None:
        comm, arrays = self.comm, self.inputs(shape, dtype)
        expected = stacked([array[comm.rank : comm.rank + 1].reshape(shape[1:]) for array in arrays])
        for way, source, out in self.ways(arrays[comm.rank]):
            self.check(f"all_to_all {dtype} {shape} {way}", equal(comm.all_to_all(source, out=out), expected))

    def messages(self, shape: tuple[int, ...], dtype: Any) -> None:
        """A ring of send and recv, and one of sendrecv."""
        comm, arrays = self.comm, self.inputs(shape, dtype)
        after, before = (comm.rank + 1) % self.size, (comm.rank - 1) % self.size
        out = np.empty(shape, dtype)
        if comm.rank == 0:
            comm.send(arrays[0], after, tag=5)
            comm.recv(out, before, tag=5)
        else:
            comm.recv(out, before, tag=5)
            comm.send(arrays[comm.rank], after, tag=5)
        self.check(f"send {dtype} {shape}", equal(out, arrays[before]))
        out = np.empty(shape, dtype)
        got = comm.sendrecv(arrays[comm.rank], after, out, before)
        self.check(f"sendrecv {dtype} {shape}", equal(got, arrays[before]))

    def strided(self) -> None:
        """A strided input is copied; the result is what a contiguous one gives."""
        comm = self.comm
        whole = [data(rank, (6, 8), "f8") for rank in range(self.size)]
        expected, allowed = combined([array[:, ::2] for array in whole], ReduceOp.SUM)
        got = comm.all_reduce(whole[comm.rank][:, ::2])
        self.check("strided all_reduce", differs(got, expected, allowed, (6, 4), "f8"))
        gathered = comm.all_gather(whole[comm.rank].T)
        self.check("strided all_gather", equal(gathered, np.stack([array.T for array in whole])))

    def overlapping(self) -> None:
        """An ``out`` that overlaps the input in another way than in place works, too."""
        comm = self.comm
        arrays = self.inputs((100,), "i4")
        buffer = np.zeros(150, "i4")
        buffer[:100] = arrays[comm.rank]
        got = comm.all_reduce(buffer[:100], out=buffer[50:150])
        self.check("overlapping all_reduce", equal(got, sum(arrays)))
        blocks = self.inputs((self.size, 10), "i4")
        own = blocks[comm.rank].copy()
        got = comm.reduce_scatter(own, out=own[comm.rank])
        self.check("in place reduce_scatter", equal(got, sum(array[comm.rank] for array in blocks)))


def stacked(arrays: list[Array]) -> Array:
    """Return the arrays as blocks of one; numpy.stack would change the byte order."""
    blocks = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
    for block, array in enumerate(arrays):
        blocks[block] = array
    return blocks


def equal(got: Any, expected: Any) -> str:
    expected = np.asarray(expected)
    fits = isinstance(got, np.ndarray) and got.shape == expected.shape and got.dtype == expected.dtype
    return "" if fits and np.array_equal(got, expected) else f"{got!r:.100} is not {expected!r:.100}"


def main() -> None:
    with create_communicator() as comm:
        contract = Contract(comm)
        with np.errstate(over="ignore"):
            contract.run()
        json.dump({"cells": contract.cells, "wrong": contract.wrong[:20]}, sys.stdout)


if __name__ == "__main__":
    main()
