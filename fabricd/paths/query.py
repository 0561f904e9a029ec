"""Answers to "which paths lead from a to b, which is best, and why not another": within a node and between nodes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.errors import InputError
from fabricd.graph.graph import Graph
from fabricd.graph.networks import networks_of, roce_networks_of
from fabricd.graph.networks_routed import routed_networks
from fabricd.graph.placement import positions_of
from fabricd.model.measurement import Measurement
from fabricd.model.path import Path, PathAnswer, Rejected
from fabricd.model.snapshot import Snapshot
from fabricd.paths.across import candidates_across, joined, path_over
from fabricd.paths.candidates import candidates_in
from fabricd.paths.describe import describe
from fabricd.paths.ends import End, Ends
from fabricd.paths.estimate import AS_USUAL, Comparison
from fabricd.paths.explain import explained
from fabricd.paths.explain_between import better_classes_between
from fabricd.paths.explain_classes import better_classes_within
from fabricd.paths.flow import capacity
from fabricd.paths.rank import order_key, ranked
from fabricd.paths.search import MAX_CANDIDATES, PathSearch
from fabricd.paths.sketch import best_of_each
from fabricd.paths.ways import PORTS
from fabricd.placement.imported import Imported


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
    comparison: Comparison = AS_USUAL,
    ends: Ends | None = None,
    imports: Sequence[Imported] = (),
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
        comparison: what the candidates are compared for.
        ends: of an earlier question, whose names and graphs may still be good.
        imports: files that say where nodes stand, the first counts most, and all before what nodes say themselves.

    Raises:
        UnknownNameError: no such node, or no such device on it.
        InputError: a name that is too long, or a number of candidates out of bounds.
    """
    if not 1 <= candidates <= MAX_CANDIDATES:
        raise InputError(f"{candidates} candidates asked for", hint=f"between 1 and {MAX_CANDIDATES}")
    ends = ends if ends is not None else Ends()
    start, goal = (_placed(ends.find(nodes, name, local), imports) for name in (src, dst))
    told = PathAnswer(
        src=start.name,
        dst=goal.name,
        policy=comparison.policy,
        bytes=comparison.bytes,
        flows=comparison.flows,
        notes=_notes(start, goal),
    )
    if refused := [Rejected(name=end.name, reason=end.refused) for end in (start, goal) if end.refused]:
        return replace(told, rejected=tuple(dict.fromkeys(refused)))
    if start.node_id != goal.node_id:
        asked = _Asked(explain, candidates, with_capacity, comparison)
        return _between_nodes(told, start, goal, measurements, asked)
    answer = paths_in(
        start.graph(),
        start.name,
        goal.name,
        candidates=candidates,
        with_capacity=with_capacity,
        comparison=comparison,
    )
    better = better_classes_within(start, goal, answer.paths) if explain else ()
    return replace(told, paths=answer.paths, capacity=answer.capacity, rejected=tuple(better))


@dataclass(frozen=True, slots=True)
class _Asked:
    """How paths are asked for; see ``find_paths``."""

    explain: bool
    candidates: int
    with_capacity: bool
    comparison: Comparison


def _between_nodes(
    told: PathAnswer, start: End, goal: End, measurements: Sequence[Measurement], asked: _Asked
) -> PathAnswer:
    both = {start.node_id: start.snapshot, goal.node_id: goal.snapshot}
    measured = [one for one in measurements if one.src_node in both and one.dst_node in both]
    ports = {end.node_id: end.ports for end in (start, goal)}
    networks = networks_of(ports, measured)
    routed = list(routed_networks(networks.networks, both))
    roce = roce_networks_of(ports, routed)
    networks = replace(networks, networks=(*networks.networks, *roce, *routed))
    found, rejected = candidates_across(networks, start, goal, measured)
    found.sort(key=lambda one: order_key(one.figures, asked.comparison))
    if asked.explain:
        rejected += better_classes_between(networks, start, goal, [one.transport for one in found])
    total = None
    if asked.with_capacity and found:
        # All networks of the best one's transport: those of others may share its ports.
        alike = [network for network in networks.networks if network.transport is found[0].transport]
        total = capacity(joined(start, goal, alike, measured), start.name, goal.name, across=True)
    best = best_of_each(found, asked.candidates)
    shown = [path_over(one, asked.comparison, rank) for rank, one in enumerate(best, start=1)]
    return replace(told, paths=explained(shown, asked.comparison), rejected=tuple(rejected), capacity=total)


def _placed(end: End, imports: Sequence[Imported]) -> End:
    """Return an end with what is said of where its node stands, where anything is."""
    said = positions_of(end.snapshot, imports) if imports or end.snapshot.positions else ()
    position = next((one for one in said if one.switches and one.switches[0]), None)
    return replace(end, position=position) if position is not None else end


def _notes(start: End, goal: End) -> tuple[str, ...]:
    """Return the notes on the machines of both ends."""
    if start.node_id == goal.node_id:
        return tuple(start.ways.graph.notes)
    return tuple(f"{end.node}: {note}" for end in (start, goal) for note in end.ways.graph.notes)


def paths_in(
    graph: Graph,
    src: str,
    dst: str,
    *,
    candidates: int = 4,
    with_capacity: bool = False,
    comparison: Comparison = AS_USUAL,
) -> PathAnswer:
    """Return the candidates between two vertices of one graph, best first, and what all paths carry at once.

    Raises:
        InputError: a number of candidates out of bounds.
    """
    paths = explained(ranked(candidates_in(graph, src, dst, candidates), comparison), comparison)
    total = capacity(graph, src, dst) if with_capacity and paths else None
    return PathAnswer(
        src=src,
        dst=dst,
        policy=comparison.policy,
        bytes=comparison.bytes,
        flows=comparison.flows,
        paths=paths,
        capacity=total,
    )


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
