"""The ways between one end of a path and the ports of its node: GPUDirect, through host memory, or by another GPU.

A port that cannot read a GPU's memory, or that is farther away than libraries let it, gets the data through host
memory, so there the way leads through a NUMA node. A GPU may pass its data by NVLink to one that is beside the port
(NCCL's PXN). Only the sending end does: nothing in the libraries passes on what arrived for another GPU.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from fabricd.graph import nominal
from fabricd.graph.flattened import flattened
from fabricd.graph.graph import LinkKind, Vertex, VertexKind
from fabricd.graph.networks_rails import rail_ports
from fabricd.graph.snapshot import graph_of
from fabricd.graph.template import placement
from fabricd.model.observation import Evidence, Outcome
from fabricd.model.path import Hop, PathType, Transport
from fabricd.model.snapshot import Snapshot
from fabricd.paths.describe import bottleneck, path_type, weakest
from fabricd.paths.search import UNKNOWN_WIDTH, Hops, PathSearch

PORTS = frozenset({VertexKind.NIC, VertexKind.HCA_PORT})

#: How far apart NCCL lets a GPU and a port exchange data directly, by default. Source: NCCL 2.30, graph/paths.cc.
_NEAR = frozenset({PathType.LOC, PathType.PIX, PathType.PXB, PathType.P2C})
#: What ways are searched to: ends, ports, and what they may have to lead through.
_PLACES = frozenset({VertexKind.GPU, VertexKind.NIC, VertexKind.HCA_PORT}) | frozenset(
    {VertexKind.NUMA, VertexKind.MACHINE, VertexKind.HOST_BRIDGE}
)
#: Links between a port and a GPU beside it.
_TO_PORTS = frozenset({LinkKind.PORT.value, LinkKind.PCIE.value, LinkKind.MEMORY.value, LinkKind.C2C.value})
#: Combinations of ports that are up, of one kind of machine, whose rails are remembered.
_STATES = 256
#: Networks whose ports are interfaces, but which libraries can use with GPU memory.
_OF_DEVICE_MEMORY = frozenset({Transport.SLINGSHOT, Transport.GPUDIRECT_TCP})
_NEARNESS = {kind: order for order, kind in enumerate(PathType)}


@dataclass(frozen=True, slots=True)
class Way:
    """A way between an end and a port, in the direction of the data; names are within the node."""

    hops: Hops = ()
    relay: str = ""  #: the GPU that passes data on
    gdr: bool | None = None  #: ``None``: the end is no GPU, or it is not known
    why: str = ""  #: the facts behind ``gdr``
    cautions: tuple[str, ...] = ()
    width: float = UNKNOWN_WIDTH  #: of the narrowest hop, bytes/s
    latency_seconds: float = 0.0  #: of the hops, a relay, and a copy in host memory
    #: What two ways must share for one of them to stand for both.
    likeness: tuple[object, ...] = ()
    evidence: Evidence | None = None  #: the weakest of the hops' that have a figure
    names: tuple[str, ...] = ()  #: where each hop leads


def _way(hops: Hops, *, relay: str = "", gdr: bool | None = None, why: str = "", cautions: tuple[str, ...] = ()) -> Way:
    latency = _latency(hops)
    latency += nominal.GPU_RELAY_LATENCY if relay else 0.0
    latency += nominal.HOST_COPY_LATENCY if gdr is False else 0.0
    width = _width(hops)
    likeness = (width, round(latency * 1e12), bool(relay), gdr, bool(cautions), len(hops))
    rated = any(hop.bandwidth_bytes_per_second is not None for hop in hops)
    names = tuple(hop.dst for hop in hops)
    return Way(hops, relay, gdr, why, cautions, width, latency, likeness, weakest(hops) if rated else None, names)


class Approach(NamedTuple):
    """How an end and a port of its node reach each other."""

    type: PathType  #: of the straight way
    far: tuple[int, float, int]  #: the straight way's place in NCCL's order of types, latency, and hops
    ways: tuple[Way, ...]  #: the straight one first


class NodeWays:
    """All ways within one node, each searched once. Good for every node whose hardware is the same.

    Args:
        snapshot: of the node.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        # A UUID is one node's; what is found here is found for all that are alike.
        self.snapshot = replace(snapshot, gpus=tuple(replace(gpu, uuid="") for gpu in snapshot.gpus))
        self.graph = graph_of(self.snapshot, node="")
        self._search = PathSearch(self.graph, relays=False)
        self._places = [vertex.name for vertex in self.graph if vertex.kind in _PLACES]
        self._from: dict[str, dict[str, Hops]] = {}
        self._approaches: dict[tuple[str, str, bool, bool], Approach | None] = {}
        self._rails: dict[Hashable, Mapping[str, int]] = {}
        self._beside: dict[str, tuple[Vertex, Hops] | None] = {}
        self._pci = {device.address: device for device in snapshot.pci}
        self._bus_of = {f"gpu{gpu.index}": gpu.pci_address for gpu in snapshot.gpus}
        self._bus_of |= {name: hca.pci_address for name, hca, _ in snapshot.hca_ports()}

    def approach(self, end: Vertex, port: str, transport: Transport, *, away: bool) -> Approach | None:
        """Return how an end and a port reach each other; ``None`` where a path may not leave or reach the end by it.

        An end that is a port is its own only port; in an NVLink domain a GPU is a port of its own alone.

        Args:
            end: where the path starts or ends.
            port: where it leaves or enters the node; of an NVLink domain a GPU.
            transport: of the network that the port is on.
            away: the end sends.
        """
        key = (end.name, port, transport in _OF_DEVICE_MEMORY, away)
        if key not in self._approaches:
            alone = port in self.graph and (end.kind in PORTS or self.graph[port].kind is VertexKind.GPU)
            usable = port in self.graph and (port == end.name or not alone)
            self._approaches[key] = self._approach(end, self.graph[port], transport, away) if usable else None
        return self._approaches[key]

    def _approach(self, end: Vertex, port: Vertex, transport: Transport, away: bool) -> Approach:
        hops = self._joined(end.name, port.name)
        kind = PathType.DIS if hops is None else path_type(self.graph, end.name, hops)
        ways = tuple(self._find(end, port, transport, away))
        far = (_NEARNESS[kind], _latency(hops or ()), len(hops or ()))
        return Approach(kind, far, ways if away else tuple(map(_back, ways)))

    def rails_of(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Return the rail of each port for jobs' data of a node of this kind; it depends on which ports are up."""
        hcas = tuple(port.state for hca in snapshot.hcas for port in hca.ports)
        states = (hcas, tuple((one.admin_up, one.carrier, one.oper_state) for one in snapshot.interfaces))
        known = self._rails.get(states)
        if known is None:
            if len(self._rails) >= _STATES:
                self._rails.clear()
            known = self._rails[states] = {one.name: one.rail for one in rail_ports(snapshot)}
        return known

    def _find(self, end: Vertex, port: Vertex, transport: Transport, away: bool) -> Iterator[Way]:
        """Yield the ways from an end to a port; links are alike in both directions."""
        hops = self._joined(end.name, port.name)
        if end.kind is not VertexKind.GPU or port.kind is VertexKind.GPU:
            if hops is not None:
                yield _way(hops)
            return
        if transport in _OF_DEVICE_MEMORY:
            if hops is not None:
                yield _way(hops, why=f"nothing that is known here tells whether {transport} takes GPU memory")
            return
        straight = self._by_gpu(end, port, hops) if hops is not None else None
        if straight is not None:
            yield straight
        if away and (relayed := self._relayed(end, port, straight)) is not None:
            yield relayed

    def _by_gpu(self, gpu: Vertex, port: Vertex, hops: Hops) -> Way:
        """Return the way between a GPU and a port without another GPU: direct, or through host memory."""
        gdr, why = self._gpudirect(gpu, port, path_type(self.graph, gpu.name, hops))
        if gdr is False:
            return _way(self._through(gpu, port, VertexKind.NUMA) or hops, gdr=gdr, why=why)
        bridge = self._redirecting(gpu, port)
        if bridge and not any(self.graph[hop.dst].kind is VertexKind.HOST_BRIDGE for hop in hops):
            caution = f"ACS at {bridge} sends what {gpu.name} and {port.name} exchange up to the root and back"
            up = self._through(gpu, port, VertexKind.HOST_BRIDGE)
            return _way(up or hops, gdr=gdr, why=why, cautions=(caution,))
        return _way(hops, gdr=gdr, why=why)

    def _relayed(self, gpu: Vertex, port: Vertex, straight: Way | None) -> Way | None:
        """Return the way by a GPU beside the port, where NCCL's rule takes it: the port is far, or the way narrow."""
        if port.name not in self._beside:
            self._beside[port.name] = self._nearest_gpu(port)
        relay, last = self._beside[port.name] or (gpu, ())
        first = self._by_nvlink(gpu, relay)
        if relay == gpu or first is None:
            return None
        near = straight is not None and path_type(self.graph, gpu.name, straight.hops) in _NEAR
        if straight is not None and near and _width(last) <= _width(straight.hops):
            return None
        by = self._by_gpu(relay, port, last)
        why = f"{gpu.name} passes it by NVLink to {relay.name} (PXN): {by.why}"
        return _way((*first, *by.hops), relay=relay.name, gdr=by.gdr, why=why, cautions=by.cautions)

    def _nearest_gpu(self, port: Vertex) -> tuple[Vertex, Hops] | None:
        """Return the GPU that is the fewest links from a port, and the way from it, if both can exchange data directly.

        Of several that are as near the first. NVLink is no way to a port.
        """
        came: dict[str, Hops] = {port.name: ()}
        level = [port.name]
        while level and not any(self.graph[name].kind is VertexKind.GPU for name in level):
            found = []
            for name in level:
                for hop in self.graph.edges_from(name):
                    if hop.dst not in came and hop.link in _TO_PORTS:
                        came[hop.dst] = (*came[name], hop)
                        found.append(hop.dst)
            level = found
        able = {f"gpu{gpu.index}" for gpu in self.snapshot.gpus if gpu.outcome is Outcome.OK}
        gpus = [vertex for vertex in self.graph.of_kind(VertexKind.GPU) if vertex.name in able.intersection(level)]
        for gpu in gpus:
            hops = _turned(came[gpu.name])
            kind = path_type(self.graph, gpu.name, hops)
            if kind in _NEAR and self._gpudirect(gpu, port, kind)[0] is not False:
                return gpu, hops
        return None

    def _by_nvlink(self, gpu: Vertex, other: Vertex) -> Hops | None:
        """Return the way from one GPU to another over NVLink, straight or through the switches."""
        for hop in self.graph.edges_from(gpu.name):
            if hop.link == LinkKind.NVLINK and hop.dst == other.name:
                return (hop,)
        for hop in self.graph.edges_from(gpu.name):
            if hop.link == LinkKind.NVLINK and self.graph[hop.dst].kind is VertexKind.NVSWITCH:
                for last in self.graph.edges_from(hop.dst):
                    if last.dst == other.name:
                        return (hop, last)
        return None

    def _gpudirect(self, gpu: Vertex, port: Vertex, kind: PathType) -> tuple[bool | None, str]:
        """Return whether a port reads and writes a GPU's memory, and the facts that say so."""
        if port.kind is VertexKind.NIC:
            return False, f"{port.name} carries IP, which the kernel copies"
        if port.gdr is False:
            return False, f"{port.name} registers no GPU memory, neither by dma-buf nor by a peer-memory module"
        if kind not in _NEAR and self._hidden:
            return None, f"how far {port.name} is from {gpu.name} is hidden by the virtual machine"
        if kind not in _NEAR:
            level = f"libraries go no farther than PXB unless told (NCCL_NET_GDR_LEVEL={kind})"
            return False, f"{gpu.name} and {port.name} are {kind} apart; {level}"
        if port.gdr is None:
            known = "whether it registers GPU memory is not known"
            return None, f"{gpu.name} and {port.name} are {kind} apart, but {known}"
        apart = f"{gpu.name} and {port.name} are {kind} apart"
        return True, f"{apart}, GPU memory is registered by {self._registers(port)}"

    def _registers(self, port: Vertex) -> str:
        hca = next((hca for hca in self.snapshot.hcas if hca.name == port.name.rpartition(":")[0]), None)
        return "dma-buf" if hca is not None and hca.dmabuf else "a peer-memory module"

    def _redirecting(self, gpu: Vertex, port: Vertex) -> str:
        """Return the PCIe port above a GPU or an adapter that sends what is for its neighbours up to the root."""
        for name in (gpu.name, port.name):
            device = self._pci.get(self._bus_of.get(name, ""))
            above = self._pci.get(device.parent) if device is not None else None
            if above is not None and above.acs_redirects:
                return above.address
        return ""

    def _through(self, end: Vertex, port: Vertex, kind: VertexKind) -> Hops | None:
        """Return the best way that leads through some vertex of a kind."""
        found: list[tuple[float, float, int, Hops]] = []
        for middle in self.graph.of_kind(kind) or self.graph.of_kind(VertexKind.MACHINE):
            first, last = self._joined(end.name, middle.name), self._joined(middle.name, port.name)
            if first is not None and last is not None:
                hops = (*first, *last)
                found.append((-_width(hops), _latency(hops), len(found), hops))
        return min(found)[3] if found else None

    def _joined(self, src: str, dst: str) -> Hops | None:
        """Return the best way from one vertex to another through no other GPU."""
        if src == dst:
            return ()
        if src not in self._from:
            self._from[src] = self._search.best_to_each(src, [place for place in self._places if place != src])
        return self._from[src].get(dst)

    @cached_property
    def _hidden(self) -> bool:
        """The machine hides how its devices hang together, and no file tells."""
        return bool(flattened(self.snapshot)) and placement(self.snapshot).template is None


def _width(hops: Hops) -> float:
    known = bottleneck(hops)
    return UNKNOWN_WIDTH if known is None else known


def _latency(hops: Hops) -> float:
    return sum(hop.latency_seconds or 0.0 for hop in hops)


def _turned(hops: Hops) -> Hops:
    """Return the same way back."""
    return tuple(renamed(hop, hop.dst, hop.src) for hop in reversed(hops))


def _back(way: Way) -> Way:
    hops = _turned(way.hops)
    return replace(way, hops=hops, names=tuple(hop.dst for hop in hops))


def renamed(hop: Hop, src: str, dst: str) -> Hop:
    """Return a hop with other ends; thrice as quick as ``dataclasses.replace``, and every answer has dozens."""
    return Hop(
        src=src,
        dst=dst,
        link=hop.link,
        bandwidth_bytes_per_second=hop.bandwidth_bytes_per_second,
        latency_seconds=hop.latency_seconds,
        evidence=hop.evidence,
        detail=hop.detail,
        count=hop.count,
    )
