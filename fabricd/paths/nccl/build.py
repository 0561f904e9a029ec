"""From a topology file to NCCL's graph: the trees below the CPUs. The links beside them are in ``build_links``.

Order counts: nodes come in the order of the file, links in order of creation, and both decide ties later.
"""

from collections import Counter
from typing import NoReturn, TypeVar

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclCpu, NcclGpu, NcclNet, NcclNic, NcclPci, NcclTopology
from fabricd.paths.nccl.build_links import add_side_links
from fabricd.paths.nccl.kinds import (
    DEFAULT_NET_MEGABITS,
    LOCAL_BANDWIDTH,
    PARTITION_BANDWIDTH,
    LinkType,
    NodeType,
    cpu_bandwidth,
    device_type,
    pci_bandwidth,
    single,
)
from fabricd.paths.nccl.system import Cpu, Device, Gpu, Net, Node, Switch, System, bus_number, join, node_key, node_name

#: NCCL's own limit (graph/topo.h), per type of node.
MAX_NODES = 640

AnyNode = TypeVar("AnyNode", bound=Node)

_NEEDS_HOST = "a template needs the facts of a live host"


def build_system(topology: NcclTopology) -> System:
    """Return the graph that NCCL builds from a topology file.

    Raises:
        InputError: NCCL fails on such a file: says why, and where.
    """
    topology = topology.trimmed()
    builder = _Builder(topology)
    for cpu in topology.cpus:
        builder.add_cpu(cpu)
    builder.add_notes()
    system = builder.system
    add_side_links(system, topology, builder.node_of, builder.owners)
    system.number()
    return system


