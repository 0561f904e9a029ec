"""Builds the ``libnccl.so.2`` of ``tests/nccl_shim``, which moves host memory, and gives its streams to the engine."""

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.c_library import built

_SOURCES = Path(__file__).parents[1] / "nccl_shim"
_PATIENCE_NANOSECONDS = 200_000


@functools.cache
def library_folder() -> Path:
    """Return a folder that holds the library, compiled if its sources changed."""
    return built(_SOURCES, "libnccl.so.2", flags=["-pthread", "-Wl,-soname,libnccl.so.2"])


def load() -> Any:
    """Load the library into this process, where CuPy's binding then finds it; return it."""
    library = ctypes.CDLL(str(library_folder() / "libnccl.so.2"))
    address = ctypes.c_void_p
    for name, result, arguments in (
        ("shim_stream_create", address, ()),
        ("shim_event_record", address, (address,)),
        ("shim_event_query", ctypes.c_int, (address, ctypes.c_long)),
        ("shim_copy", ctypes.c_int, (address, address, ctypes.c_size_t, address)),
        ("shim_compute", None, (ctypes.c_long, address)),
        ("shim_environment", ctypes.c_char_p, (ctypes.c_char_p,)),
        ("shim_count_anew", None, ()),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class HostArray:
    """An array in host memory that describes itself as one of a GPU's, which to the library it is."""

    def __init__(self, data: NDArray[Any]) -> None:
        self.data = data
        self.shape = data.shape
        self.dtype = data.dtype

    def __getitem__(self, part: Any) -> "HostArray":
        """Return a part, which shares the memory, as CuPy's arrays do also for one element."""
        return HostArray(self.data[part if isinstance(part, tuple) else (part, ...)])

    @property
    def T(self) -> "HostArray":  # noqa: N802 - NumPy's name
        """The transpose, which shares the memory."""
        return HostArray(self.data.T)

    def reshape(self, *shape: Any) -> "HostArray":
        """Return the same elements in another shape."""
        return HostArray(self.data.reshape(*shape))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the interface."""
        told = self.data.__array_interface__
        return {key: told[key] for key in ("shape", "typestr", "data", "strides")} | {"version": 3, "stream": None}


class HostEvent:
    """See :class:`fabric_client.engine.device.Event`."""

    def __init__(self, library: Any, stream: int) -> None:
        self._library = library
        self._event = library.shim_event_record(stream)

    def done(self) -> bool:
        """See the protocol. Gives up the core for a moment: ranks and streams of a test share a few."""
        return bool(self._library.shim_event_query(self._event, _PATIENCE_NANOSECONDS))


class HostDevice:
    """Host memory as a device, with the library's streams: see :class:`fabric_client.engine.device.Device`.

    Args:
        identity: two ranks of one identity count as on one GPU.
    """

    def __init__(self, identity: str) -> None:
        self.identity = identity
        self.name = f"host memory as {identity}"
        self.current = 0
        self.library = load()

    def use(self) -> None:
        """See the protocol."""

    def stream(self, owner: object) -> int:
        """See the protocol."""
        return self.current

    def follow(self, stream: int, other: int) -> None:
        """See the protocol."""
        raise AssertionError("all arrays here are used on the current stream")

    def check_memory(self, address: int, what: str) -> None:
        """See the protocol."""
        assert address, what

    def empty(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> HostArray:
        """See the protocol."""
        return HostArray(np.empty(shape, dtype))

    def contiguous(self, array: HostArray) -> HostArray:
        """See the protocol."""
        return HostArray(array.data.copy(order="C"))

    def give(self, array: HostArray, like: object) -> HostArray:
        """See the protocol."""
        return array

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """See the protocol."""
        assert self.library.shim_copy(target, source, nbytes, stream) == 0

    def upload(self, target: int, data: NDArray[Any], stream: int) -> None:
        """See the protocol."""
        ctypes.memmove(target, data.ctypes.data, data.nbytes)

    def download(self, data: NDArray[Any], source: int) -> None:
        """See the protocol."""
        ctypes.memmove(data.ctypes.data, source, data.nbytes)

    def record(self, stream: int) -> HostEvent:
        """See the protocol."""
        return HostEvent(self.library, stream)
