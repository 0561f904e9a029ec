"""The processors, from /proc/cpuinfo, whose form differs with each architecture."""

from collections.abc import Iterator
from pathlib import Path

from fabricd.model.identity import Cpu
from fabricd.probe.base import ProbeContext
from fabricd.probe.files import FieldReader

# The kernel interrupts a CPU to tell its clock, so the whole file is read only where sysfs does not count the CPUs:
# what all CPUs have in common stands with the first. 1024 of them take about 1.6 MB on x86.
_HEAD_BYTES = 16 * 1024
_CPUINFO_BYTES = 16 * 1024 * 1024
# Source: Arm MIDR_EL1, field Implementer.
_ARM_IMPLEMENTERS = {
    0x41: "ARM", 0x42: "Broadcom", 0x43: "Cavium", 0x46: "Fujitsu", 0x48: "HiSilicon", 0x4E: "NVIDIA", 0x50: "APM",
    0x51: "Qualcomm", 0x53: "Samsung", 0x56: "Marvell", 0x61: "Apple", 0x6D: "Microsoft", 0x70: "Phytium",
    0xC0: "Ampere",
}  # fmt: skip


def read_cpu(ctx: ProbeContext, read: FieldReader, *, architecture: str = "") -> Cpu:
    """Return what /proc/cpuinfo and the CPU folders of sysfs tell; unknown fields stay empty.

    Args:
        ctx: the probe's.
        read: takes notes.
        architecture: as a process on the machine was told; else files have to tell it.
    """
    path, folders = ctx.roots.proc / "cpuinfo", ctx.roots.sys / "devices/system/cpu"
    first: dict[str, str] = {}
    for key, value in _pairs(read.text(path, _HEAD_BYTES) or ""):
        first.setdefault(key, value)
    online = read.cpu_list(folders / "online")
    sockets, logical = len(_packages(folders, online, read)), len(online)
    if not sockets or not logical:
        pairs = list(_pairs(read.text(path, _CPUINFO_BYTES) or ""))
        sockets = sockets or len({value for key, value in pairs if key == "physical id"})
        logical = logical or sum(key == "processor" and value.isdecimal() for key, value in pairs)
    vendor, family, model = _maker(first)
    return Cpu(
        vendor=vendor,
        family=family,
        model=model,
        name=first.get("model name") or first.get("cpu") or first.get("Processor", ""),
        architecture=architecture or _architecture(ctx, read, first),
        sockets=sockets or None,
        logical=logical or None,
    )


def cpu_flags(ctx: ProbeContext, read: FieldReader) -> frozenset[str] | None:
    """Return the first CPU's flags on x86; None where cpuinfo has no such line."""
    for key, value in _pairs(read.text(ctx.roots.proc / "cpuinfo", _HEAD_BYTES) or ""):
        if key == "flags":
            return frozenset(value.split())
    return None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if separator:
            yield key.strip(), value.strip()


def _maker(first: dict[str, str]) -> tuple[str, int | None, int | None]:
    """Return vendor, family and model. On Arm the family is the architecture's version and the model the part."""
    if "CPU implementer" in first:
        implementer = _number(first["CPU implementer"])
        vendor = _ARM_IMPLEMENTERS.get(implementer or 0, first["CPU implementer"])
        return vendor, _number(first.get("CPU architecture", "")), _number(first.get("CPU part", ""))
    if first.get("cpu", "").upper().startswith("POWER"):
        return "IBM", None, None
    return first.get("vendor_id", ""), _number(first.get("cpu family", "")), _number(first.get("model", ""))


def _number(text: str) -> int | None:
    try:
        return int(text, 0) if 0 < len(text) < 12 else None
    except ValueError:
        return None


def _architecture(ctx: ProbeContext, read: FieldReader, first: dict[str, str]) -> str:
    # Since Linux 6.1; before, the form of cpuinfo tells.
    told = read.text(ctx.roots.proc / "sys/kernel/arch")
    if told:
        return told
    if "CPU implementer" in first:
        return "aarch64"
    if first.get("cpu", "").upper().startswith("POWER"):
        return "ppc64le"
    return "x86_64" if "vendor_id" in first and "flags" in first else ""


def _packages(folders: Path, online: tuple[int, ...], read: FieldReader) -> set[int]:
    """Return the numbers of the packages that hold the CPUs; reads the files of one CPU of each."""
    found: set[int] = set()
    left = set(online)
    while left:
        cpu = min(left)
        topology = folders / f"cpu{cpu}/topology"
        # -1 stands for "unknown" on some virtual machines.
        package = read.integer(topology / "physical_package_id", missing=-1)
        if package is not None:
            found.add(package)
        siblings = read.cpu_list(topology / "package_cpus_list") or read.cpu_list(topology / "core_siblings_list")
        left -= {cpu, *siblings}
    return found
