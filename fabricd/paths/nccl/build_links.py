"""NCCL's graph beside the PCI trees: NVLink, C2C, links between switches, switches in two levels, the CPU mesh."""

from collections.abc import Mapping, Sequence

from fabricd.graph.nccl_xml_types import NcclGpu, NcclNvLink, NcclPci, NcclTopology
from fabricd.paths.nccl.kinds import LOCAL_BANDWIDTH, LinkType, NodeType, device_type, nvlink_bandwidth, single
from fabricd.paths.nccl.system import Device, Link, Node, Switch, System, bus_number, connect, join, node_key, node_name

#: What an NVLink leads to where the driver hides it: NCCL takes it for an NVSwitch.
_HIDDEN_TARGET = "fffffff:ffff:ff"

#: Broadcom PEX switches of two levels, by generation: id of parent and of sub-switch, without the low 12 bits.
_TWO_LEVEL_SWITCHES = {4: (0x1000C0101000A, 0x1000C0101000A), 5: (0x1000C03010000, 0x1000C03010001)}
_LEVEL_SHIFT = 12

#: By host and bus number: a device or switch, and all partitions of a GPU.
_NodeOf = Mapping[tuple[int, int], Node]
_Partitions = dict[tuple[int, int], list[Device]]


def add_side_links(
    system: System, topology: NcclTopology, node_of: _NodeOf, owners: Sequence[tuple[NcclPci, NcclGpu, Device]]
) -> None:
    """Add all links that do not follow the XML's nesting, then bring them into NCCL's final order.

    Args:
        system: with the trees below all CPUs.
        topology: trimmed, as the trees were built.
        node_of: devices and switches by host and bus number.
        owners: each physical GPU with the element and the rank whose links count.
    """
    partitions: _Partitions = {}
    for _, _, node in owners:
        partitions.setdefault((node.host, bus_number(node.busid)), []).append(node)
    for device, gpu, node in owners:
        for nvlink in gpu.nvlinks:
            _add_nvlink(system, device, nvlink, node, partitions)
        if gpu.xgmi:
            system.note(f"{device.busid}: xgmi links are not NVLinks; NCCL does not see them")
    for _, gpu, node in owners:
        if gpu.c2c is not None:
            _add_c2c(system, node, single(gpu.c2c.count * gpu.c2c.megabytes_per_second / 1000))
    _add_pcilinks(system, topology, node_of)
    _flatten(system)
    _add_mesh(system)
    for cpu in system.cpus:
        _move_uplinks_last(cpu)


def _add_nvlink(system: System, device: NcclPci, nvlink: NcclNvLink, node: Device, partitions: _Partitions) -> None:
    bandwidth = single(nvlink.count * nvlink_bandwidth(node.sm))
    kind = NodeType.NVS if nvlink.target == _HIDDEN_TARGET else device_type(nvlink.target_class)
    if kind is NodeType.GPU:
        # One direction; the target's own element adds the other.
        targets = partitions.get((node.host, bus_number(nvlink.target)), [])
        if not targets:
            system.note(f"{device.busid}: NVLink to {nvlink.target}, which is no GPU of this file, is ignored")
        for target in targets:
            connect(node, target, LinkType.NVL, single(bandwidth / (node.siblings * len(targets))))
    elif kind is NodeType.CPU:
        cpu = local_cpu(node)
        if cpu is not None:
            join(node, cpu, LinkType.NVL, single(bandwidth / node.siblings))
    else:
        if not system.nvswitches:
            system.nvswitches.append(Node(type=NodeType.NVS, key=0, name="NVS:0"))
        join(node, system.nvswitches[0], LinkType.NVL, single(bandwidth / node.siblings))


def _add_c2c(system: System, node: Device, bandwidth: float) -> None:
    """Link a GPU to its CPU; partitions of one GPU share a bridge."""
    cpu = local_cpu(node)
    if cpu is None:
        return
    if node.siblings == 1:
        join(node, cpu, LinkType.C2C, bandwidth)
        return
    local = bus_number(node.busid)
    key = node_key(node.host, local)
    bridge = next((bridge for bridge in system.bridges if bridge.key == key), None)
    if bridge is None:
        bridge = Node(type=NodeType.CXB, key=key, name=node_name("CXB", f"{local:x}", node.host))
        system.bridges.append(bridge)
        join(bridge, cpu, LinkType.C2C, bandwidth)
    join(node, bridge, LinkType.C2C, bandwidth)


