"""Paths between nodes: to a port of the one, over a network that both are on, from a port of the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fabricd.graph import nominal
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.networks import NetworkMap, measurement_between
from fabricd.graph.networks_nvlink import without_channel
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path, PathEnd, PathType, Rejected, Transport
from fabricd.paths.describe import bottleneck, weakest
from fabricd.paths.ends import PORTS, End
from fabricd.paths.port_facts import PortFacts, port_facts
from fabricd.paths.ways import Way
from fabricd.units import format_bandwidth, format_ranges

#: Pairs of ports of one network that are looked at: two nodes with 64 ports each on it stay below.
MAX_PAIRS = 4096

_NETWORK = "network:"


@dataclass(frozen=True, slots=True)
class _Port:
    """A port that a path may leave or enter a node by."""

    end: End
    port: NetworkPort
    facts: PortFacts

    @property
    def name(self) -> str:
        """Of its vertex."""
        return f"{self.end.node}/{self.port.interface}"

    @property
    def likeness(self) -> tuple[object, ...]:
        """What two ports must share for one of them to stand for both."""
        return (self.port.speed_bytes_per_second, self.port.virtual, self.facts.mtu_bytes, bool(self.facts.cautions))


@dataclass(frozen=True, slots=True)
class _Crossing:
    """A network from a port of the one node to a port of the other."""

    network: Network
    near: _Port
    far: _Port
    measured: Measurement | None

    @property
    def leaves(self) -> tuple[str, str] | None:
        """The switches that both ports are plugged into, where they are known."""
        leaves = (self.near.facts.leaf, self.far.facts.leaf)
        return leaves if all(leaves) else None

    @property
    def over_spine(self) -> bool:
        """The two ports are known to be plugged into different switches."""
        return self.leaves is not None and self.leaves[0] != self.leaves[1]

    @property
    def likeness(self) -> tuple[object, ...]:
        """What two crossings must share for one of them to stand for both."""
        name = (self.network.name, self.network.transport)
        return (*name, self.over_spine, self.measured, self.near.likeness, self.far.likeness)


def candidates_across(
    found: NetworkMap, start: End, goal: End, measurements: Sequence[Measurement]
) -> tuple[list[Path], list[Rejected]]:
    """Return the paths between two nodes over each network that they share, and what was ruled out.

    Of pairs of ports that are alike in everything that counts the first stands for all.

    Args:
        found: the networks of the two nodes, and of no other.
        start: where the paths start.
        goal: where they end, on another node.
        measurements: what active probes found.
    """
    rejected = list(_refused(found, start, goal))
    different: dict[tuple[object, ...], Path] = {}
    for crossing in _crossings(found.networks, start, goal, measurements):
        measured = crossing.measured
        if measured is not None and not measured.reachable:
            name = f"{crossing.network.name}: {crossing.near.name} - {crossing.far.name}"
            rejected.append(Rejected(name=name, reason=f"measured: {measured.reason or 'nothing arrives'}"))
            continue
        alike = crossing.likeness
        for way, back in _ways(crossing):
            key = (alike, way.likeness, back.likeness)
            if key not in different:
                different[key] = _path(crossing, way, back)
    return list(different.values()), rejected


def joined(start: End, goal: End, networks: Sequence[Network], measurements: Sequence[Measurement]) -> Graph:
    """Return the graphs of two nodes joined by some networks that both are on."""
    graph = Graph()
    for end in (start, goal):
        for vertex in end.graph:
            graph.add(vertex)
        for edge in end.graph.edges():
            graph.add_edge(edge)
    widest: dict[tuple[str, str], Hop] = {}
    for crossing in _crossings(networks, start, goal, measurements):
        graph.add(Vertex(name=_NETWORK + crossing.network.name, kind=VertexKind.NETWORK))
        for hop in _hops(crossing):
            known = widest.get((hop.src, hop.dst))
            if known is None or (known.bandwidth_bytes_per_second or 0) < (hop.bandwidth_bytes_per_second or 0):
                widest[hop.src, hop.dst] = hop
    for hop in widest.values():
        graph.add_edge(hop)
    return graph


def _crossings(
    networks: Sequence[Network], start: End, goal: End, measurements: Sequence[Measurement]
) -> Iterator[_Crossing]:
    """Yield the pairs of ports that networks join; only an end's own port where the end is a port."""
    for network in networks:
        nears, fars = _ports(network, start), _ports(network, goal)
        for near, far in [(near, far) for near in nears for far in fars][:MAX_PAIRS]:
            yield _Crossing(network, near, far, measurement_between(measurements, network, near.port, far.port))


