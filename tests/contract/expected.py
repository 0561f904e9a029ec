"""What each rank passes in, what NumPy makes of it, and how far an engine's result may be from that."""

from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fabric_client import ReduceOp

Array = NDArray[Any]

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

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


def kind_of(dtype: Any) -> str:
    """Return the kind that a dtype counts as; NumPy takes bfloat16 for raw bytes."""
    return "f" if dtype == BFLOAT16 else str(np.dtype(dtype).kind)


def data(rank: int, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a rank's array: pseudo-random, of moderate size, with zeros and negative numbers. Read-only."""
    found = np.dtype(dtype)
    array = _data(rank, shape, found, found.char)  # "q" equals "l"
    array.flags.writeable = False
    return array


@lru_cache(maxsize=64)
def _data(rank: int, shape: tuple[int, ...], dtype: "np.dtype[Any]", char: str) -> Array:
    draw = np.random.default_rng([rank, *shape])
    numbers = draw.integers(-4, 5, size=shape)
    kind = kind_of(dtype)
    if kind == "c":
        return np.asarray(numbers / 4 + 1j * draw.integers(-4, 5, size=shape) / 4, dtype)
    if kind == "f":
        return np.asarray(numbers / 8 + draw.random(shape) / 64).astype(dtype)
    if kind in "iu":
        return np.asarray(numbers).astype(dtype)
    if kind == "b":
        return np.asarray(numbers > 0)
    raw = draw.integers(32, 127, size=(*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    if kind == "U":
        return np.char.mod("%03d", np.asarray(numbers) + 10 * rank).astype(dtype).reshape(shape)
    return raw.reshape(-1).view(dtype).reshape(shape)


def forget() -> None:
    """Let go of arrays that might be asked for again."""
    _data.cache_clear()


def combined(arrays: list[Array], op: ReduceOp, *, wide16: bool = True) -> tuple[Array, Array]:
    """Return what NumPy makes of all ranks' arrays, and how far an engine's result may be from it."""
    dtype = arrays[0].dtype
    wide = {"f": np.longdouble, "c": np.clongdouble}.get(kind_of(dtype), dtype)
    total = np.asarray(reduce(_FUNCTIONS[op], [array.astype(wide) for array in arrays]))
    if op is ReduceOp.AVERAGE:
        total = total / len(arrays)
    return total, tolerance(arrays, op, total, wide16=wide16)


def tolerance(arrays: list[Array], op: ReduceOp, total: Array, *, wide16: bool = True) -> Array:
    """Return the greatest error allowed of each element.

    n - 1 additions in any order differ by at most (n - 1) * eps * sum(|x|) to first order, a product by (n - 1) * eps
    of itself (complex: twice as much), a final rounding or division by eps more. Where float16 and bfloat16 are
    computed in float32, only their own final rounding counts: half an eps of the result, or of the smallest normal
    number.
    """
    dtype = arrays[0].dtype
    kind = kind_of(dtype)
    if kind not in "fc" or op in _EXACT:
        return np.zeros(total.shape)
    size = len(arrays)
    limits = ml_dtypes.finfo(dtype) if dtype == BFLOAT16 else np.finfo(dtype)
    eps, tiny = float(limits.eps), float(limits.tiny)
    if dtype.itemsize == 2 and wide16:
        return np.maximum(np.abs(total), tiny) * eps / 2 * 1.01
    if op is ReduceOp.PRODUCT:
        return np.abs(total) * (2 * size + 1) * eps * (2 if kind == "c" else 1) + tiny
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


def stacked(arrays: list[Array]) -> Array:
    """Return the arrays as blocks of one; numpy.stack would change the byte order."""
    blocks = np.empty((len(arrays), *arrays[0].shape), arrays[0].dtype)
    for block, array in enumerate(arrays):
        blocks[block] = array
    return blocks


def equal(got: Any, expected: Any) -> str:
    """Return what is wrong with data that were only moved, or ""."""
    expected = np.asarray(expected)
    fits = isinstance(got, np.ndarray) and got.shape == expected.shape and got.dtype == expected.dtype
    return "" if fits and np.array_equal(got, expected) else f"{got!r:.100} is not {expected!r:.100}"
