"""NCCL's dtypes and operators by ours. Source: NCCL 2.30, nccl.h (ncclDataType_t, ncclRedOp_t)."""

from typing import Any

import numpy as np

from fabric_client import arrays
from fabric_client.ops import ReduceOp, is_bfloat16
from fabricd.errors import InputError

#: What is only moved, is moved as bytes.
BYTES = 1
INT32 = 2
_BFLOAT16 = 9
#: By kind and size, which names them on every platform.
_TYPES = {
    "i1": 0, "u1": 1, "b1": 1, "i4": 2, "u4": 3, "i8": 4, "u8": 5, "f2": 6, "f4": 7, "f8": 8,
    "c8": 7, "c16": 8,  # a complex number is two of these
}  # fmt: skip
_OPS = {ReduceOp.SUM: 0, ReduceOp.PRODUCT: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3, ReduceOp.AVERAGE: 4}


def nccl_op(op: ReduceOp) -> int:
    """Return the operator's number."""
    return _OPS[op]


def nccl_type(dtype: "np.dtype[Any]") -> tuple[int, int]:
    """Return the dtype's number, and how many of NCCL's elements one of ours is."""
    if is_bfloat16(dtype):
        return _BFLOAT16, 1
    return _TYPES[f"{dtype.kind}{dtype.itemsize}"], 2 if dtype.kind == "c" else 1


def check_reducible(op: ReduceOp, dtype: "np.dtype[Any]") -> None:
    """Refuse what NCCL cannot reduce.

    Raises:
        InputError: says what it can.
    """
    arrays.check_reducible(op, dtype)  # what has no meaning, has none here either
    if op not in _OPS:
        raise InputError(f"NCCL has no {op}", hint="it has " + ", ".join(sorted(_OPS)))
    if not is_bfloat16(dtype) and f"{dtype.kind}{dtype.itemsize}" not in _TYPES:
        raise InputError(
            f"NCCL cannot reduce {dtype}",
            hint="it has integers of 1, 4 and 8 bytes, bool, float16, bfloat16, float32, float64, and their complex",
        )
    if dtype.kind == "c" and op is ReduceOp.PRODUCT:
        raise InputError(f"NCCL has no complex numbers, and cannot multiply {dtype}", hint="it can add them")