def _ports(network: Network, end: End) -> list[_Port]:
    return [_Port(end, port, port_facts(end.snapshot, port)) for port in network.ports if _can_be(port, end)]


def _can_be(port: NetworkPort, end: End) -> bool:
    """Tell whether a path may leave or reach an end by a port. A GPU in an NVLink domain is its own only port there."""
    name = f"{end.node}/{port.interface}"
    if port.node != end.node_id or name not in end.graph:
        return False
    gpus = end.vertex.kind is VertexKind.GPU and end.graph[name].kind is VertexKind.GPU
    return name == end.vertex.name or not (gpus or end.vertex.kind in PORTS)


def _ways(crossing: _Crossing) -> Iterator[tuple[Way, Way]]:
    near, far = crossing.near, crossing.far
    for way in near.end.ways.between(near.end.vertex, near.end.graph[near.name], away=True):
        for back in far.end.ways.between(far.end.vertex, far.end.graph[far.name], away=False):
            yield way, back


def _path(crossing: _Crossing, way: Way, back: Way) -> Path:
    start, goal, measured = crossing.near.end, crossing.far.end, crossing.measured
    across = _hops(crossing)
    hops = (*way.hops, *across, *back.hops)
    ends = (_path_end(crossing.near, way), _path_end(crossing.far, back))
    latency = sum(hop.latency_seconds or 0.0 for hop in across)
    gdr = {end.gdr for end, side in zip(ends, (start, goal), strict=True) if side.vertex.kind is VertexKind.GPU}
    nvlink = all(hop.link == LinkKind.NVLINK for hop in hops)
    virtual = [crossing.near.port.virtual, crossing.far.port.virtual, start.vertex.virtual, goal.vertex.virtual]
    return Path(
        src=start.vertex.name,
        dst=goal.vertex.name,
        type=PathType.NVL if nvlink else PathType.NET,
        transport=crossing.network.transport,
        bandwidth_bytes_per_second=bottleneck(hops),
        latency_seconds=way.latency_seconds + latency + back.latency_seconds,
        hops=hops,
        evidence=weakest(hops),
        measured_age_seconds=measured.age_seconds if measured else None,
        virtual=any(virtual),
        gdr=None if nvlink else False if False in gdr else True if gdr == {True} else None,
        network=crossing.network.name,
        role=crossing.network.role,
        ends=ends,
        unverified=tuple(_unverified(crossing)),
        cautions=(*_cautions(crossing), *way.cautions, *back.cautions),
        because=(_why_joined(crossing), *_why_so(crossing, way, back)),
    )


def _path_end(one: _Port, way: Way) -> PathEnd:
    facts = one.facts
    return PathEnd(
        port=one.name,
        address=facts.address,
        gid_index=facts.gid_index,
        gid_type=facts.gid_type,
        mtu_bytes=facts.mtu_bytes,
        leaf=facts.plugged_into,
        relay=way.relay,
        gdr=way.gdr,
        why=way.why,
    )


def _hops(crossing: _Crossing) -> tuple[Hop, Hop]:
    """Return the two hops into and out of the network; a measurement covers both."""
    network, measured = crossing.network, crossing.measured
    name = _NETWORK + network.name
    latency = nominal.NETWORK_LATENCY.get(network.transport)
    if latency is not None and crossing.over_spine:
        latency += 2 * nominal.SWITCH_LATENCY
    if measured is not None and measured.latency_seconds is not None:
        latency = measured.latency_seconds
    hops = []
    for one, inwards in ((crossing.near, True), (crossing.far, False)):
        bandwidth, evidence, limit = _bandwidth(crossing, one)
        hops.append(
            Hop(
                src=one.name if inwards else name,
                dst=name if inwards else one.name,
                link=LinkKind.NVLINK if network.transport is Transport.NVLINK else LinkKind.NETWORK,
                bandwidth_bytes_per_second=bandwidth,
                latency_seconds=None if latency is None else latency / 2,
                evidence=evidence,
                detail=", ".join(filter(None, [one.facts.text, "virtual" if one.port.virtual else "", limit])),
            )
        )
    return hops[0], hops[1]


