"""The process in which NVML runs: reads everything once, writes one line of JSON to standard output, and ends.

NVML can hang for ever in the driver, and has crashed; neither may take the daemon with it. The process imports
nothing but the standard library and nvidia-ml-py. It ends after each reading: an idle one would hold 20 MB, an old
library after a driver upgrade, and, while initialised, every GPU against a reset or a change of its MIG mode.
Starting it costs some 35 ms of processor time (``bench/probe.py``).
"""

from typing import Any

from fabricd.probe.child import answer_with
from fabricd.probe.nvml_gpu import read_gpu
from fabricd.probe.nvml_library import GpuLostError, Library, Reader, Refusal
from fabricd.probe.nvml_links import read_peers

_MAX_GPUS = 64


def read_node() -> dict[str, Any]:
    """Return the answer, in the shape of ``fabricd.probe.nvml.NvmlAnswer``."""
    try:
        import pynvml  # here, because its absence is an answer
    except ImportError as error:
        return {"binding_missing": str(error)}
    library = Library(pynvml)
    begun = library.call("nvmlInit")
    if isinstance(begun, Refusal):
        return {"error": begun.code, "reason": begun.words}
    try:
        return {**_read_system(library), **_read_gpus(library), "calls": library.calls}
    finally:
        library.call("nvmlShutdown")


def _read_system(library: Library) -> dict[str, Any]:
    cuda = library.call("nvmlSystemGetCudaDriverVersion_v2")
    return {
        "driver": {
            "driver_version": _text(library.call("nvmlSystemGetDriverVersion")),
            "nvml_version": _text(library.call("nvmlSystemGetNVMLVersion")),
            "cuda_version": "" if isinstance(cuda, Refusal) else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    }


def _text(answer: Any) -> str:
    return "" if isinstance(answer, Refusal) else str(answer)


def _read_gpus(library: Library) -> dict[str, Any]:
    count = library.call("nvmlDeviceGetCount")
    if isinstance(count, Refusal):
        return {"error": count.code, "reason": f"number of GPUs: {count.words}"}
    notes = [f"{count} GPUs are not credible; the first {_MAX_GPUS} are read"] if count > _MAX_GPUS else []
    gpus, handles = [], {}
    for index in range(min(count, _MAX_GPUS)):
        gpu, handle = read_gpu(library, index)
        gpus.append(gpu)
        if handle is not None:
            handles[index] = handle
    for index, handle in handles.items():
        reader = Reader(library, handle)
        try:
            others = {other: its for other, its in handles.items() if other != index}
            gpus[index].update(read_peers(reader, others))
        except GpuLostError as lost:
            reader.note("peers", str(lost))
        gpus[index]["notes"] += reader.notes()
    return {"gpus": gpus, "notes": notes}


if __name__ == "__main__":
    answer_with(read_node)
