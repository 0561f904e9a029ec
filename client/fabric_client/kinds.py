"""Kinds of arrays, for the types of operations: what comes back is of the kind that went in.

Where an operation keeps the number of axes, its result has the type of ``array``; where it adds or drops one, a NumPy
array of the same dtype. An ``out`` is of that kind, too; with ``async_op=True`` it is a ``Work``. For what else is
passed, buffers as ``bytearray``, NumPy's scalars, an ``out`` of another kind, the types say nothing.
"""

from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from fabric_client.ops import ReduceOp


class ArrayLike(Protocol):
    """NumPy's arrays, PyTorch's, JAX's, CuPy's."""

    @property
    def shape(self) -> Any:
        """Lengths of the axes."""
        ...

    @property
    def dtype(self) -> Any:
        """Of the library."""
        ...

    def __len__(self) -> int: ...


Kind = TypeVar("Kind", bound=ArrayLike)
Out = TypeVar("Out")  #: whatever receives
Scalar = TypeVar("Scalar", bound=np.generic)
Seconds = float | None
Op = str | ReduceOp
Yes = Literal[True]
No = Literal[False]
