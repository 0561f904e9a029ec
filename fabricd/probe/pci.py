"""Probe ``pci``: GPUs, network and RDMA adapters and NVSwitches with every bridge above them, from sysfs."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fabricd.errors import ParseError
from fabricd.model.device import PciDevice, PcieLink
from fabricd.model.observation import Outcome
from fabricd.probe.acs import Acs, ask_acs
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeResult
from fabricd.probe.files import FieldReader
from fabricd.units import parse_transfer_rate

# Domains have four digits, more behind a VMD controller or in a virtual machine on Hyper-V.
PCI_ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
_ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
_TOTAL = re.compile(r"^TOTAL_ERR_COR (\d{1,18})$", re.MULTILINE | re.ASCII)

# Base classes and subclasses. Source: PCI Code and ID Assignment Specification.
_NETWORK, _DISPLAY, _ACCELERATOR = 0x02, 0x03, 0x12
_PCI_BRIDGE, _BRIDGE_OTHER = 0x0604, 0x0680
_NVIDIA, _AMD, _INTEL, _HABANA = 0x10DE, 0x1002, 0x8086, 0x1DA3
_GPU_VENDORS = (_NVIDIA, _AMD, _INTEL, _HABANA)

_MAX_LANES = 32
_MAX_DEPTH = 32


def pci_function(device: Path, read: FieldReader) -> Path | None:
    """Return the folder of the PCI function that carries a device; None for one that is on no PCI bus.

    Virtio devices and sub-functions hang below their function. Those of USB, Xen and Hyper-V have PCI addresses above
    them too, but these tell nothing of their own place.
    """
    bus = read.link_target(device / "subsystem")
    carrier = device.parent if bus in ("virtio", "auxiliary") else device
    return carrier if bus in ("pci", "virtio", "auxiliary") and PCI_ADDRESS.match(carrier.name) else None


class PciProbe:
    """The part of the PCI tree that carries bytes between GPUs, adapters and CPUs."""

    name = "pci"
    deadline_seconds = 10.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the tree; devices come in order of address.

        Raises:
            ProbeAbsent: no PCI bus.
        """
        read = FieldReader()
        base = ctx.roots.sys / "bus/pci/devices"
        places = {name: _place(base / name, read) for name in read.entries(base) if PCI_ADDRESS.match(name)}
        if not places:
            raise ProbeAbsent(f"no PCI devices: {base} is missing or empty")
        wanted = _with_bridges((address for address in places if _matters(base / address, read)), places)
        told = ask_acs(ctx, [address for address in sorted(wanted) if _is_bridge(base / address, read)])
        devices = tuple(_read_device(base / address, address, places, told.acs, read) for address in sorted(wanted))
        counted = ((one.address, _errors(base / one.address)) for one in devices if not one.physical_function)
        errors = tuple((address, count) for address, count in counted if count is not None)
        return ProbeResult(facts={"pci": devices, "pcie_errors": errors}, notes=(*told.notes, *read.notes))


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a device hangs: the bridges above it, nearest first, and the host bridge."""

    bridges: tuple[str, ...] = ()
    root: str = ""


def _place(path: Path, read: FieldReader) -> _Place:
    """Read the chain from where the bus folder's link leads, ../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0."""
    bridges: list[str] = []
    for part in list(reversed(read.link_parts(path)))[1 : _MAX_DEPTH + 1]:
        if _ROOT.match(part):
            return _Place(tuple(bridges), part)
        if PCI_ADDRESS.match(part):
            bridges.append(part)
    return _Place()


def _matters(path: Path, read: FieldReader) -> bool:
    code = read.integer(path / "class", base=0, high=0xFFFFFF)
    if code is None:
        return False
    base = code >> 16
    if base == _NETWORK:
        return True
    if base in (_DISPLAY, _ACCELERATOR):
        return read.integer(path / "vendor", base=0, high=0xFFFF) in _GPU_VENDORS
    return code >> 8 == _BRIDGE_OTHER and read.integer(path / "vendor", base=0, high=0xFFFF) == _NVIDIA


def _is_bridge(path: Path, read: FieldReader) -> bool:
    return (read.integer(path / "class", base=0, high=0xFFFFFF) or 0) >> 8 == _PCI_BRIDGE


def _with_bridges(addresses: Iterable[str], places: dict[str, _Place]) -> set[str]:
    wanted: set[str] = set()
    for address in addresses:
        wanted.add(address)
        wanted.update(bridge for bridge in places[address].bridges if bridge in places)
    return wanted


