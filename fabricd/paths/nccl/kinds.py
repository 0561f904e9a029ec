"""NCCL's node, link and path types, and the bandwidths it assumes for what a file does not say.

Bandwidths are in GB/s (10^9 bytes/s, each direction), as in NCCL, until a path leaves this package.
Source: NCCL 2.30, graph/topo.h, graph/topo.cc.
"""

from enum import IntEnum
from struct import Struct


class NodeType(IntEnum):
    """Types of nodes, in NCCL's order."""

    GPU = 0  #: a rank
    PCI = 1
    NVS = 2
    CPU = 3  #: a NUMA node
    NIC = 4
    NET = 5
    GIN = 6
    RMA = 7
    DEV = 8  #: a physical GPU
    CXB = 9  #: a C2C bridge shared by partitions of a GPU


class PathKind(IntEnum):
    """Types of paths, best first. Link types are those that a single link can have."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


class LinkType(IntEnum):
    """Types of links. Values are those of the paths that consist of one such link."""

    LOC = 0
    NVL = 1
    C2C = 3
    PCI = 4
    SYS = 9
    NET = 10


LOCAL_BANDWIDTH = 5000.0
PARTITION_BANDWIDTH = 2618.0  #: between partitions of one GPU
DEFAULT_NET_MEGABITS = 10_000

#: Lane rates by PCI speed as the kernel prints it: up to 5.6, and after. A prefix match in this order, so that
#: "16.0 GT/s" without "PCIe" and everything unknown are taken for 8 GT/s.
_PCI_SPEEDS = {
    "2.5 GT/s": 15,
    "5 GT/s": 30,
    "8 GT/s": 60,
    "16 GT/s": 120,
    "32 GT/s": 240,
    "5.0 GT/s PCIe": 30,
    "8.0 GT/s PCIe": 60,
    "16.0 GT/s PCIe": 120,
    "32.0 GT/s PCIe": 240,
    "64.0 GT/s PCIe": 480,
}
_UNKNOWN_PCI_SPEED = 60
_UNKNOWN_PCI_WIDTH = 16

_NVLINK_BANDWIDTHS = ((100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
_UNKNOWN_NVLINK = 20.0

_single = Struct("f")


def single(value: float) -> float:
    """Return a figure as single precision holds it: sums of links must tie where NCCL's do."""
    rounded: float = _single.unpack(_single.pack(value))[0]
    return rounded


def pci_bandwidth(speed: str, width: int) -> float:
    """Return what NCCL takes a PCIe link to carry, GB/s.

    Args:
        speed: as the file spells it; unknown spellings are taken for 8 GT/s.
        width: lanes; 0 is taken for 16.
    """
    rate = next((rate for text, rate in _PCI_SPEEDS.items() if speed.startswith(text)), _UNKNOWN_PCI_SPEED)
    return single((width or _UNKNOWN_PCI_WIDTH) * rate / 80)


def nvlink_bandwidth(sm: int) -> float:
    """Return what NCCL takes one NVLink of a GPU to carry, GB/s, by compute capability times ten."""
    return single(next((value for least, value in _NVLINK_BANDWIDTHS if sm >= least), _UNKNOWN_NVLINK))


def cpu_bandwidth(arch: str, vendor: str, family: int | None, model: int | None) -> float:
    """Return what NCCL takes the interconnect between NUMA nodes to carry, GB/s.

    Args:
        arch: "x86_64", "arm64" or "ppc64"; others count as endless.
        vendor: CPUID's; those that NCCL does not know count as endless.
        family: CPUID's, as NCCL computes it.
        model: CPUID's.
    """
    if arch == "ppc64":
        return 32.0
    if arch == "arm64":
        return 6.0
    if arch != "x86_64":
        return LOCAL_BANDWIDTH
    if vendor == "AuthenticAMD":
        return 16.0
    if vendor == "GenuineIntel":
        return _intel_bandwidth(model or 0) if family == 6 else 6.0
    if vendor in ("CentaurHauls", "  Shanghai  "):
        return 9.0 if (family, model) == (7, 0x5B) else 6.0
    return LOCAL_BANDWIDTH


def _intel_bandwidth(model: int) -> float:
    if model >= 0xCF:
        return 40.0
    if model >= 0x8F:
        return 22.0
    return 10.0 if model >= 0x55 else 6.0


def device_type(device_class: str) -> NodeType:
    """Return what NCCL makes of a PCI class, written as in the file; unknown ones are switches."""
    if device_class.startswith(("0x060400", "0x080100")):
        return NodeType.PCI
    if device_class.startswith("0x068000"):
        return NodeType.NVS
    if device_class.startswith("0x068001"):
        return NodeType.CPU
    if device_class.startswith("0x03"):
        return NodeType.GPU
    if device_class.startswith("0x02"):
        return NodeType.NIC
    return NodeType.PCI
