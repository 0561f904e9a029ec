"""Arrays of other libraries, as NumPy arrays that share their memory.

Whatever speaks DLPack on the CPU (PyTorch, JAX, and others), and whatever has the buffer protocol (``bytearray``,
``array.array``, ``memoryview``). NumPy has no bfloat16 of its own: with ml_dtypes installed it is that one's.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabricd.errors import InputError

_DLPACK_CPU = 1  # kDLCPU; source: dlpack.h
_DEVICES = {2: "CUDA memory", 3: "CUDA pinned memory", 10: "ROCm memory", 13: "CUDA managed memory"}
#: A torch.dtype without a counterpart in NumPy, by an integer of its size.
_TORCH_CARRIERS = {"torch.bfloat16": "int16"}


def as_numpy(value: object, what: str) -> NDArray[Any]:
    """Return an array over the memory of ``value``, not a copy; read-only where that is.

    Raises:
        InputError: in a GPU's memory, or no array at all.
    """
    if hasattr(value, "__cuda_array_interface__"):
        raise _on_device(value, what, "a GPU's memory")
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, what)
    try:
        return np.asarray(memoryview(value))  # type: ignore[arg-type]  # what is no buffer raises TypeError
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{what} is a {type(value).__name__}, not an array: it has neither the buffer protocol nor DLPack",
            hint="convert it with numpy.asarray(...)",
        ) from error


def like(result: NDArray[Any], original: object) -> Any:
    """Return a result as a torch.Tensor or jax.Array where ``original`` is one; otherwise as it is.

    A tensor shares the result's memory.
    """
    torch = _loaded("torch")
    if torch is not None and isinstance(original, torch.Tensor):
        carrier = _TORCH_CARRIERS.get(str(original.dtype))
        if carrier is None:
            return torch.from_numpy(result)
        return torch.from_numpy(result.view(carrier)).view(original.dtype)
    jax = _loaded("jax")
    if jax is not None and isinstance(original, jax.Array):
        return jax.numpy.asarray(result)
    return result


def _from_dlpack(value: Any, what: str) -> NDArray[Any]:
    try:
        device, _ = value.__dlpack_device__()
    except (BufferError, ValueError) as error:  # torch: a device that DLPack has no number for
        raise _on_device(value, what, f"memory that is not the host's ({error})") from error
    if device != _DLPACK_CPU:
        raise _on_device(value, what, _DEVICES.get(int(device), f"DLPack device {int(device)}"))
    if str(getattr(value, "dtype", "")) in _TORCH_CARRIERS:
        return _carried(value, what)
    try:
        array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if getattr(value, "requires_grad", False):
            raise InputError(
                f"{what} is a tensor that requires grad, and what is received or sent has no gradient",
                hint="pass tensor.detach()",
            ) from error
        return _by_array_method(value, what, error)
    jax = _loaded("jax")
    if jax is not None and isinstance(value, jax.Array):
        array.flags.writeable = False  # its arrays are values: nothing may change them
    return array


def _carried(tensor: Any, what: str) -> NDArray[Any]:
    """Return a bfloat16 tensor's memory as ml_dtypes' bfloat16."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise InputError(
            f"{what} is of {tensor.dtype}, which NumPy does not have", hint="pip install ml_dtypes, or tensor.float()"
        ) from error
    torch = sys.modules["torch"]
    carrier = getattr(torch, _TORCH_CARRIERS[str(tensor.dtype)])
    return as_numpy(tensor.detach().view(carrier), what).view(ml_dtypes.bfloat16)


def _by_array_method(value: object, what: str, error: Exception) -> NDArray[Any]:
    """Return what ``__array__`` gives; JAX's arrays of dtypes that DLPack cannot carry come so, read-only."""
    if not hasattr(value, "__array__"):
        raise InputError(f"{what}: NumPy cannot take this {type(value).__name__}: {error}") from error
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as refused:  # torch: conjugates, sparse tensors, types of 8 bits
        raise InputError(f"{what}: NumPy cannot take this {type(value).__name__}: {refused}") from refused


def _on_device(value: object, what: str, where: str) -> InputError:
    return InputError(
        f"{what} is a {type(value).__name__} in {where}, and the mpi engine moves host memory",
        hint='create the communicator with engine="nccl", or copy it to the host: array.get(), tensor.cpu()',
    )


def _loaded(name: str) -> Any:
    """Return a module if the program has imported it: an array of a library's cannot come from one that has not."""
    return sys.modules.get(name)
