"""What can be told at a glance: a few small files, read every few seconds, that betray a change which no event tells.

The kernel tells of interfaces by netlink, but not of RDMA ports that have none, nor, without privilege, of PCI devices
that come and go. A glance finds no facts; it says which probes have to look again.
"""

from collections.abc import Mapping

from fabricd.probe.base import Roots
from fabricd.probe.files import FieldReader

#: Ports looked at; with virtual functions by the hundred each costs the card's firmware a question.
_MAX_DEVICES = 64
_PORT_FILES = ("state", "phys_state", "rate", "lid")

#: Which probes have to look again when the value under their names is another than before.
Glance = Mapping[tuple[str, ...], object]


def glance(roots: Roots) -> Glance:
    """Return what is there now, comparable with what was there before."""
    read = FieldReader()
    infiniband = roots.sys / "class/infiniband"
    ports = [
        (name, port, *(read.text(infiniband / name / "ports" / port / file) for file in _PORT_FILES))
        for name in read.entries(infiniband)[:_MAX_DEVICES]
        for port in read.entries(infiniband / name / "ports")
    ]
    driver = read.text(roots.proc / "driver/nvidia/version")
    return {
        ("rdma", "verbs"): ports,
        ("pci", "nvml"): (read.entries(roots.sys / "bus/pci/devices"), driver),
    }
