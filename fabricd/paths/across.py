"""Paths between nodes: to a port of the one, over a network that both are on, from a port of the other."""

from collections.abc import Iterator, Sequence

from fabricd.graph.graph import Graph, Vertex, VertexKind
from fabricd.graph.networks import NetworkMap
from fabricd.graph.networks_nvlink import without_channel
from fabricd.graph.placement import source_of
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path, PathEnd, Rejected, Transport
from fabricd.paths.crossing import NETWORK, Crossing, Side, crossings, hops_over
from fabricd.paths.ends import End
from fabricd.paths.estimate import Comparison, estimate_of
from fabricd.paths.sketch import Sketch, sketch
from fabricd.paths.ways import PORTS, renamed
from fabricd.units import format_ranges


def candidates_across(
    found: NetworkMap, start: End, goal: End, measurements: Sequence[Measurement]
) -> tuple[list[Sketch], list[Rejected]]:
    """Return sketches of the paths between two nodes over each network that they share, and what was ruled out.

    Of pairs of ports that are alike in everything that counts the first stands for all.

    Args:
        found: the networks of the two nodes, and of no other.
        start: where the paths start.
        goal: where they end, on another node.
        measurements: what active probes found.
    """
    rejected = list(_refused(found, start, goal))
    sketches = []
    for crossing in crossings(found.networks, start, goal, measurements):
        measured = crossing.measured
        if measured is not None and not measured.reachable:
            name = f"{crossing.network.name}: {crossing.near.name} - {crossing.far.name}"
            rejected.append(Rejected(name=name, reason=f"measured: {measured.reason or 'nothing arrives'}"))
        else:
            sketches.append(sketch(crossing))
    return sketches, list(dict.fromkeys(rejected))


def joined(start: End, goal: End, networks: Sequence[Network], measurements: Sequence[Measurement]) -> Graph:
    """Return the graphs of two nodes joined by some networks that both are on."""
    graph = Graph()
    for end in (start, goal):
        own = end.graph()
        for vertex in own:
            graph.add(vertex)
        for edge in own.edges():
            graph.add_edge(edge)
    widest: dict[tuple[str, str], Hop] = {}
    for crossing in crossings(networks, start, goal, measurements, all_ports=True):
        graph.add(Vertex(name=NETWORK + crossing.network.name, kind=VertexKind.NETWORK))
        for hop in hops_over(crossing):
            known = widest.get((hop.src, hop.dst))
            if known is None or (known.bandwidth_bytes_per_second or 0) < (hop.bandwidth_bytes_per_second or 0):
                widest[hop.src, hop.dst] = hop
    for hop in widest.values():
        graph.add_edge(hop)
    return graph


def path_over(one: Sketch, comparison: Comparison, rank: int) -> Path:
    """Return the path that a sketch is of, with names as in answers, "node/gpu3".

    Args:
        one: the sketch.
        comparison: what its time is estimated for.
        rank: its place among those that are shown.
    """
    crossing, figures = one.crossing, one.figures
    near, far, measured = crossing.near, crossing.far, crossing.measured
    return Path(
        src=near.end.name,
        dst=far.end.name,
        type=figures.type,
        transport=figures.transport,
        bandwidth_bytes_per_second=figures.bandwidth,
        latency_seconds=figures.latency,
        hops=(*_in_full(near), *hops_over(crossing), *_in_full(far)),
        evidence=figures.evidence,
        measured_age_seconds=measured.age_seconds if measured else None,
        virtual=figures.virtual,
        rank=rank,
        estimate=estimate_of(
            figures.type,
            figures.bandwidth,
            figures.latency,
            figures.evidence,
            comparison,
            measured=measured is not None,
        ),
        gdr=one.gdr,
        network=figures.network,
        role=figures.role,
        ends=(_path_end(near), _path_end(far)),
        unverified=tuple(_unverified(crossing)),
        cautions=tuple(_cautions(crossing)),
        because=(_why_joined(crossing), *_why_so(crossing)),
    )


def _in_full(side: Side) -> Iterator[Hop]:
    """Yield the hops of a side's way with the names of answers."""
    node = side.end.node
    return (renamed(hop, f"{node}/{hop.src}", f"{node}/{hop.dst}") for hop in side.way.hops)


