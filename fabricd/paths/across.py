"""Paths between nodes: to a port of the one, over a network that both are on, from a port of the other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fabricd.graph import nominal
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.networks import NetworkMap, measurement_between
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path, PathType, Rejected, Transport
from fabricd.paths.describe import bottleneck, weakest
from fabricd.paths.ends import PORTS, End
from fabricd.paths.search import Hops, PathSearch

#: Pairs of ports that are looked at: two nodes with 64 ports each on one network stay below.
MAX_PAIRS = 4096

_NETWORK = "network:"


@dataclass(frozen=True, slots=True)
class _Pair:
    network: Network
    near: NetworkPort
    far: NetworkPort


def candidates_across(
    found: NetworkMap, start: End, goal: End, measurements: Sequence[Measurement]
) -> tuple[list[Path], list[Rejected]]:
    """Return the paths between two nodes over each network that they share, and what was ruled out.

    Args:
        found: the networks of the two nodes, and of no other.
        start: where the paths start.
        goal: where they end, on another node.
        measurements: what active probes found.
    """
    ways = (_Ways(start), _Ways(goal))
    rejected = list(_refused(found, start, goal))
    paths = []
    for pair in _pairs(found, start, goal):
        measured = measurement_between(measurements, pair.network, pair.near, pair.far)
        if measured is not None and not measured.reachable:
            name = f"{pair.network.name}: {start.node}/{pair.near.interface} - {goal.node}/{pair.far.interface}"
            rejected.append(Rejected(name=name, reason=f"measured: {measured.reason or 'nothing arrives'}"))
            continue
        near, far = ways[0].to(pair.near), ways[1].back(pair.far)
        if near is not None and far is not None:
            paths.append(_path(start, goal, pair, measured, (near, far)))
    return paths, rejected


def joined(start: End, goal: End, paths: Sequence[Path]) -> Graph:
    """Return the graphs of two nodes joined by the networks that some paths between them cross."""
    graph = Graph()
    for end in (start, goal):
        for vertex in end.graph:
            graph.add(vertex)
        for edge in end.graph.edges():
            graph.add_edge(edge)
    across = (hop for path in paths for hop in path.hops if _is_network(hop.src) or _is_network(hop.dst))
    for hop in dict.fromkeys(across):
        graph.add(Vertex(name=hop.dst if _is_network(hop.dst) else hop.src, kind=VertexKind.NETWORK))
        graph.add_edge(hop)
    return graph


def _is_network(name: str) -> bool:
    return name.startswith(_NETWORK)


class _Ways:
    """The best ways between one end and the ports of its node, each searched once."""

    def __init__(self, end: End) -> None:
        self._end = end
        self._search = PathSearch(end.graph)
        self._known: dict[tuple[str, str], Hops | None] = {}

    def to(self, port: NetworkPort) -> Hops | None:
        return self._best(self._end.vertex.name, f"{self._end.node}/{port.interface}")

    def back(self, port: NetworkPort) -> Hops | None:
        return self._best(f"{self._end.node}/{port.interface}", self._end.vertex.name)

    def _best(self, src: str, dst: str) -> Hops | None:
        if (src, dst) not in self._known:
            self._known[src, dst] = self._search.best(src, dst)
        return self._known[src, dst]


def _pairs(found: NetworkMap, start: End, goal: End) -> Iterator[_Pair]:
    """Yield the pairs of ports that a network joins; only an end's own port where the end is a port."""
    count = 0
    for network in found.networks:
        for near in (port for port in network.ports if _can_be(port, start)):
            for far in (port for port in network.ports if _can_be(port, goal)):
                count += 1
                if count > MAX_PAIRS:
                    return
                yield _Pair(network, near, far)


def _can_be(port: NetworkPort, end: End) -> bool:
    name = f"{end.node}/{port.interface}"
    if port.node != end.node_id or name not in end.graph:
        return False
    return end.vertex.kind not in PORTS or name == end.vertex.name


def _path(start: End, goal: End, pair: _Pair, measured: Measurement | None, ways: tuple[Hops, Hops]) -> Path:
    across = _across(start, goal, pair, measured)
    hops = (*ways[0], *across, *ways[1])
    virtual = pair.near.virtual or pair.far.virtual or start.vertex.virtual or goal.vertex.virtual
    nvlink = all(hop.link == LinkKind.NVLINK for hop in hops)
    kind = PathType.NVL if nvlink else PathType.NET
    return Path(
        src=start.vertex.name,
        dst=goal.vertex.name,
        type=kind,
        transport=pair.network.transport,
        bandwidth_bytes_per_second=bottleneck(hops),
        latency_seconds=sum(hop.latency_seconds or 0.0 for hop in hops),
        hops=hops,
        evidence=weakest(hops),
        measured_age_seconds=measured.age_seconds if measured else None,
        virtual=virtual,
        gdr=_gdr(start, goal, pair),
        because=(_why_joined(pair, measured),),
    )


def _gdr(start: End, goal: End, pair: _Pair) -> bool | None:
    """Whether GPUs at the ends send and receive without a copy in host memory; ``None`` without any, or unknown."""
    ports = [
        end.graph[f"{end.node}/{port.interface}"]
        for end, port in ((start, pair.near), (goal, pair.far))
        if end.vertex.kind is VertexKind.GPU
    ]
    can = {port.gdr for port in ports if port.kind is not VertexKind.GPU}
    return False if False in can else True if can == {True} else None


def _across(start: End, goal: End, pair: _Pair, measured: Measurement | None) -> tuple[Hop, Hop]:
    """Return the two hops into and out of the network; a measurement covers both."""
    network = _NETWORK + pair.network.name
    latency = nominal.NETWORK_LATENCY.get(pair.network.transport)
    if measured is not None and measured.latency_seconds is not None:
        latency = measured.latency_seconds
    hops = []
    for end, port, inwards in ((start, pair.near, True), (goal, pair.far, False)):
        bandwidth = float(port.speed_bytes_per_second) if port.speed_bytes_per_second else None
        evidence = Evidence.REPORTED if bandwidth else Evidence.ASSUMED
        if measured is not None and measured.bandwidth_bytes_per_second is not None:
            bandwidth, evidence = measured.bandwidth_bytes_per_second, Evidence.MEASURED
        name = f"{end.node}/{port.interface}"
        hops.append(
            Hop(
                src=name if inwards else network,
                dst=network if inwards else name,
                link=LinkKind.NVLINK if pair.network.transport is Transport.NVLINK else LinkKind.NETWORK,
                bandwidth_bytes_per_second=bandwidth,
                latency_seconds=None if latency is None else latency / 2,
                evidence=evidence,
                detail=" ".join(filter(None, [port.address, "virtual" if port.virtual else ""])),
            )
        )
    return hops[0], hops[1]


def _why_joined(pair: _Pair, measured: Measurement | None) -> str:
    if measured is None:
        return f"{pair.network.name}: assumed to join them ({pair.network.reason})"
    ends = f"{pair.near.address} and {pair.far.address}"
    return f"{pair.network.name}: measured {measured.age_seconds:.0f} s ago between {ends}"


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
