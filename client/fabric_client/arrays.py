"""The door for arrays in host memory: a wrong array is an error here, not a hang or garbage at the peers.

As a module it is an :class:`fabric_client.engine.base.ArrayDoor`; MPI reduces what NumPy can. Its buffers are NumPy
arrays, which share the memory of what the user passed.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import foreign
from fabric_client.ops import ReduceOp, reducible
from fabric_client.ops import check_reducible as check_reducible
from fabricd.errors import InputError

Array = NDArray[Any]

_ndarray = np.ndarray
_NUMBERS = tuple(np.dtype(character) for character in "?bBhHiIlLqQfdgFDG")
_READY = frozenset((op, dtype) for op in ReduceOp for dtype in _NUMBERS if reducible(op, dtype.kind))


def as_input(array: object, what: str = "array") -> Array:
    """Return an array to read from: contiguous, in C order. A strided one is copied.

    Raises:
        InputError: no array in host memory, or one that holds Python objects.
    """
    if type(array) is not np.ndarray:
        array = _as_array(array, what)
    if array.dtype.hasobject:
        raise InputError(f"{what} holds Python objects (dtype {array.dtype}), which only its own process can read")
    # ascontiguousarray would make a 0-d array 1-d.
    return array if array.flags.c_contiguous else array.copy(order="C")


def as_output(out: object, shape: tuple[int, ...], dtype: "np.dtype[Any]", what: str = "out") -> Array:
    """Return an array to write to, of exactly this shape and dtype.

    Raises:
        InputError: another shape or dtype, not contiguous, read-only, or no array.
    """
    array = check_writable(out, what)
    if array.shape != shape or (array.dtype is not dtype and array.dtype != dtype):
        raise InputError(
            f"{what} is {describe(array.shape, array.dtype)}, but the result is {describe(shape, dtype)}",
            hint=f"pass {what}=numpy.empty({shape}, {str(dtype)!r}), or leave it out",
        )
    return array


def check_writable(out: object, what: str) -> Array:
    """Return ``out`` when data can be received into it as it lies.

    Raises:
        InputError: not contiguous, read-only, holds Python objects, or no array in host memory.
    """
    if type(out) is not np.ndarray:
        out = _as_array(out, what)
    if not out.flags.c_contiguous:
        raise InputError(
            f"{what} is not contiguous (shape {out.shape}, strides {out.strides})",
            hint="receive into a contiguous array and assign it: view[...] = result",
        )
    if not out.flags.writeable:
        raise InputError(f"{what} is read-only", hint="pass a writable array")
    if out.dtype.hasobject:
        raise InputError(f"{what} holds Python objects (dtype {out.dtype}), which only their own process can read")
    return out


def _as_array(value: object, what: str) -> Array:
    """Return what shares the memory of an array of a subclass, or of another library; refuse what is one in part.

    A subclass may slice and compute in ways of its own: numpy.matrix has two axes whatever is taken of it.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise InputError(f"{what} is masked, and masks are not sent", hint="pass array.filled(...) or array.data")
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) else foreign.as_numpy(value, what)


def as_result(out: object, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    """Return the array that takes the result: ``out`` when given, else a new one.

    Raises:
        InputError: an ``out`` that cannot take it.
    """
    if out is None:
        return np.empty(shape, dtype)
    if type(out) is np.ndarray and out.dtype is dtype and out.shape == shape and out.flags.carray:
        return out  # the usual one, for small messages: all that as_output asks
    return as_output(out, shape, dtype)


def ready(array: object, out: object, op: ReduceOp) -> bool:
    """Tell at a glance that ``array`` can be reduced into ``out`` as both are; see the protocol."""
    if type(array) is not _ndarray or type(out) is not _ndarray:
        return False
    dtype, read, written = array.dtype, array.flags, out.flags
    return (
        out.dtype is dtype
        and (op, dtype) in _READY
        and array.shape == out.shape
        and read.c_contiguous
        and written.carray
        and (array is out or (read.owndata and written.owndata))
    )


def give(result: Array, like: object) -> Any:
    """Return a new result in the kind of array that ``like``, the user's input, is."""
    return result if isinstance(like, np.ndarray) else foreign.like(result, like)


def same_memory(one: Array, other: Array) -> bool:
    """Tell whether two contiguous arrays are exactly the same bytes."""
    if one is other:
        return True
    if one.nbytes != other.nbytes or not np.may_share_memory(one, other):
        return False
    return _address(one) == _address(other)


def apart(source: Array, result: Array, *, allowed: Array | None) -> Array:
    """Return ``source``, or a copy of it when writing ``result`` would overwrite it meanwhile.

    What is exactly ``allowed`` comes back as that object, so that an engine sees by ``is`` that it works in place.

    Args:
        source: read by an operation.
        result: written by it; contiguous like ``source``.
        allowed: the part of ``result`` that ``source`` may be, exactly: the operation's way to work in place.
    """
    if source is allowed or not np.may_share_memory(source, result):
        return source
    return allowed if allowed is not None and same_memory(source, allowed) else source.copy()


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def describe(shape: tuple[int, ...], dtype: "np.dtype[Any]") -> str:
    """Return e.g. ``"float32 of shape (4, 3)"``."""
    return f"{dtype} of shape {shape}"
