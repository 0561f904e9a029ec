"""Which engines the contract is checked on, and how each differs from what NumPy does."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator, create_communicator
from tests.support.nccl_library import HostArray, HostDevice

Array = NDArray[Any]


def _same(array: Any) -> Any:
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine under test."""

    name: str
    create: Callable[[], Communicator]
    #: What is reduced, as characters of NumPy's types; bfloat16 is added where ml_dtypes is installed.
    numeric: str
    #: Data that are only moved, in addition.
    moved: tuple[Any, ...]
    put: Callable[[Array], Any] = _same  #: a copy in the engine's memory; it can be sliced and reshaped as NumPy's
    get: Callable[[Any], Any] = _same  #: back; what is no array of the engine comes back as it is
    tags: bool = True
    wide16: bool = True  #: 16-bit floats are reduced in float32 and rounded once
    splits: bool = True
    crosses: bool = True  #: a message under way does not hold up one that was started after it


def _create_nccl() -> Communicator:
    device = HostDevice(f"gpu{os.environ['RANK']}")
    return create_communicator(engine="nccl", device=device)


def _create_gloo() -> Communicator:
    return create_communicator(engine="gloo")


SUBJECTS = {
    "mpi": Subject(
        name="mpi",
        create=create_communicator,
        numeric="?bBhHiIlLqQefdgFDG",  # every numeric type that NumPy has on this platform
        moved=("M8[ns]", "S5", "U3", ">i4", [("a", "i1"), ("b", "f8")]),
        put=np.copy,
    ),
    # Over the tests' library, which reduces as NCCL does: 16-bit floats step by step in their own precision.
    "nccl": Subject(
        name="nccl",
        create=_create_nccl,
        numeric="?bBiIlLqQefdFD",
        moved=(">i4", "M8[ns]", "h"),
        put=lambda array: HostArray(np.copy(array)),
        get=lambda value: value.data if isinstance(value, HostArray) else value,
        tags=False,
        wide16=False,
        crosses=False,
    ),
    # What PyTorch's Gloo has arithmetic for.
    "gloo": Subject(
        name="gloo",
        create=_create_gloo,
        numeric="?bBilefdFD",
        moved=("g", ">i4", [("a", "i1"), ("b", "f8")]),
        put=np.copy,
    ),
}
