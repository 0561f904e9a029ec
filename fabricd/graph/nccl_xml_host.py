"""What NCCL would write of this host: attributes and elements of its topology XML from a snapshot.

Names, units and spellings are NCCL's (2.30, graph/xml.cc and transport/net_ib.cc): it takes the highest PCIe speed
and width of a device and of the port above it, not the present ones.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from fabricd.graph.nccl_xml import Element
from fabricd.model.device import Gpu, Hca, HcaPort, InterfaceKind, NetInterface, NumaNode, NvLink, PciDevice
from fabricd.model.identity import Cpu
from fabricd.model.snapshot import Snapshot

_ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}
#: Kinds of RDMA devices that NCCL reaches through its own or the vendor's network plugin.
_RDMA_KINDS = frozenset({"infiniband", "roce", "soft-roce", "efa", "slingshot"})
_NVSWITCH_CLASS = "0x068000"
_CPU_BRIDGE_CLASS = "0x068001"
_HIDDEN_TARGET = "fffffff:ffff:ff"
#: CPUID families from here on are printed by the kernel as base plus extension; NCCL shifts the extension.
_EXTENDED_FAMILY = 15
_SOCKET_CONNECTIONS = 65536
_HEX = re.compile("[0-9a-f]{1,16}", re.IGNORECASE | re.ASCII)


def cpu_attributes(cpu: Cpu, numa: NumaNode | None, cpus: int) -> dict[str, str]:
    """Return the attributes of a ``cpu``, without ``numaid``.

    Args:
        cpu: the processors.
        numa: the NUMA node, if the kernel tells of it.
        cpus: number of CPUs of the whole machine: the kernel pads masks to it.
    """
    found = {}
    if numa is not None:
        found["affinity"] = cpu_mask(numa.cpus, cpus)
    if cpu.architecture:
        found["arch"] = _ARCHITECTURES.get(cpu.architecture, cpu.architecture)
    if cpu.architecture == "x86_64":
        found["vendor"] = cpu.vendor
        if cpu.family is not None and cpu.model is not None:
            extension = max(0, cpu.family - _EXTENDED_FAMILY)
            found["familyid"] = str(cpu.family - extension + (extension << 4))
            found["modelid"] = str(cpu.model)
    return found


def cpu_mask(cpus: Iterable[int], count: int) -> str:
    """Return a CPU mask as the kernel prints it: groups of 32 bits, the highest first and cut to ``count``."""
    number = sum(1 << cpu for cpu in set(cpus))
    count = max(count, number.bit_length(), 1)
    groups = []
    for low in range(0, count, 32):
        digits = -(-min(32, count - low) // 4)
        groups.append(f"{number >> low & 0xFFFFFFFF:0{digits}x}")
    return ",".join(reversed(groups))


def pci_attributes(device: PciDevice, port: PciDevice | None) -> dict[str, str]:
    """Return the attributes of a ``pci``, without ``busid``.

    Args:
        device: the function.
        port: the port above it, root or downstream, whose limits count too.
    """
    found = {}
    if device.class_code is not None:
        found["class"] = f"0x{device.class_code:06x}"
    ids = (device.vendor_id, device.device_id, device.subsystem_vendor_id, device.subsystem_device_id)
    for name, value in zip(("vendor", "device", "subsystem_vendor", "subsystem_device"), ids, strict=True):
        if value is not None:
            found[name] = f"0x{value:04x}"
    ends = [end.link for end in (device, port) if end is not None]
    speeds = [end.max_speed_gts for end in ends if end.max_speed_gts]
    found["link_speed"] = f"{min(speeds):.1f} GT/s PCIe" if speeds else ""
    found["link_width"] = str(min(end.max_width or 0 for end in ends))
    return found


def gpu_element(gpu: Gpu, rank: int, snapshot: Snapshot) -> Element:
    """Return a ``gpu``; what the driver does not tell is left out, as NCCL fills it in when it runs."""
    values = {"dev": str(gpu.index)}
    if gpu.compute_capability is not None:
        major, minor = gpu.compute_capability
        values["sm"] = str(major * 10 + minor)
    values["rank"] = str(rank)
    return Element("gpu", values, (*_nvlink_elements(gpu, snapshot), *_c2c_elements(gpu)))


def _nvlink_elements(gpu: Gpu, snapshot: Snapshot) -> Iterator[Element]:
    """Yield the GPU's links in use, those to one target together.

    A link that the other GPU does not have in use too (in MIG mode it has none) is left out: NCCL fails on it.
    """
    classes = {device.address: device.class_code for device in snapshot.pci}
    back = {
        other.pci_address
        for other in snapshot.gpus
        if gpu.pci_address in {link.remote_pci_address for link in _used(other)}
    }
    counts: Counter[tuple[str, str]] = Counter()
    for link in _used(gpu):
        target = link.remote_pci_address
        if link.remote_type == "gpu":
            if target not in back:
                continue
            kind = f"0x{classes.get(target) or 0x030200:06x}"
        else:
            kind = _CPU_BRIDGE_CLASS if link.remote_type == "cpu" else _NVSWITCH_CLASS
        counts[target or _HIDDEN_TARGET, kind] += 1
    for (target, kind), count in counts.items():
        yield Element("nvlink", {"target": target, "count": str(count), "tclass": kind})


def _used(gpu: Gpu) -> list[NvLink]:
    return [link for link in gpu.links if link.active and link.peer_to_peer is not False]


def _c2c_elements(gpu: Gpu) -> Iterator[Element]:
    if gpu.c2c_links and gpu.c2c_bytes_per_second:
        megabytes = round(gpu.c2c_bytes_per_second / gpu.c2c_links / 1_000_000)
        yield Element("c2c", {"bw": str(megabytes), "count": str(gpu.c2c_links)})


def net_elements(snapshot: Snapshot) -> Iterator[tuple[str, Element]]:
    """Yield the ports that NCCL would use, with the PCI address of the card; ``""`` where there is none.

    RDMA ports that are up, in order of PCI address; without any, network interfaces as for NCCL's sockets.
    """
    ports = [
        (hca, port)
        for hca in sorted(snapshot.hcas, key=lambda hca: (not hca.pci_address, hca.pci_address, hca.name))
        if hca.kind in _RDMA_KINDS
        for port in hca.ports
        if port.state == "active"
    ]
    for index, (hca, port) in enumerate(ports):
        yield card_address(hca.pci_address), _rdma_net(index, hca, port)
    if not ports:
        for index, interface in enumerate(_socket_interfaces(snapshot.interfaces)):
            yield card_address(interface.pci_address), _socket_net(index, interface)


def kernel_address(busid: str) -> str:
    """Return a PCI address as the kernel writes it; NVML writes domains with eight digits."""
    busid = busid.lower()
    return busid[4:] if busid.startswith("0000") and busid[8:9] == ":" else busid


def card_address(address: str) -> str:
    """Return the address of a card from that of one of its functions: its ports are one card to NCCL."""
    return f"{address[:-1]}0" if address else ""


def _rdma_net(index: int, hca: Hca, port: HcaPort) -> Element:
    guid = hca.node_guid.replace(":", "")
    values = {
        "name": hca.name,
        "dev": str(index),
        "latency": "0",
        "speed": str(_megabits(port.rate_bytes_per_second)),
        "port": str(port.port),
        "guid": f"0x{int(guid, 16) if _HEX.fullmatch(guid) else index:x}",
        "maxconn": str(hca.max_qp or _SOCKET_CONNECTIONS),
    }
    ways = (hca.dmabuf, hca.peer_memory)
    if any(ways) or None not in ways:
        values["gdr"] = str(int(any(ways)))
    return Element("net", values)


def _socket_net(index: int, interface: NetInterface) -> Element:
    return Element(
        "net",
        {
            "name": interface.name,
            "dev": str(index),
            "latency": "0",
            "speed": str(_megabits(interface.speed_bytes_per_second) or 10_000),
            "port": "0",
            "guid": f"0x{index:x}",
            "maxconn": str(_SOCKET_CONNECTIONS),
            "gdr": "0",
        },
    )


def _socket_interfaces(interfaces: Iterable[NetInterface]) -> list[NetInterface]:
    """Return the interfaces that NCCL's sockets use: those named ib*, else all but docker*, lo and virbr*."""
    usable = [one for one in interfaces if one.admin_up and one.carrier is not False and one.addresses]
    named = [one for one in usable if one.name.startswith("ib")]
    others = [
        one
        for one in usable
        if one.kind is not InterfaceKind.LOOPBACK and not one.name.startswith(("docker", "lo", "virbr"))
    ]
    return named or others


def _megabits(bytes_per_second: int | None) -> int:
    return round((bytes_per_second or 0) / 125_000)
