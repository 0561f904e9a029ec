"""The network interfaces as /sys/class/net shows them: what hardware is behind each, and a stand-in for netlink."""

import re
from dataclasses import dataclass
from pathlib import Path

from fabricd.probe.ethtool import DUPLEX, SPEED_UNKNOWN
from fabricd.probe.files import FieldReader
from fabricd.probe.netlink_dump import MAX_LINKS, LinkFacts, NetlinkDump, SpeedFacts
from fabricd.probe.pci import pci_function
from fabricd.smallfile import printable

_DEVTYPE = re.compile(r"^DEVTYPE=(vlan|macvlan|vxlan|gre|geneve|wireguard|bond|bridge)$", re.MULTILINE)
_IFF_UP = 1
_MAX_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Hardware:
    """What is behind an interface. All empty for one without hardware."""

    present: bool = False
    driver: str = ""
    pci_address: str = ""
    numa_node: int | None = None
    physical_function: str = ""
    rdma_device: str = ""


def read_hardware(path: Path, read: FieldReader) -> Hardware:
    """Return what is behind the interface at ``path``, a folder of /sys/class/net."""
    device = read.real_path(path / "device")
    if device is None:
        return Hardware()
    function = pci_function(device, read)
    rdma = read.entries(device / "infiniband")
    return Hardware(
        present=True,
        driver=read.link_target(device / "driver"),
        pci_address=function.name if function else "",
        numa_node=read.integer((function or device) / "numa_node", high=65535, missing=-1),
        physical_function=read.link_target(device / "physfn"),
        rdma_device=printable(rdma[0]) if len(rdma) == 1 else "",
    )


def is_same_interface(path: Path, link: LinkFacts) -> bool:
    """Tell whether sysfs shows this very link.

    A process that was moved into another network namespace still sees the old one's /sys, where the same name is
    another interface.
    """
    quiet = FieldReader()
    if quiet.integer(path / "ifindex") != link.index:
        return False
    return (quiet.text(path / "address") or "") == link.mac


def rdma_devices(sys_root: Path, read: FieldReader) -> dict[str, str]:
    """Return the RDMA device of each interface, by the interface's name.

    The first GID of a port names its network device, also where that is a bond; Soft-RoCE names its parent.
    """
    found: dict[str, str] = {}
    base = sys_root / "class/infiniband"
    quiet = FieldReader()  # EINVAL is how a port says that it has no network device in this namespace
    for device in read.entries(base):
        ports = base / device / "ports"
        files = [base / device / "parent", *(ports / port / "gid_attrs/ndevs/0" for port in read.entries(ports))]
        for name in filter(None, map(quiet.text, files)):
            found.setdefault(name, printable(device))
    return found


def dump_sysfs(net: Path, read: FieldReader) -> NetlinkDump:
    """Read what sysfs tells of links: no addresses, no routes, and a kind only where a file betrays it."""
    links: list[LinkFacts] = []
    speeds: list[SpeedFacts] = []
    for name in read.entries(net)[:MAX_LINKS]:
        index = read.integer(net / name / "ifindex", low=1, high=_MAX_INDEX)
        if index is None:
            continue
        link = _link(net / name, index, read)
        links.append(link)
        if link.flags & _IFF_UP:  # the speed of others is EINVAL
            speeds.append(_speed(net / name, index))
    return NetlinkDump(links=tuple(links), speeds=tuple(speeds))


def _link(path: Path, index: int, read: FieldReader) -> LinkFacts:
    flags = read.integer(path / "flags", base=0, high=2**32 - 1) or 0
    lower = read.integer(path / "iflink", high=_MAX_INDEX)
    # Only an interface that is up has a carrier to speak of; others answer EINVAL.
    carrier = read.integer(path / "carrier", high=1) if flags & _IFF_UP else None
    return LinkFacts(
        index=index,
        name=printable(path.name),
        kind=_kind(path, read),
        hardware_type=read.integer(path / "type", high=65535) or 0,
        flags=flags,
        mac=read.text(path / "address") or "",
        mtu=read.integer(path / "mtu", high=_MAX_INDEX),
        oper_state=read.text(path / "operstate") or "",
        carrier=None if carrier is None else bool(carrier),
        lower=lower if lower not in (0, index) else None,
        controller=read.integer(path / "master/ifindex", high=_MAX_INDEX),
        bond_mode=(read.text(path / "bonding/mode") or "").partition(" ")[0],
        port_name=FieldReader().text(path / "phys_port_name") or "",  # EOPNOTSUPP is the rule, not worth a note
        rx_bytes=read.integer(path / "statistics/rx_bytes", high=2**64 - 1),
        tx_bytes=read.integer(path / "statistics/tx_bytes", high=2**64 - 1),
        carrier_down_count=read.integer(path / "carrier_down_count", high=2**32 - 1),
    )


def _kind(path: Path, read: FieldReader) -> str:
    for file, kind in (("bonding", "bond"), ("bridge", "bridge"), ("tun_flags", "tun")):
        if read.exists(path / file):
            return kind
    match = _DEVTYPE.search(read.text(path / "uevent") or "")
    return match[1] if match else ""


def _speed(path: Path, index: int) -> SpeedFacts:
    quiet = FieldReader()  # interfaces without a speed answer EINVAL
    speed = quiet.integer(path / "speed", high=SPEED_UNKNOWN, missing=-1)
    duplex = quiet.text(path / "duplex") or ""
    return SpeedFacts(
        index=index,
        megabits_per_second=None if speed in (0, SPEED_UNKNOWN) else speed,
        duplex=duplex if duplex in DUPLEX.values() else "",
    )
