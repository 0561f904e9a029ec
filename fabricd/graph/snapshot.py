"""A node's snapshot as a graph: NUMA nodes, the PCI tree with its links as they are now, adapters and their ports.

What hangs together where is the kernel's word; figures that it does not give are left unknown, or nominal and
marked assumed (the interconnect between NUMA nodes). Where the kernel does not know a device's NUMA node (-1),
the device is linked to the machine as a whole.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace

from fabricd.errors import InputError
from fabricd.graph import nominal
from fabricd.graph.graph import MAX_NUMA_NODES, Conflict, Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.snapshot_nvlink import add_gpu_links
from fabricd.graph.snapshot_pci import add_pci, attach
from fabricd.graph.template import placement
from fabricd.model.device import Hca, InterfaceKind, NetInterface
from fabricd.model.observation import Evidence
from fabricd.model.snapshot import Snapshot

#: Interfaces looked at below one. A bridge of many containers has some hundreds.
_MAX_LOWER = 2048

#: Interfaces that no hardware of this host backs. A virtio card counts as hardware: it is what the machine has.
VIRTUAL_KINDS = frozenset(
    {
        InterfaceKind.VETH,
        InterfaceKind.BRIDGE,
        InterfaceKind.TUN,
        InterfaceKind.TUNNEL,
        InterfaceKind.IFB,
        InterfaceKind.DUMMY,
        InterfaceKind.LOOPBACK,
        InterfaceKind.OTHER,
    }
)


def graph_of(snapshot: Snapshot, *, node: str | None = None) -> Graph:
    """Return the graph of one node. ``Graph.conflicts`` holds where its sources do not agree.

    Devices of a virtual machine that hides how they hang together are where its topology file says.

    Args:
        snapshot: the node's facts.
        node: prefix of the vertices' names; by default the node's display name. ``""`` for none.

    Raises:
        InputError: more NUMA nodes than any machine has.
    """
    node = snapshot.node.name if node is None else node
    prefix = f"{node}/" if node else ""
    graph = Graph()
    placed = placement(snapshot)
    snapshot = placed.snapshot
    graph.notes.extend(placed.notes)
    graph.conflicts.extend(replace(one, where=prefix + one.where) for one in placed.conflicts)
    _add_numa(graph, snapshot, prefix)
    vertex_of = add_pci(graph, snapshot, prefix)
    _add_loose_gpus(graph, snapshot, prefix)
    _add_interfaces(graph, snapshot, prefix, vertex_of)
    _add_hca_ports(graph, snapshot, prefix, vertex_of)
    add_gpu_links(graph, snapshot, prefix)
    graph.conflicts.extend(graph.faults())
    return graph


def _add_numa(graph: Graph, snapshot: Snapshot, prefix: str) -> None:
    """Add NUMA nodes, joined all to all, the machine as a whole, and its memory as an end of paths.

    The memory of a GPU may be a NUMA node too; it is the GPU's own, and no place that a path leads through.
    """
    of_gpus = {gpu.memory_numa_node for gpu in snapshot.gpus}
    indices = list(dict.fromkeys(numa.index for numa in snapshot.numa if numa.index not in of_gpus))
    if len(indices) > MAX_NUMA_NODES:
        raise InputError(f"{prefix[:-1]}: {len(indices)} NUMA nodes, more than any machine has ({MAX_NUMA_NODES})")
    several = len(indices) > 1
    across = nominal.interconnect_bandwidth(snapshot.node.cpu)
    machine = graph.add(Vertex(name=f"{prefix}machine", kind=VertexKind.MACHINE, node=prefix[:-1]))
    for position, index in enumerate(indices):
        name = f"{prefix}numa{index}"
        graph.add(Vertex(name=name, kind=VertexKind.NUMA, node=prefix[:-1], numa=index))
        for other in indices[:position]:
            graph.connect(
                name,
                f"{prefix}numa{other}",
                LinkKind.INTERCONNECT,
                bandwidth=across,
                latency=nominal.INTERCONNECT_LATENCY,
                detail="nominal for this processor",
            )
        # What hangs on the machine may sit at another NUMA node, so its way may lead over the interconnect.
        graph.connect(
            machine.name,
            name,
            LinkKind.INTERCONNECT if several else LinkKind.MEMORY,
            bandwidth=across if several else None,
            latency=nominal.INTERCONNECT_LATENCY if several else nominal.MEMORY_LATENCY,
            detail="may cross the interconnect" if several else "the only NUMA node",
        )
    memory = graph.add(Vertex(name=f"{prefix}memory", kind=VertexKind.MEMORY, node=prefix[:-1]))
    for place in (*(f"{prefix}numa{index}" for index in indices), machine.name):
        graph.connect(memory.name, place, LinkKind.MEMORY, latency=0.0, detail="any memory of the node")


def _add_loose_gpus(graph: Graph, snapshot: Snapshot, prefix: str) -> None:
    """Add the GPUs that the PCI probe did not list (it was denied, or did not run)."""
    for gpu in snapshot.gpus:
        name = f"{prefix}gpu{gpu.index}"
        if name not in graph:
            aliases = tuple(alias.lower() for alias in (gpu.pci_address, gpu.uuid) if alias)
            kind = VertexKind.GPU
            graph.add(
                Vertex(name=name, kind=kind, node=prefix[:-1], aliases=aliases, numa=gpu.numa_node, detail=gpu.name)
            )
            attach(graph, name, prefix, gpu.numa_node, LinkKind.MEMORY, detail="PCI path not known")


def _add_interfaces(graph: Graph, snapshot: Snapshot, prefix: str, vertex_of: dict[str, str]) -> None:
    """Add network interfaces, each under the cards that carry it, or under the machine where there is none."""
    by_name = {interface.name: interface for interface in snapshot.interfaces}
    for interface in snapshot.interfaces:
        name = prefix + interface.name
        carriers = list(carriers_of(interface, by_name))
        virtual = all(carrier.kind in VIRTUAL_KINDS for carrier, _ in carriers)
        vertex = Vertex(
            name=name,
            kind=VertexKind.NIC,
            node=prefix[:-1],
            numa=interface.numa_node,
            virtual=virtual,
            gdr=False,  # an interface carries IP, which the kernel copies
            detail=interface.kind.value,
        )
        if name in graph:
            graph.conflicts.append(Conflict(where=name, problem="two devices of one name", taken="the first"))
            continue
        graph.add(vertex)
        cards = [(carrier, how) for carrier, how in carriers if carrier.pci_address in vertex_of]
        for carrier, how in cards:
            _link_port(graph, name, vertex_of[carrier.pci_address], carrier.speed_bytes_per_second, how)
        if not cards:
            attach(graph, name, prefix, interface.numa_node, LinkKind.MEMORY, detail=interface.kind.value)
        _check_speed(graph, name, interface, by_name)


def carriers_of(interface: NetInterface, by_name: Mapping[str, NetInterface]) -> Iterator[tuple[NetInterface, str]]:
    """Yield the interfaces at the bottom of a stack (VLAN on bond on cards), each with how it is reached.

    An interface that stands on no other is its own carrier. Each is visited once: what others report may be a ring,
    or a maze, so the work is bounded.
    """
    seen = {interface.name}
    waiting = deque([(interface, interface.driver or interface.kind.value)])
    bottom = False
    looked_at = 0
    while waiting and looked_at < _MAX_LOWER:
        upper, how = waiting.popleft()
        names = [name for name in (upper.parent, *upper.members) if name in by_name]
        looked_at += 1 + len(names)
        if not names:
            bottom = True
            yield upper, how
        for name in names:
            if name not in seen:
                seen.add(name)
                waiting.append((by_name[name], f"{upper.kind.value} on {name}"))
    if not bottom:
        yield interface, "a ring of interfaces"


def _check_speed(graph: Graph, name: str, interface: NetInterface, by_name: Mapping[str, NetInterface]) -> None:
    """Report a stacked interface that claims more than what lies below it."""
    carriers = [carrier for carrier, _ in carriers_of(interface, by_name)]
    speeds = [carrier.speed_bytes_per_second for carrier in carriers]
    own = interface.speed_bytes_per_second
    if carriers == [interface] or own is None or None in speeds:
        return
    below = sum(speed for speed in speeds if speed is not None)
    if own > below:
        problem = f"says {own} bytes/s, but what it stands on has {below}"
        graph.conflicts.append(Conflict(where=name, problem=problem, taken="that of what it stands on"))


def _add_hca_ports(graph: Graph, snapshot: Snapshot, prefix: str, vertex_of: dict[str, str]) -> None:
    for hca in snapshot.hcas:
        for own, port in hca.named_ports():
            name = prefix + own
            graph.add(
                Vertex(
                    name=name,
                    kind=VertexKind.HCA_PORT,
                    node=prefix[:-1],
                    aliases=(hca.name.lower(),) if len(hca.ports) == 1 else (),
                    numa=hca.numa_node,
                    virtual=hca.kind == "soft-roce",
                    gdr=_gpudirect(hca),
                    detail=hca.kind,
                )
            )
            if hca.pci_address in vertex_of:
                _link_port(graph, name, vertex_of[hca.pci_address], port.rate_bytes_per_second, hca.kind)
            else:
                attach(graph, name, prefix, hca.numa_node, LinkKind.MEMORY, detail=hca.kind)


def _gpudirect(hca: Hca) -> bool | None:
    """Whether memory of GPUs can be registered with an HCA, one way or another; ``None`` is not known."""
    ways = (hca.dmabuf, hca.peer_memory)
    if True in ways:
        return True
    return None if None in ways else False


def _link_port(graph: Graph, port: str, card: str, speed: int | None, how: str) -> None:
    bandwidth = nominal.known(speed)
    graph.connect(
        port,
        card,
        LinkKind.PORT,
        bandwidth=bandwidth,
        latency=nominal.PORT_LATENCY,
        evidence=Evidence.REPORTED if bandwidth else Evidence.ASSUMED,
        detail=how if bandwidth else f"{how}, speed not known",
    )
