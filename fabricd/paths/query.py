"""Answers to "which paths lead from a to b, which is best, and why not another": within a node and between nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.graph import Graph, Vertex, VertexKind
from fabricd.graph.networks import find_networks
from fabricd.graph.networks_ip import unusable
from fabricd.graph.networks_routed import routed_networks
from fabricd.graph.snapshot import graph_of
from fabricd.model.measurement import Measurement
from fabricd.model.path import Path, PathAnswer, Rejected
from fabricd.model.snapshot import Snapshot
from fabricd.paths.across import End, candidates_across, joined
from fabricd.paths.candidates import candidates_in
from fabricd.paths.describe import describe
from fabricd.paths.explain import explained
from fabricd.paths.explain_classes import better_classes_between, better_classes_within
from fabricd.paths.flow import capacity
from fabricd.paths.rank import ranked
from fabricd.paths.search import MAX_CANDIDATES, PathSearch

#: Longest name that is looked up: names come from the network, and are repeated in errors.
MAX_NAME = 512


def find_paths(
    nodes: Mapping[str, Snapshot],
    src: str,
    dst: str,
    *,
    measurements: Sequence[Measurement] = (),
    explain: bool = False,
    local: str = "",
    candidates: int = 4,
    with_capacity: bool = False,
) -> PathAnswer:
    """Return the candidates between two ends, best first.

    Args:
        nodes: snapshots by node_id.
        src: "eth0", "mlx5_0:1", "numa0", "gpu0", a PCI address, or a node's name for any of its memory; of another
            node with its name or node_id before it: "NODE/eth0". A bare name is the local node's.
        dst: as ``src``.
        measurements: what active probes between the nodes found.
        explain: adds to ``rejected`` why each better class of transport is no candidate.
        local: node_id of the local node; by default the first of ``nodes``.
        candidates: at most so many paths.
        with_capacity: adds what all paths carry at once; between nodes all those of the best one's transport.

    Raises:
        UnknownNameError: no such node, or no such device on it.
        InputError: a name that is too long, or a number of candidates out of bounds.
    """
    if not 1 <= candidates <= MAX_CANDIDATES:
        raise InputError(f"{candidates} candidates asked for", hint=f"between 1 and {MAX_CANDIDATES}")
    names = display_names(nodes)
    start, goal = _ends(nodes, names, (src, dst), local or next(iter(nodes), ""))
    rejected = [Rejected(name=end.vertex.name, reason=end.refused) for end in (start, goal) if end.refused]
    if rejected:
        return PathAnswer(src=start.vertex.name, dst=goal.vertex.name, rejected=tuple(dict.fromkeys(rejected)))
    if start.node_id == goal.node_id:
        answer = paths_in(
            start.graph, start.vertex.name, goal.vertex.name, candidates=candidates, with_capacity=with_capacity
        )
        better = better_classes_within(start, goal, answer.paths) if explain else ()
        return replace(answer, rejected=tuple(better))
    networks = find_networks({end.node_id: nodes[end.node_id] for end in (start, goal)}, measurements)
    routed = routed_networks(networks.networks, nodes[start.node_id], nodes[goal.node_id])
    networks = replace(networks, networks=(*networks.networks, *routed))
    across, rejected = candidates_across(networks, start, goal, measurements)
    paths = ranked(across)
    if explain:
        rejected += better_classes_between(nodes, networks, start, goal, paths)
    alike = [path for path in paths if path.transport is paths[0].transport]
    total = None
    if with_capacity and alike:
        total = capacity(joined(start, goal, alike), start.vertex.name, goal.vertex.name, across=True)
    return PathAnswer(
        src=start.vertex.name,
        dst=goal.vertex.name,
        paths=explained(paths[:candidates]),
        rejected=tuple(rejected),
        capacity=total,
    )


def display_names(nodes: Mapping[str, Snapshot]) -> dict[str, str]:
    """Return each node's display name by node_id; nodes that share one go by their ids."""
    names = [snapshot.node.name for snapshot in nodes.values()]
    return {
        node_id: snapshot.node.name if snapshot.node.name and names.count(snapshot.node.name) == 1 else node_id
        for node_id, snapshot in nodes.items()
    }


