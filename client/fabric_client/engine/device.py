"""What an engine of GPU collectives needs of a GPU, and arrays in its memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray


class Event(Protocol):
    """A place in a stream's work."""

    def done(self) -> bool:
        """Tell whether the stream has come to it. Never blocks.

        Raises:
            EngineError: the device has failed.
        """
        ...


class Device(Protocol):
    """One GPU of this process. Streams are handles of the driver's, as integers; 0 is the default stream.

    Attributes:
        name: for people, e.g. ``"GPU 0 (NVIDIA H200, 0000:17:00.0)"``.
        identity: tells it from all other GPUs of its host, in every container alike.
    """

    name: str
    identity: str

    def use(self) -> None:
        """Make it the one that the calling thread works with."""
        ...

    def stream(self, owner: object) -> int:
        """Return the stream that the program works with now, in the library that ``owner`` is an array of."""
        ...

    def follow(self, stream: int, other: int) -> None:
        """Let what ``stream`` is given from now on wait for what ``other`` was given so far."""
        ...

    def check_memory(self, address: int, what: str) -> None:
        """Refuse memory that is not of this device.

        Raises:
            InputError: says whose it is.
        """
        ...

    def empty(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> Any:
        """Return a new array, for use on the current stream; it has ``__cuda_array_interface__``."""
        ...

    def contiguous(self, array: Any) -> Any:
        """Return a copy of an array, contiguous in C order, made on the current stream."""
        ...

    def give(self, array: Any, like: object) -> Any:
        """Return an array of :meth:`empty` in the kind that ``like`` is, where the libraries can share memory."""
        ...

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """Copy within the device's memory, in a stream's turn."""
        ...

    def upload(self, target: int, data: NDArray[Any], stream: int) -> None:
        """Copy from the host, in a stream's turn; ``data`` may be used again at once."""
        ...

    def download(self, data: NDArray[Any], source: int) -> None:
        """Copy to the host what was written before; ``data`` is there on return."""
        ...

    def record(self, stream: int) -> Event:
        """Return the place behind all that a stream was given so far."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """Contiguous memory of a device: a buffer; see :class:`fabric_client.engine.base.ArrayDoor`."""

    owner: Any  #: the user's array, or one of ``Device.empty``; keeps the memory alive
    address: int
    shape: tuple[int, ...]
    dtype: "np.dtype[Any]"
    stream: int  #: on which the program uses it

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def __getitem__(self, part: slice) -> Self:
        """Return some rows."""
        start, stop, _ = part.indices(self.shape[0])
        rows = max(0, stop - start)
        row = prod(self.shape[1:]) * self.dtype.itemsize
        return replace(self, address=self.address + start * row, shape=(rows, *self.shape[1:]))

    def same_memory(self, other: "DeviceArray") -> bool:
        """Tell whether both are exactly the same bytes."""
        return self.address == other.address and self.nbytes == other.nbytes

    def overlaps(self, other: "DeviceArray") -> bool:
        """Tell whether any byte is part of both."""
        return self.address < other.address + other.nbytes and other.address < self.address + self.nbytes