def _bandwidth(crossing: _Crossing, one: _Port) -> tuple[float | None, Evidence, str]:
    """Return what a port carries on a network, where that is from, and what limits it beside the port."""
    measured, speed = crossing.measured, one.port.speed_bytes_per_second
    if measured is not None and measured.bandwidth_bytes_per_second is not None:
        return measured.bandwidth_bytes_per_second, Evidence.MEASURED, ""
    if not speed:
        return None, Evidence.ASSUMED, ""
    if crossing.network.transport is Transport.ETHERNET and speed > nominal.TCP_BANDWIDTH:
        return nominal.TCP_BANDWIDTH, Evidence.ASSUMED, f"TCP, of a port of {format_bandwidth(speed)}"
    return float(speed), Evidence.REPORTED, ""


def _unverified(crossing: _Crossing) -> Iterator[str]:
    """Yield what a crossing needs and nothing shows."""
    if crossing.measured is None:
        yield from crossing.network.unverified
    if crossing.network.transport is Transport.NVLINK:
        for one in (crossing.near, crossing.far):
            if missing := without_channel(one.end.snapshot):
                yield f"{one.end.node}: {missing}"


def _cautions(crossing: _Crossing) -> Iterator[str]:
    """Yield what makes a crossing worse than its figures."""
    near, far = crossing.near, crossing.far
    if crossing.over_spine and crossing.leaves is not None:
        leaves = f"from {crossing.leaves[0]} to {crossing.leaves[1]}"
        yield f"it goes {leaves}, over links between switches that others share"
    if near.facts.mtu_bytes and far.facts.mtu_bytes and near.facts.mtu_bytes != far.facts.mtu_bytes:
        mtus = f"{near.facts.mtu_bytes} at {near.name}, {far.facts.mtu_bytes} at {far.name}"
        yield f"the MTU differs ({mtus}): only the smaller one arrives, the larger is lost where the ends do not agree"
    yield from (*near.facts.cautions, *far.facts.cautions)


def _why_joined(crossing: _Crossing) -> str:
    network, measured = crossing.network, crossing.measured
    if measured is not None:
        ends = f"{crossing.near.port.address} and {crossing.far.port.address}"
        return f"{network.name}: measured {measured.age_seconds:.0f} s ago between {ends}"
    how = "assumed" if network.verified is Evidence.ASSUMED else "known"
    return f"{network.name}: {how} to join them ({network.reason})"


def _why_so(crossing: _Crossing, way: Way, back: Way) -> Iterator[str]:
    if crossing.network.transport is Transport.NVLINK:
        yield from _channels(crossing)
    if crossing.leaves is not None and not crossing.over_spine:
        yield f"both ports are plugged into {crossing.leaves[0]}"
    for one, used in ((crossing.near, way), (crossing.far, back)):
        if used.why:
            how = {True: "GPUDirect", False: "through host memory", None: "GPUDirect not known"}[used.gdr]
            yield f"{one.end.node}: {how}: {used.why}"


def _channels(crossing: _Crossing) -> Iterator[str]:
    """Yield which IMEX channels a node has, for those that have any."""
    for end in (crossing.near.end, crossing.far.end):
        driver = end.snapshot.gpu_driver
        if driver is not None and driver.imex_channels:
            yield f"{end.node}: IMEX channels {format_ranges(driver.imex_channels)}"


def _refused(found: NetworkMap, start: End, goal: End) -> Iterator[Rejected]:
    """Yield why ports, and networks that only one of the two nodes is on, are no way."""
    node_of = {end.node_id: end.node for end in (start, goal)}
    for one in found.rejected:
        node_id, _, port = one.name.partition("/")
        yield Rejected(name=f"{node_of[node_id]}/{port}", reason=one.reason)
    for network in found.networks:
        members = {port.node for port in network.ports}
        if len(members) == 1:
            name = node_of[next(iter(members))]
            yield Rejected(name=network.name, reason=f"only {name} is on it")
            continue
        for end in (start, goal):
            if end.vertex.kind in PORTS and not any(_can_be(port, end) for port in network.ports):
                yield Rejected(name=network.name, reason=f"{end.vertex.name} is not on it")
