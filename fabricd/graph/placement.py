"""Where nodes stand, from all that is known: what their ports have met, and what files, labels and providers say."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from fabricd.graph.networks_node import NodePorts
from fabricd.graph.networks_nvlink import domain_of, out_of_domain
from fabricd.graph.placement_seen import Seen, seen_places
from fabricd.model.network import Network
from fabricd.model.observation import Evidence
from fabricd.model.placement import Place, Position
from fabricd.model.snapshot import Snapshot
from fabricd.placement.imported import Imported, names_of

_FIELDS = ("block", "rack", "zone", "region", "nvlink_domain")


def placement(
    nodes: Mapping[str, Snapshot], imports: Sequence[Imported] = (), ports: Mapping[str, NodePorts] | None = None
) -> dict[str, Place]:
    """Return where each node stands, by node_id.

    What a node's ports have met comes before what is said of it; what ``imports`` say before what the node itself
    publishes. Levels above a switch that was met come from the first source that knows them. Where a source groups
    nodes otherwise than what was met, the nodes' places say so.

    Args:
        nodes: snapshots by node_id.
        imports: files given for this question, the first counts most.
        ports: the nodes' ports, where they have been worked out.
    """
    seen = seen_places(ports or {node_id: NodePorts(node_id, snapshot) for node_id, snapshot in nodes.items()})
    said = {node_id: tuple(positions_of(snapshot, imports)) for node_id, snapshot in nodes.items()}
    places = {node_id: _place(node_id, nodes[node_id], seen[node_id], said[node_id]) for node_id in nodes}
    return _with_contradictions(places, said)


def leaf_rails(network: Network, places: Mapping[str, Place]) -> int:
    """Return how many rails one network has, where each leaf switch carries ports of one rail only; else 0."""
    rails: dict[str, set[int]] = {}
    for port in network.ports:
        place = places.get(port.node)
        met = next((rail for rail in place.rails if rail.port == port.interface), None) if place else None
        if met is not None and met.switches:
            rails.setdefault(met.switches[0], set()).add(met.rail)
    several = len({rail for found in rails.values() for rail in found})
    return several if several > 1 and all(len(found) == 1 for found in rails.values()) else 0


def positions_of(snapshot: Snapshot, imports: Iterable[Imported]) -> Iterator[Position]:
    """Yield what is said of where a node stands: by files given for the question, then by the node itself."""
    names = names_of(snapshot)
    for imported in imports:
        position = imported.of(names)
        if position is not None:
            yield position
    yield from snapshot.positions


def _place(node_id: str, snapshot: Snapshot, seen: Seen, said: Sequence[Position]) -> Place:
    because = list(seen.because)
    switches = seen.switches
    evidence = Evidence.REPORTED if switches else Evidence.ASSUMED
    told = next((one for one in said if len(one.switches) > len(switches)), None)
    if told is not None:
        what = "the switches above that" if switches else "its switches"
        because.append(f"{what}: {source_of(told)}")
        switches += told.switches[len(switches) :]
    facts: dict[str, str] = {}
    if domain := _nvlink_domain(snapshot):
        facts["nvlink_domain"] = domain
        because.append("its NVLink domain: the GPUs' own registration")
    for field in _FIELDS:
        found = next((one for one in said if getattr(one, field)), None)
        if found is not None and field not in facts:
            facts[field] = getattr(found, field)
            because.append(f"its {field.replace('nvlink_', 'NVLink ')}: {source_of(found)}")
    return Place(node=node_id, switches=switches, evidence=evidence, rails=seen.rails, because=tuple(because), **facts)


def source_of(position: Position) -> str:
    """Return who says where a node stands, for people: "slurm (/etc/slurm/topology.conf)"."""
    return position.source + (f" ({position.origin})" if position.origin else "")


def _nvlink_domain(snapshot: Snapshot) -> str:
    """Return the domain that all GPUs of a node are in; "" for none, or several."""
    found = {domain_of(gpu) if not out_of_domain(gpu) else None for gpu in snapshot.gpus}
    domain = found.pop() if len(found) == 1 else None
    return f"{domain[0]}.{domain[1]}" if domain else ""


def _with_contradictions(places: dict[str, Place], said: Mapping[str, Sequence[Position]]) -> dict[str, Place]:
    """Return places, with a sentence where nodes that go into one switch are said to be below several."""
    told: dict[tuple[str, str], dict[str, list[str]]] = {}  # (leaf met, source) -> leaf said -> nodes
    for node_id, place in places.items():
        if place.evidence is not Evidence.REPORTED:
            continue
        for position in said[node_id]:
            if position.switches and position.switches[0]:
                group = told.setdefault((place.leaf, source_of(position)), {})
                group.setdefault(position.switches[0], []).append(node_id)
    for (leaf, source), groups in told.items():
        if len(groups) > 1:
            names = ", ".join(sorted(groups)[:4])
            sentence = f"{source} puts nodes that go into {leaf} below several switches: {names}"
            for node_id in (one for members in groups.values() for one in members):
                places[node_id] = replace(places[node_id], because=(*places[node_id].because, sentence))
    return places
