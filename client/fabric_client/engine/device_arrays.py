"""The door for arrays in a GPU's memory: CuPy, PyTorch, JAX, Numba, whatever has ``__cuda_array_interface__``."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from fabric_client.arrays import describe
from fabric_client.engine.device import Device, DeviceArray
from fabric_client.engine.nccl_types import check_reducible
from fabric_client.ops import ReduceOp
from fabricd.errors import InputError

#: Handles that the interface has for streams without an address: the legacy default, and a thread's own.
_LEGACY, _PER_THREAD = 1, 2
#: What the interface says of ml_dtypes' bfloat16, for which it has no name.
_TWO_BYTES = "V2"


class DeviceArrays:
    """See :class:`fabric_client.engine.base.ArrayDoor`.

    Args:
        device: whose memory.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def as_input(self, array: object, what: str = "array") -> DeviceArray:
        """See the protocol. What is not contiguous is copied on the device."""
        self._device.use()
        interface = _interface(array, what)
        if not _is_contiguous(interface):
            array = self._device.contiguous(array)
            interface = _interface(array, what)
        return self._describe(array, interface, what)

    def check_writable(self, out: object, what: str) -> DeviceArray:
        """See the protocol."""
        self._device.use()
        interface = _interface(out, what)
        if not _is_contiguous(interface):
            raise InputError(
                f"{what} is not contiguous (shape {interface['shape']}, strides {interface['strides']})",
                hint="receive into a contiguous array and assign it: view[...] = result",
            )
        if interface["data"][1] or _is_value(out):
            raise InputError(f"{what} is read-only", hint="pass a writable array")
        return self._describe(out, interface, what)

    def as_result(self, out: object, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> DeviceArray:
        """See the protocol."""
        if out is None:
            self._device.use()
            new = self._device.empty(shape, dtype)
            return DeviceArray(new, int(_interface(new, "out")["data"][0]), shape, dtype, self._device.stream(new))
        found = self.check_writable(out, "out")
        if found.shape != shape or found.dtype != dtype:
            raise InputError(
                f"out is {describe(found.shape, found.dtype)}, but the result is {describe(shape, dtype)}",
                hint=f"pass out=cupy.empty({shape}, {str(dtype)!r}), or leave it out",
            )
        return found

    def apart(self, source: DeviceArray, result: DeviceArray, *, allowed: DeviceArray | None) -> DeviceArray:
        """See the protocol."""
        if allowed is not None and source.same_memory(allowed):
            return allowed
        return self.copy(source) if source.overlaps(result) else source

    def copy(self, source: DeviceArray) -> DeviceArray:
        """Return a copy, made in the source's stream."""
        target = self.as_result(None, source.shape, source.dtype)
        self._device.copy(target.address, source.address, source.nbytes, source.stream)
        return DeviceArray(target.owner, target.address, source.shape, source.dtype, source.stream)

    def ready(self, array: object, out: object, op: ReduceOp) -> bool:
        """See the protocol."""
        return False

    def give(self, result: DeviceArray, like: object) -> Any:
        """See the protocol. CuPy arrays, and tensors to those who came with tensors."""
        return self._device.give(result.owner, like)

    def check_reducible(self, op: ReduceOp, dtype: "np.dtype[Any]") -> None:
        """See the protocol."""
        check_reducible(op, dtype)

    def _describe(self, array: Any, interface: Mapping[str, Any], what: str) -> DeviceArray:
        address, stream = int(interface["data"][0]), self._device.stream(array)
        dtype = _dtype(array, interface, what)
        found = DeviceArray(array, address, tuple(int(axis) for axis in interface["shape"]), dtype, stream)
        if found.nbytes:  # nobody needs an address for nothing
            self._device.check_memory(address, what)
        producer = interface.get("stream")
        producer = 0 if producer == _LEGACY else producer
        if producer not in (None, stream, _PER_THREAD):
            self._device.follow(stream, int(producer))
        return found


def _interface(array: Any, what: str) -> Mapping[str, Any]:
    """Return an array's description of itself.

    Raises:
        InputError: not in a GPU's memory, or not all of it.
    """
    if _is_bfloat16_tensor(array):  # the interface has no name for the type; any other of its size will do
        array = array.detach().view(sys.modules["torch"].int16)
    try:
        interface = getattr(array, "__cuda_array_interface__", None)
    except (RuntimeError, TypeError, ValueError) as error:  # a tensor that requires grad, or of a type without name
        raise InputError(f"{what}: {' '.join(str(error).split())}", hint="tensors: pass tensor.detach()") from error
    if interface is None:
        kind = f"{type(array).__module__.partition('.')[0]}.{type(array).__name__}"
        raise InputError(
            f"{what} is a {kind}, which is not in a GPU's memory, and the nccl engine moves nothing else",
            hint="copy it there: cupy.asarray(...), tensor.cuda(); or create the communicator with engine='mpi'",
        )
    if interface.get("mask") is not None:
        raise InputError(f"{what} is masked, and masks are not sent")
    return dict(interface)


def _is_value(array: object) -> bool:
    """Whether it is an array of JAX's, which nothing may change, whatever its description says."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.Array)


def _is_bfloat16_tensor(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor) and array.dtype == torch.bfloat16


def _dtype(array: Any, interface: Mapping[str, Any], what: str) -> "np.dtype[Any]":
    name: Any = interface["typestr"]
    if _is_bfloat16_tensor(array) or (name[1:] == _TWO_BYTES and str(getattr(array, "dtype", "")) == "bfloat16"):
        try:
            import ml_dtypes
        except ImportError as error:
            raise InputError(f"{what} is of bfloat16, which needs ml_dtypes", hint="pip install ml_dtypes") from error
        name = ml_dtypes.bfloat16
    found: np.dtype[Any] = np.dtype(name)
    return found


def _is_contiguous(interface: Mapping[str, Any]) -> bool:
    """Whether the elements lie in C order without gaps. Axes of one element may have any stride."""
    strides = interface.get("strides")
    if strides is None or 0 in interface["shape"]:
        return True
    expected = np.dtype(interface["typestr"]).itemsize
    for length, stride in zip(reversed(interface["shape"]), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True
