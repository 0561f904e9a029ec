"""PCIe switches that show themselves as two levels of switches though they are one crossbar.

A Broadcom PEX switch in base mode is such: data between two of its sub-switches do not share the link that the tree
shows between them. Source: NCCL 2.30, graph/topo.cc.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PciIds:
    """What tells one make of device from another; 0 where it is not known."""

    vendor: int = 0
    device: int = 0
    subsystem_vendor: int = 0
    subsystem_device: int = 0

    @property
    def make(self) -> int:
        """All but the number within the make, which the lowest 12 bits are."""
        return (self.vendor << 48 | self.device << 32 | self.subsystem_vendor << 16 | self.subsystem_device) >> 12


#: (first level, second level) of Broadcom PEX for PCIe 4 and 5.
_ONE_CROSSBAR = frozenset({(0x1000C0101000A, 0x1000C0101000A), (0x1000C03010000, 0x1000C03010001)})


def is_one_crossbar(one: PciIds, other: PciIds) -> bool:
    """Tell whether a switch and one right above or below it are parts of one crossbar."""
    return bool({(one.make, other.make), (other.make, one.make)} & _ONE_CROSSBAR)