def _read_device(
    path: Path, address: str, places: dict[str, _Place], known: dict[str, Acs], read: FieldReader
) -> PciDevice:
    place = places[address]
    class_code = read.integer(path / "class", base=0, high=0xFFFFFF)
    acs = known.get(address, Acs(Outcome.NOT_RUN))
    may_be_gpu = (class_code or 0) >> 16 in (_DISPLAY, _ACCELERATOR)
    return PciDevice(
        address=address,
        parent=next((bridge for bridge in place.bridges if bridge in places), ""),
        root=place.root,
        class_code=class_code,
        vendor_id=read.integer(path / "vendor", base=0, high=0xFFFF),
        device_id=read.integer(path / "device", base=0, high=0xFFFF),
        subsystem_vendor_id=read.integer(path / "subsystem_vendor", base=0, high=0xFFFF),
        subsystem_device_id=read.integer(path / "subsystem_device", base=0, high=0xFFFF),
        driver=read.link_target(path / "driver"),
        numa_node=read.integer(path / "numa_node", missing=-1, high=65535),
        local_cpus=read.cpu_list(path / "local_cpulist"),
        link=_read_link(path, read),
        iommu_group=_group(read.link_target(path / "iommu_group")),
        iommu_mode=read.text(path / "iommu_group/type") or "",
        acs=acs.outcome,
        acs_redirects=acs.redirects,
        largest_bar_bytes=_largest_bar(path / "resource", read),
        largest_bar_limit_bytes=_largest_possible_bar(path) if may_be_gpu else None,
        physical_function=read.link_target(path / "physfn"),
        virtual_function_count=read.integer(path / "sriov_numvfs", high=65535),
    )


def _read_link(path: Path, read: FieldReader) -> PcieLink:
    return PcieLink(
        speed_gts=_speed(path / "current_link_speed", read),
        width=_width(path / "current_link_width", read),
        max_speed_gts=_speed(path / "max_link_speed", read),
        max_width=_width(path / "max_link_width", read),
    )


def _speed(path: Path, read: FieldReader) -> float | None:
    text = read.text(path)
    if not text or text.startswith("Unknown"):  # what sysfs says of a device without a link of its own
        return None
    try:
        speed = parse_transfer_rate(text)
    except ParseError as error:
        read.note(path, error.message)
        return None
    if not 0 < speed <= 1024:
        read.note(path, f"not a credible rate: {text[:40]!r}")
        return None
    return speed


def _width(path: Path, read: FieldReader) -> int | None:
    # 0 is a link that is down, 255 one that the kernel could not read (PCIE_LNK_WIDTH_UNKNOWN).
    width = read.integer(path, high=255, missing=255)
    if width is not None and width > _MAX_LANES:
        read.note(path, f"not a credible width: {width}")
        return None
    return width or None


def _group(name: str) -> int | None:
    return int(name) if name.isdecimal() and len(name) < 10 else None


def _largest_bar(path: Path, read: FieldReader) -> int | None:
    """Return the size of the largest of the six base address registers, from lines "start end flags"."""
    largest = 0
    for line in (read.text(path) or "").splitlines()[:6]:
        words = line.split()
        try:
            start, end = int(words[0], 16), int(words[1], 16)
        except (ValueError, IndexError):
            read.note(path, f"not a resource: {line[:60]!r}")
            return None
        if 0 <= start < end < 2**64:
            largest = max(largest, end - start + 1)
    return largest or None


def _errors(path: Path) -> int | None:
    """Return the correctable errors that a function has seen: packets that were sent again, links that trained anew.

    Source: kernel Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats; the last line is "TOTAL_ERR_COR 17".
    """
    quiet = FieldReader()  # absent where firmware keeps AER to itself, and in most virtual machines
    found = _TOTAL.search(quiet.text(path / "aer_dev_correctable") or "")
    return int(found[1]) if found else None


def _largest_possible_bar(path: Path) -> int | None:
    """Return the largest size that Resizable BAR offers; its files hold a bit for each size, from 1 MiB on.

    Source: kernel Documentation/ABI/testing/sysfs-bus-pci, resource[0..5]_resize.
    """
    quiet = FieldReader()  # absent before Linux 6.1, and for devices without the capability
    sizes = [quiet.integer(path / f"resource{bar}_resize", base=16, high=2**44 - 1) or 0 for bar in range(6)]
    return 2 ** (max(sizes).bit_length() - 1 + 20) if any(sizes) else None
