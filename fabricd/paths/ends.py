"""The ends of paths: from names that people and programs give to vertices of the nodes' graphs."""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.graph import Graph, Vertex, VertexKind
from fabricd.graph.networks_ip import unusable
from fabricd.graph.snapshot import graph_of
from fabricd.model.snapshot import Snapshot

#: Longest name that is looked up: names come from the network, and are repeated in errors.
MAX_NAME = 512

PORTS = frozenset({VertexKind.NIC, VertexKind.HCA_PORT})


@dataclass(frozen=True, slots=True)
class End:
    """One end of a path."""

    node_id: str
    node: str  #: display name
    graph: Graph
    vertex: Vertex
    refused: str = ""  #: why nothing starts or ends there


class Ends:
    """Finds the ends of paths among some nodes; builds the graph of each node once.

    Args:
        nodes: snapshots by node_id.
        local: node_id of the node that bare names are of; by default the first.
    """

    def __init__(self, nodes: Mapping[str, Snapshot], local: str = "") -> None:
        self._nodes = nodes
        self._names = display_names(nodes)
        self._local = local or next(iter(nodes), "")
        self._node_ids = {**{name: node_id for node_id, name in self._names.items()}, **{one: one for one in nodes}}
        self._graphs: dict[str, Graph] = {}

    def find(self, name: str) -> End:
        """Return what a name means: "eth0", "NODE/eth0", or a node's name for any of its memory.

        Raises:
            UnknownNameError: no such node, or no such device on it; lists those there are.
            InputError: no name, or one that is too long.
        """
        if not name or len(name) > MAX_NAME:
            raise InputError(f"a name of {len(name)} characters", hint=f"1 to {MAX_NAME}, as eth0 or node/eth0")
        node, slash, device = name.partition("/")
        if not slash and name not in self._node_ids:
            node, device = self._local, name
        if node not in self._node_ids:
            raise UnknownNameError("node", node, sorted(self._names.values()))
        node_id = self._node_ids[node]
        shown = self._names[node_id]
        if node_id not in self._graphs:
            self._graphs[node_id] = graph_of(self._nodes[node_id], node=shown)
        graph = self._graphs[node_id]
        vertex = graph.find(device or VertexKind.MEMORY.value, node=shown)
        return End(node_id, shown, graph, vertex, refusals(self._nodes[node_id]).get(vertex.local_name, ""))


def display_names(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return each node's display name by node_id; nodes that share one go by their ids."""
    names = [snapshot.node.name for snapshot in nodes.values()]
    return {
        node_id: snapshot.node.name if snapshot.node.name and names.count(snapshot.node.name) == 1 else node_id
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