def _add_pcilinks(system: System, topology: NcclTopology, node_of: _NodeOf) -> None:
    """Link switches beside the tree, one direction for each element."""
    hosts = {host: index for index, host in enumerate(topology.host_hashes())}
    for cpu in topology.cpus:
        for device in cpu.devices():
            source = node_of.get((hosts[cpu.host_hash], bus_number(device.busid)))
            for busid in device.pcilinks:
                target = node_of.get((hosts[cpu.host_hash], bus_number(busid)))
                if isinstance(source, Switch) and isinstance(target, Switch):
                    connect(source, target, LinkType.LOC, LOCAL_BANDWIDTH)
                else:
                    system.note(f"{device.busid}: pcilink to {busid}, not between switches of this file, is ignored")


def local_cpu(node: Node) -> Node | None:
    """Return the CPU that is found first up the PCI tree."""
    return _climb(node, None, set())


def _climb(node: Node, came_from: Node | None, seen: set[int]) -> Node | None:
    if node.type is NodeType.CPU:
        return node
    seen.add(id(node))
    for link in node.links:
        upwards = link.target.type in (NodeType.PCI, NodeType.CPU)
        if link.type == LinkType.PCI and upwards and link.target is not came_from and id(link.target) not in seen:
            found = _climb(link.target, node, seen)
            if found is not None:
                return found
    return None


def _add_mesh(system: System) -> None:
    """Join the CPUs of each host, all to all; each link has the bandwidth of the CPU that it leaves."""
    for cpu in system.cpus:
        peers = (other for other in system.cpus if other is not cpu and other.host == cpu.host)
        cpu.links.extend(Link(LinkType.SYS, cpu, other, cpu.bandwidth) for other in peers)
        cpu.links.sort(key=lambda link: -link.bandwidth)


def _generation(switch: Switch, *, level: int) -> int:
    for generation, ids in _TWO_LEVEL_SWITCHES.items():
        if not switch.flattened and switch.device_id >> _LEVEL_SHIFT == ids[level]:
            return generation
    return 0


def _flatten(system: System) -> None:
    """Merge sub-switches of two-level switches into their parents.

    In base mode such a switch shows itself as a tree of two levels, though it is one crossbar: data between two
    of its sub-switches do not share the link that the tree shows between them.
    """
    place = 0
    while place < len(system.switches):
        switch = system.switches[place]
        place += 1
        generation = _generation(switch, level=0)
        if not generation:
            continue
        subs = [
            link.target
            for link in switch.links
            if isinstance(link.target, Switch) and _generation(link.target, level=1) == generation
        ]
        for sub in dict.fromkeys(subs):
            _absorb(system, switch, sub)
        switch.flattened = True
        place = 0


def _absorb(system: System, switch: Switch, sub: Switch) -> None:
    """Give a sub-switch's links to its parent, with their own bandwidths, and delete it."""
    for link in sub.links:
        if link.target is switch:
            continue
        switch.links.append(Link(link.type, switch, link.target, link.bandwidth))
        back = next((other for other in link.target.links if other.target is sub), None)
        if back is not None:
            back.target = switch
    system.switches.remove(sub)
    for node in system.nodes():
        node.links = [link for link in node.links if link.target is not sub]


def _move_uplinks_last(cpu: Node) -> None:
    """Below a CPU, move each node's first link to its parent to the end of its list.

    Merged switches may close a ring; each step downwards is taken once, where NCCL would not come to an end.
    """
    taken: set[tuple[int, int]] = set()
    stack: list[tuple[Node, Node | None]] = [(cpu, None)]
    while stack:
        node, parent = stack.pop()
        if parent is not None:
            place = next((i for i, link in enumerate(node.links) if link.target is parent), None)
            if place is None:
                continue
            node.links.append(node.links.pop(place))
        for link in reversed(node.links):
            step = (id(node), id(link.target))
            if link.type == LinkType.PCI and link.target is not parent and step not in taken:
                taken.add(step)
                stack.append((link.target, node))
