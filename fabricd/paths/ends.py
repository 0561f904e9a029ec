"""The ends of paths: from names that people and programs give to vertices of the nodes' graphs."""

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from threading import Lock
from weakref import ref

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.graph import Graph, Vertex, VertexKind
from fabricd.graph.networks_ip import unusable
from fabricd.graph.networks_node import KnownPorts, NodePorts
from fabricd.graph.snapshot import graph_of
from fabricd.model.observation import Outcome
from fabricd.model.placement import Position
from fabricd.model.snapshot import Snapshot
from fabricd.paths.names import NodeNames
from fabricd.paths.port_facts import PortTables
from fabricd.paths.ways import PORTS, NodeWays

#: Longest name that is looked up: names come from the network, and are repeated in errors.
MAX_NAME = 512

#: Kinds of machines whose graphs are kept. One of 8 GPUs takes some 300 KB.
_KEPT = 64

#: Nodes of which is kept what the tables of their ports say.
_KEPT_TABLES = 256

#: Ports of two nodes that are gone through in a millisecond or two.
_FEW_PORTS = 256
#: Ports with routing tables of their own may each lead to each of the other node: of these there are few pairs.
_FEW_RULES = 16

#: What the graph of a node is made from, of each of its devices.
_OF_GPU = attrgetter(
    "index",
    "outcome",
    "pci_address",
    "name",
    "numa_node",
    "memory_numa_node",
    "pcie",
    "c2c_links",
    "c2c_bytes_per_second",
)
_OF_HCA = attrgetter("name", "kind", "pci_address", "numa_node", "dmabuf", "peer_memory")
_OF_PORT = attrgetter("port", "rate_bytes_per_second")
_OF_INTERFACE = attrgetter(
    "name", "kind", "driver", "pci_address", "numa_node", "parent", "members", "speed_bytes_per_second"
)


@dataclass(frozen=True, slots=True)
class End:
    """One end of a path."""

    node_id: str
    node: str  #: display name
    snapshot: Snapshot
    ways: NodeWays  #: names in it are within the node
    vertex: Vertex  #: of that
    refused: str  #: why nothing starts or ends there
    ports: NodePorts  #: of its node
    tables: PortTables
    position: Position | None = None  #: under which switches somebody says that its node stands

    @property
    def name(self) -> str:
        """What it is called in answers: "node/gpu3"."""
        return self.full(self.vertex.name)

    def full(self, name: str) -> str:
        """Return the name of a vertex of its node as it is in answers."""
        return f"{self.node}/{name}"

    def rails(self) -> Mapping[str, int]:
        """Return the place of each port for jobs' data among its node's, by name."""
        return self.ways.rails_of(self.snapshot)

    def graph(self) -> Graph:
        """Return the graph of its node, with full names."""
        return graph_of(self.snapshot, node=self.node)


class Ends:
    """Finds the ends of paths among some nodes. Keeps names and graphs for the next question; threads may share it.

    What a question costs does not depend on how many nodes there are; the first one after a change looks through them,
    which takes a millisecond for ten thousand.
    """

    def __init__(self) -> None:
        self.ports = KnownPorts()
        self._lock = Lock()
        self._names = NodeNames()
        #: By kind of machine, the last that a node was found to be of at the end.
        self._ways: OrderedDict[Hashable, tuple[Snapshot, NodeWays]] = OrderedDict()
        #: By node_id, the snapshot and the ways of its kind, which others may have pushed out.
        self._kinds: dict[str, tuple[Snapshot, ref[NodeWays]]] = {}
        #: By node_id, the last that was used at the end.
        self._tables: OrderedDict[str, PortTables] = OrderedDict()

    def learn(self, node_id: str, snapshot: Snapshot) -> bool:
        """Read what a node's ports say before anybody asks; return whether it was not known, and is quickly read."""
        if self.ports.has(node_id, snapshot) or _count_ports(snapshot) > _FEW_PORTS:
            return False
        with self._lock:
            key = likeness(snapshot)
            if key in self._ways or len(self._ways) < _KEPT:
                self._keep(node_id, snapshot, key)
        self.ports.of_node(node_id, snapshot).read()
        return True

    def keep_to(self, nodes: Mapping[str, Snapshot]) -> None:
        """Forget what is known of nodes that are not among some, by node_id."""
        self.ports.keep_to(nodes)
        with self._lock:
            for node_id in self._kinds.keys() - nodes.keys():
                del self._kinds[node_id]
                self._tables.pop(node_id, None)

    def find(self, nodes: Mapping[str, Snapshot], name: str, local: str = "") -> End:
        """Return what a name means: "eth0", "NODE/eth0", or a node's name for any of its memory.

        Args:
            nodes: snapshots by node_id; a mapping that nobody changes.
            name: of a node, or of a device on one.
            local: node_id of the node that bare names are of; by default the first.

        Raises:
            UnknownNameError: no such node, or no such device on it; lists those there are.
            InputError: no name, or one that is too long.
        """
        if not name or len(name) > MAX_NAME:
            raise InputError(f"a name of {len(name)} characters", hint=f"1 to {MAX_NAME}, as eth0 or node/eth0")
        with self._lock:
            self._names.keep_to(nodes)
            node, device = self._parts(nodes, name, local)
            node_id = self._names.find(node)
            if node_id is None:
                raise UnknownNameError("node", node, self._names.all())
            snapshot, shown = nodes[node_id], self._names.shown(node_id)
            ways, tables = self._ways_of(node_id, snapshot), self._tables_of(node_id, snapshot)
        vertex = _vertex(snapshot, ways, device or VertexKind.MEMORY.value, shown)
        return End(node_id, shown, snapshot, ways, vertex, _refusal(snapshot, vertex), tables.ports, tables)

    def are_near_at_hand(self, nodes: Mapping[str, Snapshot], names: Sequence[str], local: str = "") -> bool:
        """Tell whether ends are on two nodes of few ports and of kinds that are known, so that paths are found at once.

        Arguments as of ``find``. Does not wait for another thread.
        """
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._names.keep_to(nodes)
            ids = {self._names.find(self._parts(nodes, name, local)[0]) for name in names}
            both = {node_id: nodes[node_id] for node_id in ids if node_id is not None}
            ports = sum(map(_count_ports, both.values()))
            few = len(both) == len(names) and ports <= _FEW_PORTS
            few = few and all(len(one.routing_rules) <= _FEW_RULES for one in both.values())
            return few and all(self._is_near(node_id, one) for node_id, one in both.items())
        finally:
            self._lock.release()

    def _parts(self, nodes: Mapping[str, Snapshot], name: str, local: str) -> tuple[str, str]:
        """Return the node and the device that a name means; "" for any memory of the node."""
        node, slash, device = name.partition("/")
        if slash or self._names.find(name) is not None:
            return node, device
        return local or next(iter(nodes), ""), name

    def _is_near(self, node_id: str, snapshot: Snapshot) -> bool:
        """Tell whether the ways within a node are known; then they are kept for it."""
        if self._known_ways(node_id, snapshot) is not None:
            return True
        key = likeness(snapshot)
        if key in self._ways:
            self._keep(node_id, snapshot, key)
            return True
        return False

    def _ways_of(self, node_id: str, snapshot: Snapshot) -> NodeWays:
        """Return the ways within a node, which are those of any before whose hardware is the same."""
        return self._known_ways(node_id, snapshot) or self._keep(node_id, snapshot, likeness(snapshot))

    def _known_ways(self, node_id: str, snapshot: Snapshot) -> NodeWays | None:
        known = self._kinds.get(node_id)
        return known[1]() if known is not None and known[0] is snapshot else None

    def _keep(self, node_id: str, snapshot: Snapshot, key: Hashable) -> NodeWays:
        if key not in self._ways:
            self._ways[key] = (snapshot, NodeWays(snapshot))
        self._ways.move_to_end(key)
        while len(self._ways) > _KEPT:
            self._ways.popitem(last=False)
        ways = self._ways[key][1]
        self._kinds[node_id] = (snapshot, ref(ways))
        return ways

    def _tables_of(self, node_id: str, snapshot: Snapshot) -> PortTables:
        ports = self.ports.of_node(node_id, snapshot)
        tables = self._tables.get(node_id)
        if tables is None or tables.ports is not ports:
            tables = self._tables[node_id] = PortTables(ports)
        self._tables.move_to_end(node_id)
        while len(self._tables) > _KEPT_TABLES:
            self._tables.popitem(last=False)
        return tables


