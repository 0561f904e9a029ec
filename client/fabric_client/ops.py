"""Reduction operators."""

from enum import StrEnum
from typing import TYPE_CHECKING, Any

from fabricd.errors import InputError

if TYPE_CHECKING:
    import numpy as np


class ReduceOp(StrEnum):
    """How ``all_reduce``, ``reduce_scatter`` and ``reduce`` combine the ranks' elements."""

    __hash__ = str.__hash__  # Enum's own is Python code, which each operation would run four times

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVERAGE = "average"  #: sum divided by the number of ranks; floats and complex only
    LOGICAL_AND = "logical_and"
    LOGICAL_OR = "logical_or"
    LOGICAL_XOR = "logical_xor"
    BITWISE_AND = "bitwise_and"
    BITWISE_OR = "bitwise_or"
    BITWISE_XOR = "bitwise_xor"


#: Kinds of dtypes (``numpy.dtype.kind``) that each operator has a meaning for.
_KINDS: dict[ReduceOp, str] = {
    ReduceOp.SUM: "iufc",
    ReduceOp.PRODUCT: "iufc",
    ReduceOp.MIN: "biuf",
    ReduceOp.MAX: "biuf",
    ReduceOp.AVERAGE: "fc",
    ReduceOp.LOGICAL_AND: "biu",
    ReduceOp.LOGICAL_OR: "biu",
    ReduceOp.LOGICAL_XOR: "biu",
    ReduceOp.BITWISE_AND: "biu",
    ReduceOp.BITWISE_OR: "biu",
    ReduceOp.BITWISE_XOR: "biu",
}
_BY_NAME: dict[str, ReduceOp] = {op.value: op for op in ReduceOp}
_KIND_NAMES = {"b": "bool", "i": "signed integers", "u": "unsigned integers", "f": "floats", "c": "complex"}


def parse_op(op: object) -> ReduceOp:
    """Return the operator of that name.

    Raises:
        InputError: there is none; lists those there are.
    """
    found = _BY_NAME.get(op) if isinstance(op, str) else None
    if found is None:
        raise InputError(f"no operator called {op!r}", hint="valid: " + ", ".join(ReduceOp))
    return found


def reducible(op: ReduceOp, kind: str) -> bool:
    """Tell whether an operator has a meaning for dtypes of this kind."""
    return kind in _KINDS[op]


def is_bfloat16(dtype: "np.dtype[Any]") -> bool:
    """Tell whether a dtype is the bfloat16 of ml_dtypes, which NumPy counts among its void types."""
    return dtype.kind == "V" and dtype.name == "bfloat16"


def check_reducible(op: ReduceOp, dtype: "np.dtype[Any]") -> None:
    """Refuse what cannot be reduced.

    Raises:
        InputError: the operator has no meaning for the dtype, and which kinds it takes; or not in this machine's byte
            order.
    """
    if dtype.kind in _KINDS[op]:
        if not dtype.isnative:
            raise InputError(f"cannot reduce {dtype}: not in this machine's byte order")
    elif not ("f" in _KINDS[op] and is_bfloat16(dtype)):
        valid = ", ".join(_KIND_NAMES[letter] for letter in _KINDS[op])
        raise InputError(f"{op} of {dtype} has no meaning", hint=f"{op} takes {valid}; convert with array.astype(...)")
