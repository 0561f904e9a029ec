"""A GPU of this process, through CuPy."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import cupy
import numpy as np
from cupy.cuda import runtime
from numpy.typing import NDArray

from fabricd.errors import EngineError, InputError, UnavailableError

#: Set by launchers: which of its host's ranks a process is. torchrun, Open MPI, MPICH and MVAPICH, Slurm.
LOCAL_RANKS = (
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)


class CudaEvent:
    """See :class:`fabric_client.engine.device.Event`."""

    __slots__ = ("_event",)

    def __init__(self, stream: int) -> None:
        self._event = cupy.cuda.Event(block=False, disable_timing=True)
        runtime.eventRecord(self._event.ptr, stream)

    @property
    def handle(self) -> int:
        """The driver's."""
        return int(self._event.ptr)

    def done(self) -> bool:
        """See the protocol."""
        with _mapped():
            return bool(self._event.done)


class CudaDevice:
    """See :class:`fabric_client.engine.device.Device`.

    Args:
        index: among those that this process sees.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self.identity = str(runtime.deviceGetPCIBusId(index)).lower()
        model = runtime.getDeviceProperties(index)["name"]
        self.name = f"GPU {index} ({model.decode(errors='replace')}, {self.identity})"

    def use(self) -> None:
        """See the protocol."""
        if runtime.getDevice() != self._index:
            runtime.setDevice(self._index)

    def stream(self, owner: object) -> int:
        """See the protocol."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(owner, torch.Tensor):
            return int(torch.cuda.current_stream(self._index).cuda_stream)
        return int(cupy.cuda.get_current_stream(self._index).ptr)

    def follow(self, stream: int, other: int) -> None:
        """See the protocol."""
        with _mapped():
            runtime.streamWaitEvent(stream, CudaEvent(other).handle)

    def check_memory(self, address: int, what: str) -> None:
        """See the protocol."""
        with _mapped():
            found = runtime.pointerGetAttributes(address)
        if found.device != self._index or found.type not in (runtime.memoryTypeDevice, runtime.memoryTypeManaged):
            place = f"on GPU {found.device}" if found.type == runtime.memoryTypeDevice else "in host memory"
            raise InputError(f"{what} is {place}, and the communicator is on {self.name}")

    def empty(self, shape: Sequence[int], dtype: "np.dtype[Any]") -> Any:
        """See the protocol."""
        return cupy.empty(shape, dtype)

    def contiguous(self, array: Any) -> Any:
        """See the protocol."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(array, torch.Tensor):
            return array.contiguous()
        return cupy.ascontiguousarray(cupy.asarray(array))

    def give(self, array: Any, like: object) -> Any:
        """See the protocol. Only PyTorch's tensors are told apart; whatever else is given CuPy's array."""
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(like, torch.Tensor) or isinstance(array, torch.Tensor):
            return array
        if like.dtype == torch.bfloat16:
            return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
        return torch.from_dlpack(array)

    def copy(self, target: int, source: int, nbytes: int, stream: int) -> None:
        """See the protocol."""
        with _mapped():
            runtime.memcpyAsync(target, source, nbytes, runtime.memcpyDeviceToDevice, stream)

    def upload(self, target: int, data: NDArray[Any], stream: int) -> None:
        """See the protocol. CUDA has read memory that can be paged out when the call returns."""
        with _mapped():
            runtime.memcpyAsync(target, data.ctypes.data, data.nbytes, runtime.memcpyHostToDevice, stream)

    def download(self, data: NDArray[Any], source: int) -> None:
        """See the protocol."""
        with _mapped():
            runtime.memcpy(data.ctypes.data, source, data.nbytes, runtime.memcpyDeviceToHost)

    def record(self, stream: int) -> CudaEvent:
        """See the protocol."""
        with _mapped():
            return CudaEvent(stream)


def count_devices() -> int:
    """Return how many GPUs this process sees.

    Raises:
        UnavailableError: none, or no driver.
    """
    try:
        count = int(runtime.getDeviceCount())
    except runtime.CUDARuntimeError as error:
        raise UnavailableError(f"this process can use no GPU: {error}", hint="is NVIDIA's driver installed?") from error
    if count == 0:
        raise UnavailableError("this process sees no GPU", hint="is CUDA_VISIBLE_DEVICES empty?")
    return count


def open_device(index: int | None, environ: Mapping[str, str], place: int) -> CudaDevice:
    """Return this rank's GPU, and make it the calling thread's.

    Args:
        index: as the program asks; None: the one that the program works with, where it is not the first; else the
            only one; else the one that the launcher's count of ranks on this host says; else by ``place``.
        environ: of the launcher.
        place: which of its host's ranks this is.

    Raises:
        UnavailableError: no GPU.
        InputError: fewer GPUs than that.
    """
    count = count_devices()
    chosen, why = choose_index(index, _current(), count, environ, place)
    if not 0 <= chosen < count:
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        raise InputError(
            f"GPU {chosen} (from {why}) is not there: this process sees {count}",
            hint="start one rank for each GPU" + (f"; CUDA_VISIBLE_DEVICES={visible}" if visible else ""),
        )
    device = CudaDevice(chosen)
    device.use()
    return device


def _current() -> int:
    """Return the device that the program has made current; PyTorch may bring a CUDA runtime of its own."""
    torch = sys.modules.get("torch")
    of_torch = int(torch.cuda.current_device()) if torch is not None and torch.cuda.is_initialized() else 0
    return of_torch or int(runtime.getDevice())


def choose_index(
    asked: int | None, current: int, count: int, environ: Mapping[str, str], place: int
) -> tuple[int, str]:
    """Return the GPU to use, and what says so; see :func:`open_device`.

    Raises:
        InputError: a launcher's variable that is no number.
    """
    if asked is not None:
        return asked, "argument device"
    if current != 0:
        return current, "the program's current device"
    if count == 1:
        return 0, "the only one"
    name = next((name for name in LOCAL_RANKS if environ.get(name)), None)
    if name is None:
        return place, "the order of this host's ranks"
    if not environ[name].isascii() or not environ[name].isdecimal():
        raise InputError(f"{name}={environ[name][:40]!r} is not a number", hint="expected 0, 1, 2, ...")
    return int(environ[name]), name


@contextmanager
def _mapped() -> Iterator[None]:
    """Turn CUDA's errors into ours. One that a kernel has caused leaves the whole process without its GPU."""
    try:
        yield
    except runtime.CUDARuntimeError as error:
        text = " ".join(str(error).split())
        raise EngineError(f"the GPU reports {text}", details={"peer_may_be_lost": True}) from error