def likeness(snapshot: Snapshot) -> Hashable:
    """Return what two nodes must share for their graphs to be the same but for the names in front.

    Parts that are large are told apart by being one object: snapshots that came over the network share what is equal
    on them. Whoever keeps the key must keep the snapshot, too, so that no other object takes the place of these.
    """
    return (
        id(snapshot.numa),
        id(snapshot.pci),
        id(snapshot.topology_file),
        snapshot.node.cpu,
        snapshot.node.virtualization,
        tuple((*_OF_GPU(gpu), id(gpu.links)) for gpu in snapshot.gpus),
        tuple((*_OF_HCA(hca), *map(_OF_PORT, hca.ports)) for hca in snapshot.hcas),
        tuple(map(_OF_INTERFACE, snapshot.interfaces)),
    )


def _count_ports(snapshot: Snapshot) -> int:
    return len(snapshot.interfaces) + sum(len(hca.ports) for hca in snapshot.hcas)


def _vertex(snapshot: Snapshot, ways: NodeWays, device: str, node: str) -> Vertex:
    """Return the vertex that a device's name, PCI address or UUID means.

    Raises:
        UnknownNameError: lists those of the node.
    """
    uuid = device.lower()
    by_uuid = next((f"gpu{gpu.index}" for gpu in snapshot.gpus if gpu.uuid.lower() == uuid), device)
    try:
        return ways.graph.find(by_uuid)
    except UnknownNameError:
        raise UnknownNameError(f"device on {node}", device, ways.graph.names()) from None


def _refusal(snapshot: Snapshot, vertex: Vertex) -> str:
    if vertex.kind is VertexKind.GPU:
        gpu = next(gpu for gpu in snapshot.gpus if f"gpu{gpu.index}" == vertex.name)
        return "" if gpu.outcome is Outcome.OK else f"the GPU is {gpu.outcome}: {gpu.reason or 'no reason known'}"
    if vertex.kind is not VertexKind.NIC:
        return ""
    by_name = {interface.name: interface for interface in snapshot.interfaces}
    return unusable(by_name[vertex.name], by_name)


def refusals(snapshot: Snapshot) -> dict[str, str]:
    """Return the interfaces that can be no end of a path, each with the reason."""
    by_name = {interface.name: interface for interface in snapshot.interfaces}
    reasons = {name: unusable(interface, by_name) for name, interface in by_name.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def ends_of(graph: Graph, snapshot: Snapshot | None = None) -> list[str]:
    """Return what paths of a node are asked for: GPUs and the ports that can carry something.

    Without any GPU, its NUMA nodes stand for what talks.
    """
    refused = refusals(snapshot) if snapshot else {}
    talkers = graph.of_kind(VertexKind.GPU) or graph.of_kind(VertexKind.NUMA)
    ports = [
        port for port in graph.of_kind(*PORTS) if port.kind is not VertexKind.NIC or port.local_name not in refused
    ]
    return [vertex.name for vertex in (*talkers, *ports)]
