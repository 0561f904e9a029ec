"""Networks from a port of one node to a port of another: which ports, and what is known of going that way."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fabricd.graph import nominal
from fabricd.graph.graph import LinkKind, VertexKind
from fabricd.graph.networks import measurement_between
from fabricd.graph.networks_rails import rail_ports
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, PathType, Transport
from fabricd.paths.describe import weakest
from fabricd.paths.ends import PORTS, End
from fabricd.paths.port_facts import PortFacts, port_facts
from fabricd.paths.ways import Way
from fabricd.units import format_bandwidth

#: Pairs of ports of one network that are looked at: two nodes with 64 ports each on it stay below.
MAX_PAIRS = 4096

#: What the name of a network's vertex begins with.
NETWORK = "network:"


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a crossing: a port, and a way between it and the end of the path."""

    end: End
    port: NetworkPort
    facts: PortFacts
    type: PathType  #: how far the port is from the end by the straight way
    nearest: bool  #: no other port of its node on the network is nearer to the end
    rail: int | None  #: place of the port among its node's, where these go into different switches
    way: Way
    #: What two sides must share for one of them to stand for both, but for the switch that they are plugged into.
    likeness: tuple[object, ...]

    @property
    def name(self) -> str:
        """Of the port's vertex."""
        return self.end.full(self.port.interface)


@dataclass(frozen=True, slots=True)
class Crossing:
    """A network from a port of the one node to a port of the other."""

    network: Network
    near: Side
    far: Side
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
    def rails(self) -> tuple[int, int] | None:
        """The rails of both ports where they differ."""
        near, far = self.near.rail, self.far.rail
        return (near, far) if near is not None and far is not None and near != far else None


def crossings(
    networks: Sequence[Network], start: End, goal: End, measurements: Sequence[Measurement], *, all_ports: bool = False
) -> Iterator[Crossing]:
    """Yield the ways from one end to another by pairs of ports that networks join.

    Only an end's own port where the end is a port. Of those that are alike in all that counts the first stands for all,
    unless somebody measured or all are asked for.

    Args:
        networks: of the two nodes.
        start: where paths start.
        goal: where they end.
        measurements: between the two nodes.
        all_ports: yield also what is like another.
    """
    for network in networks:
        every = all_ports or bool(measurements)
        nears, fars = _sides(network, start, away=True, every=every), _sides(network, goal, away=False, every=every)
        seen = set()
        for near, far in [(near, far) for near in nears for far in fars][:MAX_PAIRS]:
            crossing = Crossing(network, near, far, measurement_between(measurements, network, near.port, far.port))
            lies = (crossing.over_spine, crossing.rails is not None)
            alike = (near.likeness, far.likeness, *lies, crossing.measured)
            if all_ports or alike not in seen:
                seen.add(alike)
                yield crossing


def _sides(network: Network, end: End, *, away: bool, every: bool) -> list[Side]:
    """Return the sides that a path may take at one end, those by the nearest port first."""
    usable = [port for port in network.ports if can_be(port, end)]
    graph, vertex = end.ways.graph, end.vertex
    types = {}
    far = {}
    for port in usable:
        types[port.interface], *far[port.interface] = end.ways.distance(vertex, graph[port.interface])
    least = min(far.values(), default=None)
    facts_of = {port.interface: port_facts(end.snapshot, port) for port in usable}
    several = len({facts.leaf for facts in facts_of.values()} - {""}) > 1
    rails = {one.name: one.rail for one in rail_ports(end.snapshot)} if several else {}
    sides: dict[object, Side] = {}
    for port in sorted(usable, key=lambda port: far[port.interface]):
        facts = facts_of[port.interface]
        figures = (port.speed_bytes_per_second, port.virtual, facts.mtu_bytes, bool(facts.cautions))
        for way in end.ways.between(vertex, graph[port.interface], network.transport, away=away):
            nearest, rail = far[port.interface] == least, rails.get(port.interface)
            kind = types[port.interface]
            side = Side(end, port, facts, kind, nearest, rail, way, (figures, way.likeness))
            sides.setdefault((side.likeness, facts.leaf, port.interface if every else ""), side)
    return list(sides.values())


def can_be(port: NetworkPort, end: End) -> bool:
    """Tell whether a path may leave or reach an end by a port. A GPU in an NVLink domain is its own only port there."""
    if port.node != end.node_id or port.interface not in end.ways.graph:
        return False
    gpus = end.vertex.kind is VertexKind.GPU and end.ways.graph[port.interface].kind is VertexKind.GPU
    return port.interface == end.vertex.name or not (gpus or end.vertex.kind in PORTS)


def hops_over(crossing: Crossing) -> tuple[Hop, Hop]:
    """Return the two hops into and out of the network; a measurement covers both."""
    network, measured = crossing.network, crossing.measured
    name = NETWORK + network.name
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


def _bandwidth(crossing: Crossing, one: Side) -> tuple[float | None, Evidence, str]:
    """Return what a port carries on a network, where that is from, and what limits it beside the port."""
    measured, speed = crossing.measured, one.port.speed_bytes_per_second
    if measured is not None and measured.bandwidth_bytes_per_second is not None:
        return measured.bandwidth_bytes_per_second, Evidence.MEASURED, ""
    if crossing.network.transport is Transport.NVLINK:
        links = [hop for hop in one.end.ways.graph.edges_from(one.port.interface) if hop.link == LinkKind.NVLINK]
        total = sum(hop.bandwidth_bytes_per_second or 0.0 for hop in links)
        return total or None, weakest(links), ", ".join(hop.detail for hop in links)
    if not speed:
        return None, Evidence.ASSUMED, ""
    if crossing.network.transport is Transport.ETHERNET and speed > nominal.TCP_BANDWIDTH:
        return nominal.TCP_BANDWIDTH, Evidence.ASSUMED, f"TCP, of a port of {format_bandwidth(speed)}"
    return float(speed), Evidence.REPORTED, ""
