"""Arrays as programs have them: strided, backwards, read-only, unaligned, of a subclass, or of another library."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.contract.expected import BFLOAT16
from tests.contract.subject import Subject
from tests.support.nccl_library import HostArray

Array = NDArray[Any]

#: On both sides of what receives a result; nothing may write there.
_GUARD_BYTES = 48
_GUARD = 0xA5


class Labelled(np.ndarray):
    """A subclass, as libraries of units and of labels have them; computing and slicing are its own."""

    __array_ufunc__ = None

    def __getitem__(self, key: Any) -> Any:
        """Count rows from one, as nobody should."""
        return super().__getitem__(key - 1 if isinstance(key, int) else key)


def _strided(array: Array) -> Array:
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _read_only(array: Array) -> Array:
    own = np.copy(array)
    own.flags.writeable = False
    return own


def unaligned(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return memory that begins at an odd address."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, np.zeros(nbytes + 1, np.uint8), offset=1)


def _unaligned(array: Array) -> Array:
    own = unaligned(array.shape, array.dtype)
    own[...] = array
    return own


def _tensor(array: Array) -> Any:
    return sys.modules["torch"].from_numpy(np.copy(array))


#: For any array of an axis or more.
_ANYWHERE: tuple[Callable[[Array], Any], ...] = (
    np.copy, _read_only, _strided, lambda array: np.copy(array[::-1])[::-1], lambda array: np.copy(array.T).T,
)  # fmt: skip


class Layouts:
    """Makes arrays of an engine, in a layout that is drawn.

    Args:
        subject: the engine.
        draw: this rank's own: what others pass is theirs.
    """

    def __init__(self, subject: Subject, draw: np.random.Generator) -> None:
        self._subject = subject
        self._draw = draw
        self._host = subject.name != "nccl"

    def _one_of(self, choices: list[Any]) -> Any:
        return choices[int(self._draw.integers(len(choices)))]

    def way(self, ways: int) -> int:
        """Draw where a result goes: 0: a new array, 1: a given one, 2: in place."""
        return int(self._draw.integers(ways))

    def source(self, array: Array) -> Any:
        """Return a copy to read from."""
        makers: list[Callable[[Array], Any]] = list(_ANYWHERE) if array.ndim else [np.copy]
        if self._host:
            makers += [_unaligned, lambda one: np.copy(one).view(Labelled)]
            plain = array.dtype.kind in "biufc" and array.dtype.isnative and array.dtype != BFLOAT16
            if plain:
                makers.append(lambda one: memoryview(np.copy(one)))
            if plain and "torch" in sys.modules and array.dtype.char in "?bBhilefdFD":
                makers.append(_tensor)
            if array.ndim == 2:
                makers.append(lambda one: np.copy(one).view(np.matrix))
        made = self._one_of(makers)(array)
        return made if self._host else HostArray(made)

    def target(self, shape: tuple[int, ...], dtype: Any) -> "Target":
        """Return what receives a result."""
        return Target(self._subject, shape, np.dtype(dtype), self._one_of([0, 16, 1] if self._host else [0, 16]))

    def value(self, array: Any) -> Any:
        """Return what an array of any layout holds, as NumPy's own; what is none comes back as it is."""
        if isinstance(array, np.ndarray):
            return np.asarray(array)
        if isinstance(array, memoryview):
            return np.asarray(array)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            return array.numpy()
        return self._subject.get(array)


class Target:
    """Memory for a result, with guards around it.

    Args:
        subject: the engine.
        shape: of the result.
        dtype: of the result.
        offset: bytes from an aligned address.
    """

    def __init__(self, subject: Subject, shape: tuple[int, ...], dtype: "np.dtype[Any]", offset: int) -> None:
        nbytes = int(np.prod(shape)) * dtype.itemsize
        self._bytes = np.full(nbytes + 2 * _GUARD_BYTES + offset, _GUARD, np.uint8)
        self._first, self._last = _GUARD_BYTES + offset, _GUARD_BYTES + offset + nbytes
        self.host: Array = np.ndarray(shape, dtype, self._bytes, offset=self._first)
        self.array: Any = self.host if subject.name != "nccl" else HostArray(self.host)

    def intact(self) -> str:
        """Return "" unless something was written beside it."""
        around = (self._bytes[: self._first], self._bytes[self._last :])
        return "" if all(bool((part == _GUARD).all()) for part in around) else "written beyond the array"
