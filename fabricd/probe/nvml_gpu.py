"""One GPU's own facts, as NVML tells them, in the shape of ``fabricd.model.device.Gpu``. Runs in the probe's child."""

from collections.abc import Callable
from typing import Any

from fabricd.probe.nvml_library import GpuLostError, Library, Reader, Refusal
from fabricd.probe.nvml_links import pci_address, read_c2c, read_fabric, read_links

# GT/s by PCIe generation. Source: PCI Express Base Specification.
_TRANSFER_RATES = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_MAX_WIDTH = 32
_MODES = {0: "disabled", 1: "enabled"}
_NO_PERMISSION = 4
_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0  # nvmlMemoryErrorType_t, nvmlEccCounterType_t
_AFFINITY_WORDS = 32  # 64 CPUs or NUMA nodes each
_AFFINITY_SCOPE_NODE = 0
_MAX_MIG_DEVICES = 16


def read_gpu(library: Library, index: int) -> tuple[dict[str, Any], Any]:
    """Return the facts of a GPU and its handle, which is None for one that cannot be talked to.

    A GPU that is lost on the way keeps the facts read so far.
    """
    facts: dict[str, Any] = {"index": index}
    reader = None
    try:
        handle = library.call("nvmlDeviceGetHandleByIndex", index)
        if isinstance(handle, Refusal):
            outcome = "denied" if handle.code == _NO_PERMISSION else "failed"
            return {**facts, "outcome": outcome, "reason": handle.words}, None
        reader = Reader(library, handle)
        for part in _PARTS:
            facts.update({name: value for name, value in part(reader).items() if value is not None})
    except GpuLostError as lost:
        return {**facts, "outcome": "failed", "reason": str(lost), "notes": reader.notes() if reader else []}, None
    return {**facts, "notes": reader.notes()}, handle


def _identity(reader: Reader) -> dict[str, Any]:
    info = reader.ask("pci_address", "nvmlDeviceGetPciInfo")
    return {
        "uuid": reader.ask("uuid", "nvmlDeviceGetUUID"),
        "pci_address": None if info is None else pci_address(info),
        "name": reader.ask("name", "nvmlDeviceGetName"),
        "compute_capability": reader.ask("compute_capability", "nvmlDeviceGetCudaComputeCapability"),
    }


def _memory(reader: Reader) -> dict[str, Any]:
    memory = reader.ask("memory_bytes", "nvmlDeviceGetMemoryInfo")
    bar1 = reader.ask("bar1_bytes", "nvmlDeviceGetBAR1MemoryInfo")
    return {
        "memory_bytes": None if memory is None else memory.total,
        "bar1_bytes": None if bar1 is None else bar1.bar1Total,
    }


def _pcie(reader: Reader) -> dict[str, Any]:
    generation = reader.ask("pcie.speed_gts", "nvmlDeviceGetCurrPcieLinkGeneration")
    max_generation = reader.ask("pcie.max_speed_gts", "nvmlDeviceGetMaxPcieLinkGeneration")
    width = reader.ask("pcie.width", "nvmlDeviceGetCurrPcieLinkWidth")
    max_width = reader.ask("pcie.max_width", "nvmlDeviceGetMaxPcieLinkWidth")
    return {
        "pcie": {
            "speed_gts": _rate(reader, "pcie.speed_gts", generation),
            "max_speed_gts": _rate(reader, "pcie.max_speed_gts", max_generation),
            "width": _width(reader, "pcie.width", width),
            "max_width": _width(reader, "pcie.max_width", max_width),
        }
    }


def _rate(reader: Reader, field: str, generation: int | None) -> float | None:
    if generation is not None and generation not in _TRANSFER_RATES:
        reader.note(field, f"no such PCIe generation: {generation}")
    return _TRANSFER_RATES.get(generation or 0)


def _width(reader: Reader, field: str, width: int | None) -> int | None:
    if width is None or 1 <= width <= _MAX_WIDTH:
        return width
    reader.note(field, f"no such PCIe width: {width}")
    return None


def _affinity(reader: Reader) -> dict[str, Any]:
    """Return which CPUs and NUMA nodes are near. NVML answers within this process's cpuset."""
    cpus = reader.ask("cpu_affinity", "nvmlDeviceGetCpuAffinity", _AFFINITY_WORDS)
    nodes = reader.ask("numa_node", "nvmlDeviceGetMemoryAffinity", _AFFINITY_WORDS, _AFFINITY_SCOPE_NODE)
    near = [] if nodes is None else _bits(nodes)
    return {
        "cpu_affinity": None if cpus is None else _bits(cpus),
        "numa_node": near[0] if len(near) == 1 else None,
        "numa_affinity": None if nodes is None else near,
        "memory_numa_node": reader.ask("memory_numa_node", "nvmlDeviceGetNumaNodeId"),
    }


def _bits(words: Any) -> list[int]:
    return [64 * number + bit for number, word in enumerate(words) for bit in range(64) if word >> bit & 1]


def _modes(reader: Reader) -> dict[str, Any]:
    persistence = reader.ask("persistence", "nvmlDeviceGetPersistenceMode")
    ecc = reader.ask("ecc_mode", "nvmlDeviceGetEccMode")
    errors = None
    if ecc is not None and ecc[0]:
        errors = reader.ask("ecc_uncorrected", "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _SINCE_DRIVER_LOAD)
    return {
        "persistence": None if persistence is None else bool(persistence),
        "ecc_mode": None if ecc is None else _MODES.get(ecc[0]),
        "ecc_uncorrected": errors,
    }


def _mig(reader: Reader) -> dict[str, Any]:
    mode = reader.ask("mig_mode", "nvmlDeviceGetMigMode")
    if mode is None or mode[0] != 1:
        return {"mig_mode": None if mode is None else _MODES.get(mode[0])}
    count = reader.ask("mig", "nvmlDeviceGetMaxMigDeviceCount") or 0
    instances = []
    for number in range(min(count, _MAX_MIG_DEVICES)):
        handle = reader.library.call("nvmlDeviceGetMigDeviceHandleByIndex", reader.handle, number)
        if not isinstance(handle, Refusal):  # a slot without an instance
            instances.append(_mig_instance(reader, handle))
    return {"mig_mode": "enabled", "mig": [instance for instance in instances if instance["uuid"]]}


def _mig_instance(parent: Reader, handle: Any) -> dict[str, Any]:
    reader = Reader(parent.library, handle)
    name = reader.ask("name", "nvmlDeviceGetName") or ""
    attributes = reader.ask("memory_bytes", "nvmlDeviceGetAttributes_v2")
    instance = {
        "uuid": reader.ask("uuid", "nvmlDeviceGetUUID") or "",
        "gpu_instance": reader.ask("gpu_instance", "nvmlDeviceGetGpuInstanceId"),
        "compute_instance": reader.ask("compute_instance", "nvmlDeviceGetComputeInstanceId"),
        "profile": name.rpartition(" MIG ")[2] if " MIG " in name else "",
        "memory_bytes": None if attributes is None else attributes.memorySizeMB * 2**20,
    }
    for note in reader.notes():
        parent.note("mig", note)
    return instance


_PARTS: tuple[Callable[[Reader], dict[str, Any]], ...] = (
    _identity, _memory, _pcie, _affinity, _modes, _mig, read_links, read_c2c, read_fabric,
)  # fmt: skip
