"""Answers to "which paths lead from a to b, which is best, and why not another": within a node and between nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from fabricd.errors import InputError
from fabricd.graph.graph import Graph
from fabricd.graph.networks import find_networks
from fabricd.graph.networks_routed import routed_networks
from fabricd.model.measurement import Measurement
from fabricd.model.path import Capacity, Path, PathAnswer, Rejected
from fabricd.model.snapshot import Snapshot
from fabricd.paths.across import candidates_across, joined
from fabricd.paths.candidates import candidates_in
from fabricd.paths.describe import describe
from fabricd.paths.ends import PORTS, End, Ends
from fabricd.paths.explain import explained
from fabricd.paths.explain_classes import better_classes_between, better_classes_within
from fabricd.paths.flow import capacity
from fabricd.paths.rank import ranked
from fabricd.paths.search import MAX_CANDIDATES, PathSearch


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
    ends = Ends(nodes, local)
    start, goal = ends.find(src), ends.find(dst)
    rejected = [Rejected(name=end.vertex.name, reason=end.refused) for end in (start, goal) if end.refused]
    notes = _notes(start, goal)
    if rejected:
        refused = tuple(dict.fromkeys(rejected))
        return PathAnswer(src=start.vertex.name, dst=goal.vertex.name, rejected=refused, notes=notes)
    if start.node_id == goal.node_id:
        answer = paths_in(
            start.graph, start.vertex.name, goal.vertex.name, candidates=candidates, with_capacity=with_capacity
        )
        better = better_classes_within(start, goal, answer.paths) if explain else ()
        return replace(answer, rejected=tuple(better), notes=notes)
    both = {end.node_id: nodes[end.node_id] for end in (start, goal)}
    networks = find_networks(both, measurements)
    networks = replace(networks, networks=(*networks.networks, *routed_networks(networks.networks, both)))
    found, rejected = candidates_across(networks, start, goal, measurements)
    paths = ranked(found)
    if explain:
        rejected += better_classes_between(both, networks, start, goal, paths)
    return PathAnswer(
        src=start.vertex.name,
        dst=goal.vertex.name,
        paths=explained(paths[:candidates]),
        rejected=tuple(rejected),
        capacity=_capacity_across(start, goal, paths) if with_capacity and paths else None,
        notes=notes,
    )


def _notes(start: End, goal: End) -> tuple[str, ...]:
    """Return the notes on the machines of both ends."""
    if start.node_id == goal.node_id:
        return tuple(start.graph.notes)
    return tuple(f"{end.node}: {note}" for end in (start, goal) for note in end.graph.notes)


def _capacity_across(start: End, goal: End, paths: Sequence[Path]) -> Capacity:
    """Return what all paths of the best one's transport carry: those of others may share its ports."""
    alike = [path for path in paths if path.transport is paths[0].transport]
    return capacity(joined(start, goal, alike), start.vertex.name, goal.vertex.name, across=True)


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
    ports = {end for end in ends if graph[end].kind in PORTS}
    for src, dst, hops in PathSearch(graph).all_best(ends, apart=ports):
        yield describe(graph, src, dst, hops)


def paths_from(graph: Graph, src: str, ends: Sequence[str]) -> Iterator[Path]:
    """Yield the best path from one vertex to each other end that it reaches."""
    search = PathSearch(graph)
    for dst in ends:
        hops = search.best(src, dst) if dst != src else None
        if hops is not None:
            yield describe(graph, src, dst, hops)
