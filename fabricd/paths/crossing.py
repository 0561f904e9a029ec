"""Networks from a port of one node to a port of another: which ports, and what is known of going that way."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product
from typing import NamedTuple

from fabricd.graph import nominal
from fabricd.graph.graph import LinkKind
from fabricd.graph.networks import is_of, measurement_between
from fabricd.graph.networks_nvlink import weakness
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, PathType, Transport
from fabricd.model.placement import Position
from fabricd.paths.describe import weakest
from fabricd.paths.ends import End
from fabricd.paths.port_facts import PortFacts
from fabricd.paths.ways import Way
from fabricd.units import format_bandwidth

#: Pairs of ports of one network that are looked at: two nodes with 64 ports each on it stay below.
MAX_PAIRS = 4096

#: Networks whose switches are those that schedulers and providers tell of.
_PLACED = frozenset({Transport.INFINIBAND, Transport.ROCE, Transport.EFA, Transport.SLINGSHOT, Transport.GPUDIRECT_TCP})

#: What the name of a network's vertex begins with.
NETWORK = "network:"


class Side(NamedTuple):
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
    worth: tuple[float, bool, int, float]  #: the least is the best: bandwidth, a copy, cautions, latency
    cautions: tuple[str, ...]  #: what makes the port and the way worse than their figures say
    carries: float | None  #: by the port into the network, bytes/s, unless somebody measured
    evidence: Evidence  #: of that

    @property
    def name(self) -> str:
        """Of the port's vertex."""
        return self.end.full(self.port.interface)


class Crossing(NamedTuple):
    """A network from a port of the one node to a port of the other."""

    network: Network
    near: Side
    far: Side
    measured: Measurement | None
    over_spine: bool  #: the two ports are known, or said, to go into different switches
    cross_rail: bool  #: and into those of different rails
    told: tuple[Position, Position] | None  #: where the nodes are said to stand, if the ports' switches are not known

    @property
    def mtu_differs(self) -> bool:
        """The two ports are known to have different MTUs."""
        mtus = (self.near.facts.mtu_bytes, self.far.facts.mtu_bytes)
        return bool(mtus[0] and mtus[1] and mtus[0] != mtus[1])


def crossings(
    networks: Sequence[Network], start: End, goal: End, measurements: Sequence[Measurement], *, all_ports: bool = False
) -> Iterator[Crossing]:
    """Yield the ways from one end to another by pairs of ports that networks join.

    Only an end's own port where the end is a port. Of those that are alike in all that counts the first stands for all,
    and what is second to another at both ends is left out, unless somebody measured or all are asked for.

    Args:
        networks: of the two nodes.
        start: where paths start.
        goal: where they end.
        measurements: between the two nodes.
        all_ports: yield also what is like another.
    """
    for network in networks:
        every = all_ports or any(is_of(one, network) for one in measurements)
        nears, fars = (
            _sides(network, start, away=True, every=every),
            _sides(network, goal, away=False, every=every),
        )
        best = (min((side.worth for side in nears), default=None), min((side.worth for side in fars), default=None))
        seen = set()
        told = _told(network, start, goal)
        for near, far in islice(product(nears, fars), MAX_PAIRS):
            second = near.worth != best[0] and far.worth != best[1] and not (near.nearest and far.nearest)
            if second and not every:
                continue
            measured = measurement_between(measurements, network, near.port, far.port) if measurements else None
            leaves = (near.facts.leaf, far.facts.leaf)
            known = "" not in leaves
            over_spine = (
                leaves[0] != leaves[1] if known else told is not None and told[0].switches[0] != told[1].switches[0]
            )
            cross_rail = known and over_spine and None not in (near.rail, far.rail) and near.rail != far.rail
            alike = (near.likeness, far.likeness, over_spine, cross_rail, measured)
            if all_ports or alike not in seen:
                seen.add(alike)
                yield Crossing(network, near, far, measured, over_spine, cross_rail, None if known else told)