def _path_end(one: Side) -> PathEnd:
    facts, way = one.facts, one.way
    return PathEnd(
        port=one.name,
        address=facts.address,
        gid_index=facts.gid_index,
        gid_type=facts.gid_type,
        mtu_bytes=facts.mtu_bytes,
        leaf=facts.plugged_into,
        type=one.type,
        nearest=one.nearest,
        relay=one.end.full(way.relay) if way.relay else "",
        gdr=way.gdr,
        why=way.why,
    )


def _unverified(crossing: Crossing) -> Iterator[str]:
    """Yield what a crossing needs and nothing shows."""
    if crossing.measured is None:
        yield from crossing.network.unverified
    if crossing.network.transport is Transport.NVLINK:
        for one in (crossing.near, crossing.far):
            if missing := without_channel(one.end.snapshot):
                yield f"{one.end.node}: {missing}"


def _cautions(crossing: Crossing) -> Iterator[str]:
    """Yield what makes a crossing worse than its figures."""
    near, far = crossing.near, crossing.far
    if crossing.over_spine and crossing.told:
        here, there = (position.switches[0] for position in crossing.told)
        nodes = f"{near.end.node} below {here} and {far.end.node} below {there}"
        yield f"{source_of(crossing.told[0])} puts {nodes}: it goes over links between switches that others share"
    elif crossing.over_spine:
        leaves = f"from {near.facts.leaf} to {far.facts.leaf}"
        yield f"it goes {leaves}, over links between switches that others share"
    if crossing.cross_rail:
        yield f"it goes from rail {near.rail} to rail {far.rail}"
    if crossing.mtu_differs:
        mtus = f"{near.facts.mtu_bytes} at {near.name}, {far.facts.mtu_bytes} at {far.name}"
        yield f"the MTU differs ({mtus}): only the smaller one arrives, the larger is lost where the ends do not agree"
    for one in (near, far):
        yield from (f"{one.end.node}: {caution}" for caution in one.cautions)


def _why_joined(crossing: Crossing) -> str:
    network, measured = crossing.network, crossing.measured
    if measured is not None:
        ends = f"{crossing.near.port.address} and {crossing.far.port.address}"
        return f"{network.name}: measured {measured.age_seconds:.0f} s ago between {ends}"
    how = "assumed" if network.verified is Evidence.ASSUMED else "known"
    return f"{network.name}: {how} to join them ({network.reason})"


def _why_so(crossing: Crossing) -> Iterator[str]:
    if crossing.network.transport is Transport.NVLINK:
        yield from _channels(crossing)
    if crossing.near.facts.leaf and crossing.near.facts.leaf == crossing.far.facts.leaf:
        yield f"both ports are plugged into {crossing.near.facts.leaf}"
    if crossing.told and not crossing.over_spine:
        yield f"{source_of(crossing.told[0])} puts both nodes below {crossing.told[0].switches[0]}"
    for one in (crossing.near, crossing.far):
        if one.way.why:
            how = {True: "GPUDirect", False: "through host memory", None: "GPUDirect not known"}[one.way.gdr]
            yield f"{one.end.node}: {how}: {one.way.why}"


def _channels(crossing: Crossing) -> Iterator[str]:
    """Yield which IMEX channels a node has, for those that have any."""
    for end in (crossing.near.end, crossing.far.end):
        driver = end.snapshot.gpu_driver
        if driver is not None and driver.imex_channels:
            yield f"{end.node}: IMEX channels {format_ranges(driver.imex_channels)}"


def _refused(found: NetworkMap, start: End, goal: End) -> Iterator[Rejected]:
    """Yield why ports, and networks that only one of the two nodes is on, are no way."""
    node_of = {end.node_id: end.node for end in (start, goal)}
    for one in found.rejected:
        node_id = max((known for known in node_of if one.name.startswith(f"{known}/")), key=len)  # it may hold a slash
        yield Rejected(name=f"{node_of[node_id]}/{one.name[len(node_id) + 1 :]}", reason=one.reason)
    for network in found.networks:
        members = {port.node for port in network.ports}
        if len(members) == 1:
            name = node_of[next(iter(members))]
            yield Rejected(name=network.name, reason=f"only {name} is on it")
            continue
        on = {(port.node, port.interface) for port in network.ports}
        for end in (start, goal):
            if end.vertex.kind in PORTS and (end.node_id, end.vertex.name) not in on:
                yield Rejected(name=network.name, reason=f"{end.name} is not on it")
