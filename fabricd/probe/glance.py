"""What can be told at a glance: a few small files, read every few seconds, that betray a change which no event tells.

The kernel tells of interfaces by netlink, but not of RDMA ports that have none, nor, without privilege, of PCI devices
that come and go. A glance finds no facts; it says which probes have to look again.
"""

from collections.abc import Mapping

from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import Roots
from fabricd.probe.files import FieldReader

#: Ports looked at; with virtual functions by the hundred each costs the card's firmware a question.
_MAX_DEVICES = 64
_PORT_FILES = ("state", "phys_state", "rate", "lid")

#: Which probes have to look again when the value under their names is another than before.
Glance = Mapping[tuple[str, ...], object]


def infiniband_ports(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the ports of which no event tells, as folders below ``/sys/class/infiniband``: "mlx5_0/ports/1".

    A RoCE port goes down with its network interface. An InfiniBand port has one at best for IPoIB, which tells nothing
    while it is not set up.
    """
    ports = (
        f"{hca.name}/ports/{port.port}"
        for hca in snapshot.hcas
        for port in hca.ports
        if port.link_layer == "infiniband"
    )
    return tuple(ports)[:_MAX_DEVICES]


def port_states(roots: Roots, ports: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the states of ports, in their order."""
    read = FieldReader()
    return tuple(read.text(roots.sys / "class/infiniband" / port / "state") for port in ports)


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
