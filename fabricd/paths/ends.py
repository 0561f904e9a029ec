"""The ends of paths: from names that people and programs give to vertices of the nodes' graphs."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.graph import Graph, Vertex, VertexKind
from fabricd.graph.networks_ip import unusable
from fabricd.model.snapshot import Snapshot
from fabricd.paths.ways import NodeWays

#: Longest name that is looked up: names come from the network, and are repeated in errors.
MAX_NAME = 512

#: Nodes whose graphs are kept. One of 8 GPUs takes some 300 KB.
_KEPT = 256

PORTS = frozenset({VertexKind.NIC, VertexKind.HCA_PORT})


@dataclass(frozen=True, slots=True)
class End:
    """One end of a path."""

    node_id: str
    node: str  #: display name
    ways: NodeWays
    vertex: Vertex
    refused: str = ""  #: why nothing starts or ends there

    @property
    def graph(self) -> Graph:
        """The graph of its node."""
        return self.ways.graph

    @property
    def snapshot(self) -> Snapshot:
        """What is known of its node."""
        return self.ways.snapshot


class Ends:
    """Finds the ends of paths among some nodes. Keeps names and graphs for the next question; threads may share it.

    What a question costs does not depend on how many nodes there are, until the mapping of nodes is another one.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._nodes: Mapping[str, Snapshot] = {}
        self._names: dict[str, str] = {}
        self._node_ids: dict[str, str] = {}
        self._ways: OrderedDict[str, NodeWays] = OrderedDict()  # by node_id, what was asked for last at the end

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
            if nodes is not self._nodes:
                self._take(nodes)
            node, slash, device = name.partition("/")
            if not slash and name not in self._node_ids:
                node, device = local or next(iter(nodes), ""), name
            if node not in self._node_ids:
                raise UnknownNameError("node", node, sorted(self._names.values()))
            node_id = self._node_ids[node]
            ways = self._ways_of(node_id)
        vertex = ways.graph.find(device or VertexKind.MEMORY.value, node=ways.node)
        return End(node_id, ways.node, ways, vertex, refusals(ways.snapshot).get(vertex.local_name, ""))

    def _take(self, nodes: Mapping[str, Snapshot]) -> None:
        self._nodes = nodes
        self._names = display_names(nodes)
        self._node_ids = {**{name: node_id for node_id, name in self._names.items()}, **{one: one for one in nodes}}

    def _ways_of(self, node_id: str) -> NodeWays:
        """Return the ways within a node, from last time if its facts and its name are the same."""
        known = self._ways.get(node_id)
        snapshot, shown = self._nodes[node_id], self._names[node_id]
        if known is None or known.snapshot is not snapshot or known.node != shown:
            known = self._ways[node_id] = NodeWays(snapshot, shown)
        self._ways.move_to_end(node_id)
        while len(self._ways) > _KEPT:
            self._ways.popitem(last=False)
        return known


def display_names(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return each node's display name by node_id; nodes that share one go by their ids."""
    count = Counter(snapshot.node.name for snapshot in nodes.values())
    return {
        node_id: snapshot.node.name if snapshot.node.name and count[snapshot.node.name] == 1 else node_id
        for node_id, snapshot in nodes.items()
    }


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
