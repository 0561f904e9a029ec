"""A node as a tree: NUMA nodes, what hangs below each of them, and what each port is on."""

from rich.text import Text
from rich.tree import Tree

from fabric_client.cli.clean import clean
from fabric_client.cli.show import text
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.networks import NetworkMap
from fabricd.graph.networks_ip import unusable
from fabricd.graph.snapshot import VIRTUAL_KINDS
from fabricd.model.device import NetInterface
from fabricd.model.path import Hop
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_bandwidth, format_ranges

_ROOTS = (VertexKind.NUMA, VertexKind.MACHINE)
_DOWNWARDS = frozenset({LinkKind.MEMORY, LinkKind.PCIE, LinkKind.PORT, LinkKind.C2C})


def tree_of(graph: Graph, snapshot: Snapshot | None, networks: NetworkMap) -> Tree:
    """Return the tree of one node's graph. A device that hangs on several others stands below the first."""
    labels = _Labels(snapshot, networks)
    trunk = Tree(text("node", "bold"), hide_root=True, guide_style="dim")
    seen = {vertex.name for vertex in graph.of_kind(*_ROOTS, VertexKind.MEMORY)}
    for root in sorted(graph.of_kind(*_ROOTS), key=lambda vertex: vertex.kind is VertexKind.MACHINE):
        below = _below(graph, root.name, seen)
        if root.kind is VertexKind.NUMA or below:
            _grow(trunk.add(labels.root(root)), graph, below, seen, labels)
    return trunk


def _below(graph: Graph, name: str, seen: set[str]) -> list[Hop]:
    hops = {hop.dst: hop for hop in graph.edges_from(name) if hop.link in _DOWNWARDS and hop.dst not in seen}
    seen.update(hops)
    return list(hops.values())


def _grow(branch: Tree, graph: Graph, hops: list[Hop], seen: set[str], labels: "_Labels") -> None:
    """Add devices and all that is below them. Without recursion: a file may nest as deep as it likes."""
    waiting = [(branch, hop) for hop in reversed(hops)]
    while waiting:
        stem, hop = waiting.pop()
        twig = stem.add(labels.device(graph[hop.dst], hop))
        waiting += [(twig, below) for below in reversed(_below(graph, hop.dst, seen))]


class _Labels:
    def __init__(self, snapshot: Snapshot | None, networks: NetworkMap) -> None:
        self._interfaces = {one.name: one for one in snapshot.interfaces} if snapshot else {}
        self._hcas = {hca.name: hca for hca in snapshot.hcas} if snapshot else {}
        self._numa = {numa.index: numa for numa in snapshot.numa} if snapshot else {}
        self._on: dict[str, list[str]] = {}
        for network in networks.networks:
            for port in network.ports:
                role = "" if network.role == "data" else f" ({network.role})"
                self._on.setdefault(port.interface, []).append(network.name + role)
        self._rejected = {one.name.partition("/")[2]: one.reason for one in networks.rejected}

    def root(self, vertex: Vertex) -> Text:
        if vertex.kind is VertexKind.MACHINE:
            return text("machine").append(clean("  NUMA node not known to the kernel"), style="dim")
        facts = []
        numa = self._numa.get(vertex.numa if vertex.numa is not None else -1)
        if numa is not None:
            facts.append(f"CPUs {format_ranges(numa.cpus) or 'none'}")
            if numa.memory_bytes is not None:
                facts.append(f"{numa.memory_bytes / 2**30:.1f} GiB")
        return text(vertex.local_name, "bold").append(clean("  " + ", ".join(facts)) if facts else "")

    def device(self, vertex: Vertex, hop: Hop) -> Text:
        label = text(vertex.local_name, "bold" if vertex.kind in (VertexKind.GPU, VertexKind.NIC) else "")
        if vertex.kind is VertexKind.NIC and vertex.local_name in self._interfaces:
            facts = self._interface(self._interfaces[vertex.local_name])
        elif vertex.kind is VertexKind.HCA_PORT:
            facts = self._port(vertex, hop)
        elif vertex.kind is VertexKind.HOST_BRIDGE:
            facts = ["host bridge"]
        else:
            facts = [vertex.kind.value.replace("-", " "), vertex.detail, hop.detail]
        return label.append(clean("  " + ", ".join(filter(None, facts))), style="dim" if not facts else "")

    def _interface(self, interface: NetInterface) -> list[str]:
        down = unusable(interface, self._interfaces)
        known = interface.speed_bytes_per_second
        speed = "virtual" if interface.kind in VIRTUAL_KINDS else format_bandwidth(known) if known else "speed ?"
        addresses = " ".join(f"{one.address}/{one.prefix_length}" for one in interface.addresses)
        facts = [interface.kind.value, interface.driver, speed, "" if down else "up", addresses]
        return [*facts, self._network(interface.name)]

    def _port(self, vertex: Vertex, hop: Hop) -> list[str]:
        name, _, number = vertex.local_name.rpartition(":")
        hca = self._hcas.get(name)
        port = next((one for one in hca.ports if str(one.port) == number), None) if hca else None
        state = port.state if port else ""
        speed = format_bandwidth(hop.bandwidth_bytes_per_second) if hop.bandwidth_bytes_per_second else "speed ?"
        return [vertex.detail, speed, state, self._network(vertex.local_name)]

    def _network(self, port: str) -> str:
        if port in self._on:
            return f"on {' and '.join(self._on[port])}"
        return f"on no network: {self._rejected[port]}" if port in self._rejected else ""