class _Builder:
    def __init__(self, topology: NcclTopology) -> None:
        self.system = System()
        self._hosts = {host: index for index, host in enumerate(topology.host_hashes())}
        self.system.hosts = max(1, len(self._hosts))
        #: GPUs' devices and switches by host and busid; the first where a busid is repeated.
        self.node_of: dict[tuple[int, int], Node] = {}
        #: Each physical GPU with the rank that its links are read from: the first.
        self.owners: list[tuple[NcclPci, NcclGpu, Device]] = []
        self._nics: dict[int, Node] = {}
        self._unsaid_gdr: list[int] = []

    def add_notes(self) -> None:
        """Note what was assumed, once for all."""
        if self._unsaid_gdr:
            ranks = ", ".join(map(str, self._unsaid_gdr))
            self.system.note(f"GPUDirect is taken to work on GPUs of which the file does not say: ranks {ranks}")

    def add_cpu(self, cpu: NcclCpu) -> None:
        host = self._hosts[cpu.host_hash]
        node = Cpu(
            type=NodeType.CPU,
            key=node_key(host, cpu.numaid),
            name=node_name("CPU", str(cpu.numaid), host),
            arch=cpu.arch,
            vendor=cpu.vendor,
            bandwidth=cpu_bandwidth(cpu.arch, cpu.vendor, cpu.familyid, cpu.modelid),
        )
        _add(self.system.cpus, node)
        if not cpu.arch:
            self.system.note(f"{node.name} has no arch; its links to other CPUs count as endless")
        for child in cpu.children:
            if isinstance(child, NcclPci):
                self._add_pci(child, node, host)
            else:
                nic = self._nic(0, host)
                if not nic.links:
                    join(node, nic, LinkType.PCI, LOCAL_BANDWIDTH)
                self._add_nets(child, nic, host)

    def _add_pci(self, device: NcclPci, parent: Node, host: int) -> None:
        """Add a device and what is below it, then its link upwards. A class without use is left out."""
        if device.gpus:
            nodes: list[Node] = list(self._add_gpus(device, host))
        elif device.nics:
            nodes = self._add_nic(device, host)
        elif device_type(self._class(device)) is NodeType.PCI:
            nodes = [self._add_switch(device, host)]
        else:
            self.system.note(f"{device.busid}: neither GPU, NIC nor switch (class {device.device_class}); left out")
            return
        for node in nodes:
            join(node, parent, LinkType.PCI, self._link_bandwidth(device))

    def _link_bandwidth(self, device: NcclPci) -> float:
        if device.link_speed is None or device.link_width is None:
            missing = "link_speed" if device.link_speed is None else "link_width"
            _fail(device, f"{missing} is missing", _NEEDS_HOST)
        return pci_bandwidth(device.link_speed, device.link_width)

    def _class(self, device: NcclPci) -> str:
        if device.device_class is None:
            _fail(device, "class is missing", _NEEDS_HOST)
        return device.device_class

    def _add_switch(self, device: NcclPci, host: int) -> Switch:
        busid = bus_number(device.busid)
        ids = (device.vendor, device.device, device.subsystem_vendor, device.subsystem_device)
        switch = Switch(
            type=NodeType.PCI,
            key=node_key(host, busid),
            name=node_name("PCI", f"{busid:x}", host),
            device_id=ids[0] << 48 | ids[1] << 32 | ids[2] << 16 | ids[3],
        )
        _add(self.system.switches, switch)
        self.node_of.setdefault((host, busid), switch)
        for child in device.children:
            self._add_pci(child, switch, host)
        return switch

    def _add_gpus(self, device: NcclPci, host: int) -> list[Device]:
        """Add the ranks on one PCI device: one physical device, or one for each partition of it."""
        if device.device_class is not None and device_type(device.device_class) is not NodeType.GPU:
            if not device.device_class.startswith("0x12"):
                _fail(device, f"holds a GPU but is of class {device.device_class}", "a GPU's class begins with 0x03")
            self.system.note(f"{device.busid}: class {device.device_class} is an accelerator, taken for a GPU")
        else:
            self._class(device)
        partitions: dict[int | None, Device] = {}
        ranks: Counter[int | None] = Counter()
        for gpu in device.gpus:
            if gpu.rank is None:
                continue
            if gpu.mlopart not in partitions:
                partitions[gpu.mlopart] = self._add_device(device, gpu, host)
            self._add_rank(gpu, gpu.rank, partitions[gpu.mlopart], ranks[gpu.mlopart])
            ranks[gpu.mlopart] += 1
        siblings = [node for partition, node in partitions.items() if partition is not None]
        for node in siblings:
            node.siblings = len(siblings)
            for other in siblings:
                if other is not node and other.index < node.index:
                    join(other, node, LinkType.LOC, PARTITION_BANDWIDTH)
        return list(partitions.values())

    def _add_device(self, device: NcclPci, gpu: NcclGpu, host: int) -> Device:
        if gpu.dev is None or gpu.sm is None:
            _fail(device, f"its gpu has no {'dev' if gpu.dev is None else 'sm'}", _NEEDS_HOST)
        busid = bus_number(device.busid) + (0 if gpu.mlopart is None else 1 + 2 * gpu.mlopart)
        node = Device(
            type=NodeType.DEV,
            key=node_key(host, busid),
            name=node_name("DEV", f"{busid:x}", host),
            dev=gpu.dev,
            sm=gpu.sm,
            busid=device.busid,
            partition=gpu.mlopart,
            index=len(self.system.devices),
        )
        _add(self.system.devices, node)
        self.owners.append((device, gpu, node))
        self.node_of.setdefault((host, bus_number(device.busid)), node)
        return node

    def _add_rank(self, gpu: NcclGpu, rank: int, node: Device, earlier: int) -> None:
        """Add a rank on a device that has some earlier ones."""
        if gpu.gdr is None:
            self._unsaid_gdr.append(rank)
        added = Gpu(
            type=NodeType.GPU,
            key=node.key | earlier << 40,
            name=f"GPU:{rank}",
            rank=rank,
            device=node,
            gdr=gpu.gdr is not False,
        )
        _add(self.system.gpus, added)
        join(added, node, LinkType.LOC, LOCAL_BANDWIDTH)

    def _add_nic(self, device: NcclPci, host: int) -> list[Node]:
        """Add a card's ports; return the card if it is new. Cards with one busid on a host are one."""
        if len(device.nics) > 1:
            self.system.note(f"{device.busid} holds {len(device.nics)} nics; NCCL reads the first")
        nic = self._nic(bus_number(device.busid), host)
        known = bool(nic.links)
        self._add_nets(device.nics[0], nic, host)
        return [] if known else [nic]

    def _nic(self, local: int, host: int) -> Node:
        key = node_key(host, local)
        if key not in self._nics:
            self._nics[key] = Node(type=NodeType.NIC, key=key, name=node_name("NIC", f"{local:x}", host))
            _add(self.system.nics, self._nics[key])
        return self._nics[key]

    def _add_nets(self, nic: NcclNic, node: Node, host: int) -> None:
        for net in nic.nets:
            if net.dev is None:
                continue
            bandwidth = _net_bandwidth(net)
            key = node_key(host, net.dev)
            if net.net:
                port = Net(
                    type=NodeType.NET,
                    key=key,
                    name=node_name("NET", str(net.dev), host),
                    dev=net.dev,
                    label=net.name,
                    bandwidth=bandwidth,
                    latency=net.latency,
                    port=net.port,
                    guid=net.guid,
                    gdr=net.gdr,
                    coll=net.coll,
                    rail=net.rail,
                    plane=net.plane,
                )
                _add(self.system.nets, port)
                join(node, port, LinkType.NET, bandwidth)
            for kind, offered in ((NodeType.GIN, net.gin), (NodeType.RMA, net.rma)):
                if offered:
                    other = Node(type=kind, key=key, name=node_name(kind.name, str(net.dev), host))
                    _add(self.system.others, other)
                    join(node, other, LinkType.NET, bandwidth)


def _add(group: list[AnyNode], node: AnyNode) -> None:
    if len(group) >= MAX_NODES:
        raise InputError(f"more than {MAX_NODES} nodes of type {node.type.name}, the most that NCCL takes")
    group.append(node)


def _net_bandwidth(net: NcclNet) -> float:
    megabits = net.megabits_per_second
    return single((megabits if megabits > 0 else DEFAULT_NET_MEGABITS) / 8000)


def _fail(device: NcclPci, what: str, hint: str) -> NoReturn:
    raise InputError(f"line {device.line}: PCI device {device.busid}: {what}", hint=hint)