def _ends(
    nodes: Mapping[str, Snapshot], names: Mapping[str, str], wanted: tuple[str, str], local: str
) -> tuple[End, End]:
    graphs = {}
    ends = []
    for name in wanted:
        node_id, device = _split(nodes, names, name, local)
        if node_id not in graphs:
            graphs[node_id] = graph_of(nodes[node_id], node=names[node_id])
        graph = graphs[node_id]
        vertex = graph.find(device, node=names[node_id])
        ends.append(End(node_id, names[node_id], graph, vertex, _refusal(nodes[node_id], vertex)))
    return ends[0], ends[1]


def _split(nodes: Mapping[str, Snapshot], names: Mapping[str, str], name: str, local: str) -> tuple[str, str]:
    """Return node_id and device of a name."""
    if not name or len(name) > MAX_NAME:
        raise InputError(f"a name of {len(name)} characters", hint=f"1 to {MAX_NAME} characters, as eth0 or node/eth0")
    by_name = {**{shown: node_id for node_id, shown in names.items()}, **{node_id: node_id for node_id in nodes}}
    node, slash, device = name.partition("/")
    if slash:
        if node not in by_name:
            raise UnknownNameError("node", node, sorted(names.values()))
        return by_name[node], device or VertexKind.MEMORY.value
    if name in by_name:
        return by_name[name], VertexKind.MEMORY.value
    if local not in nodes:
        raise UnknownNameError("node", local, sorted(names.values()))
    return local, name


def _refusal(snapshot: Snapshot, vertex: Vertex) -> str:
    """Return why a port can be no end of a path, ``""`` if it can."""
    interfaces = {interface.name: interface for interface in snapshot.interfaces}
    interface = interfaces.get(vertex.local_name) if vertex.kind is VertexKind.NIC else None
    return unusable(interface, interfaces) if interface else ""


def paths_in(graph: Graph, src: str, dst: str, *, candidates: int = 4, with_capacity: bool = False) -> PathAnswer:
    """Return the candidates between two vertices of one graph, best first, and what all paths carry at once.

    Raises:
        InputError: a number of candidates out of bounds.
    """
    found = explained(ranked(candidates_in(graph, src, dst, candidates)))
    total = capacity(graph, src, dst) if with_capacity and found else None
    return PathAnswer(src=src, dst=dst, paths=found, capacity=total)


def all_paths(graph: Graph, ends: Sequence[str]) -> Iterator[Path]:
    """Yield the best path of every ordered pair of different ends that has one, in no certain order.

    Pairs of two ports are left out: nothing is sent from one port of a node to another.

    Raises:
        InputError: too many ends for all pairs.
    """
    ports = {end for end in ends if graph[end].kind in (VertexKind.NIC, VertexKind.HCA_PORT)}
    for src, dst, hops in PathSearch(graph).all_best(ends, apart=ports):
        yield describe(graph, src, dst, hops)


def paths_from(graph: Graph, src: str, ends: Sequence[str]) -> Iterator[Path]:
    """Yield the best path from one vertex to each other end that it reaches."""
    search = PathSearch(graph)
    for dst in ends:
        hops = search.best(src, dst) if dst != src else None
        if hops is not None:
            yield describe(graph, src, dst, hops)


def ends_of(graph: Graph, snapshot: Snapshot | None = None) -> list[str]:
    """Return what paths of a node are asked for: GPUs and the ports that can carry something.

    Without any GPU, its NUMA nodes stand for what talks.
    """
    refused = {} if snapshot is None else {vertex.name: _refusal(snapshot, vertex) for vertex in graph}
    gpus = graph.of_kind(VertexKind.GPU)
    ports = graph.of_kind(VertexKind.HCA_PORT, VertexKind.NIC)
    ends = [*(gpus or graph.of_kind(VertexKind.NUMA)), *(port for port in ports if not refused.get(port.name))]
    return [vertex.name for vertex in ends]
