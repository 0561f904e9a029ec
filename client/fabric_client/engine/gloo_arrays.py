"""Arrays for Gloo: those of :mod:`fabric_client.arrays`, as tensors, and what Gloo can compute with."""

from typing import Any

import numpy as np
import torch

from fabric_client import arrays
from fabric_client.arrays import Array
from fabric_client.ops import ReduceOp, is_bfloat16
from fabric_client.ops import check_reducible as has_meaning
from fabricd.errors import InputError

_LOGICAL = (ReduceOp.LOGICAL_AND, ReduceOp.LOGICAL_OR, ReduceOp.LOGICAL_XOR)
#: Of which sizes Gloo has arithmetic, by kind of dtype; 16-bit floats are reduced in float32, complex as two reals.
#: Source: PyTorch 2.13, ProcessGroupGloo.cpp, GENERATE_ALL_TYPES.
_SIZES = {"b": (1,), "i": (1, 4, 8), "u": (1,), "f": (2, 4, 8), "c": (8, 16)}


class GlooArrays:
    """An :class:`fabric_client.engine.base.ArrayDoor` for host memory."""

    as_input = staticmethod(arrays.as_input)
    check_writable = staticmethod(arrays.check_writable)
    as_result = staticmethod(arrays.as_result)
    apart = staticmethod(arrays.apart)
    give = staticmethod(arrays.give)

    def ready(self, array: object, out: object, op: ReduceOp) -> bool:
        """See the protocol."""
        return False

    def check_reducible(self, op: ReduceOp, dtype: "np.dtype[Any]") -> None:
        """See the protocol."""
        has_meaning(op, dtype)
        if op in _LOGICAL:
            raise InputError(f"Gloo has no {op}", hint="bitwise operators of bool arrays give the same")
        if dtype.kind == "c" and op is ReduceOp.PRODUCT:
            raise InputError("Gloo has no product of complex numbers", hint='engine="mpi" has')
        if not is_bfloat16(dtype) and dtype.itemsize not in _SIZES[dtype.kind]:
            raise InputError(
                f"Gloo does not reduce {dtype}",
                hint="bool, int8, uint8, int32, int64, float16, bfloat16, float32, float64, complex64 and complex128 "
                'it does; convert with array.astype(...), or take engine="mpi"',
            )


def as_bytes(array: Array) -> torch.Tensor:
    """Return a tensor over the bytes of a contiguous array; of a copy of a read-only one, which tensors cannot be."""
    flat = array.reshape(-1)
    if not flat.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy((flat if flat.flags.writeable else flat.copy()).view(np.uint8))


def as_numbers(array: Array) -> torch.Tensor:
    """Return a tensor over the numbers of a contiguous, writable array that Gloo computes with."""
    flat = array.reshape(-1)
    if flat.dtype.kind == "b":  # false and true are 0 and 1
        flat = flat.view(np.uint8)
    elif flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    return torch.from_numpy(flat)