def _told(network: Network, start: End, goal: End) -> tuple[Position, Position] | None:
    """Return where two nodes are said to stand, for networks of jobs' data; by one source: names of two may differ."""
    if network.transport not in _PLACED or start.position is None or goal.position is None:
        return None
    return (start.position, goal.position) if start.position.source == goal.position.source else None


def _sides(network: Network, end: End, *, away: bool, every: bool) -> list[Side]:
    """Return the sides that a path may take at one end, those by the nearest port first."""
    usable = [
        (approach, port, end.tables.facts(port))
        for port in network.ports
        if port.node == end.node_id
        and (approach := end.ways.approach(end.vertex, port.interface, network.transport, away=away)) is not None
    ]
    rails: Mapping[str, int] = {}
    if len(usable) > 1:
        usable.sort(key=lambda one: one[0].far)
        rails = end.rails() if len({facts.leaf for _, _, facts in usable} - {""}) > 1 else {}
    sides: dict[object, Side] = {}
    for approach, port, facts in usable:
        figures = (port.speed_bytes_per_second, port.virtual, facts.mtu_bytes, bool(facts.cautions))
        carries, evidence = _carries(network, end, port)
        nearest, rail = approach.far == usable[0][0].far, rails.get(port.interface)
        weak = _weak(end, port) if network.transport is Transport.NVLINK else []
        for way in approach.ways:
            width = min(way.width, port.speed_bytes_per_second or 0)
            worth = (-width, way.gdr is False, len(way.cautions) + len(facts.cautions), way.latency_seconds)
            cautions = (*facts.cautions, *way.cautions, *weak)
            alike = (figures, way.likeness)
            side = Side(end, port, facts, approach.type, nearest, rail, way, alike, worth, cautions, carries, evidence)
            sides.setdefault((alike, facts.leaf, port.interface if every else ""), side)
    return list(sides.values())


def latency_of(crossing: Crossing) -> float | None:
    """Return the latency of a network between two ports, ``None`` where nobody knows."""
    measured = crossing.measured
    if measured is not None and measured.latency_seconds is not None:
        return measured.latency_seconds
    latency = nominal.NETWORK_LATENCY.get(crossing.network.transport)
    return latency + 2 * nominal.SWITCH_LATENCY if latency is not None and crossing.over_spine else latency


def hops_over(crossing: Crossing) -> tuple[Hop, Hop]:
    """Return the two hops into and out of the network; a measurement covers both."""
    network = crossing.network
    name = NETWORK + network.name
    latency = latency_of(crossing)
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
    limit = ""
    if crossing.network.transport is Transport.NVLINK:
        limit = ", ".join(hop.detail for hop in _nvlinks(one.end, one.port))
    elif one.carries is not None and speed is not None and one.carries < speed:
        limit = f"TCP, of a port of {format_bandwidth(speed)}"
    return one.carries, one.evidence, limit


def _carries(network: Network, end: End, port: NetworkPort) -> tuple[float | None, Evidence]:
    """Return what a port carries on a network as long as nobody has measured, and where that is from."""
    speed = port.speed_bytes_per_second
    if network.transport is Transport.NVLINK:
        links = _nvlinks(end, port)
        return sum(hop.bandwidth_bytes_per_second or 0.0 for hop in links) or None, weakest(links)
    if not speed:
        return None, Evidence.ASSUMED
    if network.transport is Transport.ETHERNET and speed > nominal.TCP_BANDWIDTH:
        return nominal.TCP_BANDWIDTH, Evidence.ASSUMED
    return float(speed), Evidence.REPORTED


def _nvlinks(end: End, port: NetworkPort) -> list[Hop]:
    return [hop for hop in end.ways.graph.edges_from(port.interface) if hop.link == LinkKind.NVLINK]


def _weak(end: End, port: NetworkPort) -> list[str]:
    """Return what drivers say against the NVLink fabric of a GPU that is a port of it."""
    gpus = (gpu for gpu in end.snapshot.gpus if f"gpu{gpu.index}" == port.interface)
    return [said for gpu in gpus if (said := weakness(gpu))]
