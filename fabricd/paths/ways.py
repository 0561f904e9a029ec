"""The ways between one end of a path and the ports of its node: GPUDirect, through host memory, or by another GPU.

A port that cannot read a GPU's memory, or that is farther away than libraries let it, gets the data through host
memory, so there the way leads through a NUMA node. A GPU may pass its data by NVLink to one that is beside the port
(NCCL's PXN). Only the sending end does: nothing in the libraries passes on what arrived for another GPU.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from fabricd.graph import nominal
from fabricd.graph.flattened import flattened
from fabricd.graph.graph import LinkKind, Vertex, VertexKind
from fabricd.graph.snapshot import graph_of
from fabricd.graph.template import placement
from fabricd.model.path import PathType
from fabricd.model.snapshot import Snapshot
from fabricd.paths.describe import bottleneck, path_type
from fabricd.paths.search import UNKNOWN_WIDTH, Hops, PathSearch

#: How far apart NCCL lets a GPU and a port exchange data directly, by default. Source: NCCL 2.30, graph/paths.cc.
_NEAR = frozenset({PathType.LOC, PathType.PIX, PathType.PXB, PathType.P2C})
_NEARNESS = {kind: order for order, kind in enumerate(PathType)}


@dataclass(frozen=True, slots=True)
class Way:
    """A way between an end and a port, in the direction of the data."""

    hops: Hops = ()
    relay: str = ""  #: vertex of the GPU that passes data on
    gdr: bool | None = None  #: ``None``: the end is no GPU, or it is not known
    why: str = ""  #: the facts behind ``gdr``
    cautions: tuple[str, ...] = ()

    @property
    def latency_seconds(self) -> float:
        """The hops' together, and that of a relay and of a copy in host memory."""
        extra = nominal.GPU_RELAY_LATENCY if self.relay else 0.0
        extra += nominal.HOST_COPY_LATENCY if self.gdr is False else 0.0
        return extra + sum(hop.latency_seconds or 0.0 for hop in self.hops)

    @property
    def likeness(self) -> tuple[object, ...]:
        """What two ways must share for one of them to stand for both."""
        latency = round(self.latency_seconds * 1e12)
        return (_width(self.hops), latency, bool(self.relay), self.gdr, self.cautions, len(self.hops))


class NodeWays:
    """All ways within one node, each searched once.

    Args:
        snapshot: of the node.
        node: its display name, which its vertices' names begin with.
    """

    def __init__(self, snapshot: Snapshot, node: str) -> None:
        self.snapshot = snapshot
        self.node = node
        self.graph = graph_of(snapshot, node=node)
        self._search = PathSearch(self.graph, relays=False)
        self._hops: dict[tuple[str, str], Hops | None] = {}
        self._ways: dict[tuple[str, str, bool], tuple[Way, ...]] = {}
        self._relays: dict[str, Vertex | None] = {}
        self._pci = {device.address: device for device in snapshot.pci}
        self._bus_of = {f"gpu{gpu.index}": gpu.pci_address for gpu in snapshot.gpus}
        self._bus_of |= {f"{hca.name}:{port.port}": hca.pci_address for hca in snapshot.hcas for port in hca.ports}

    def between(self, end: Vertex, port: Vertex, *, away: bool) -> tuple[Way, ...]:
        """Return the ways between an end and a port, the straight one first; none where nothing joins them.

        Args:
            end: where the path starts or ends.
            port: where it leaves or enters the node; of an NVLink domain a GPU.
            away: the end sends.
        """
        key = (end.name, port.name, away)
        if key not in self._ways:
            self._ways[key] = tuple(self._find(end, port, away))
        return self._ways[key]

    def distance(self, end: Vertex, port: Vertex) -> tuple[int, float, int]:
        """Return how far a port is from an end by the straight way: by type of path, latency, and hops."""
        hops = self._joined(end.name, port.name)
        if hops is None:
            return (_NEARNESS[PathType.DIS], 0.0, 0)
        kind = path_type(self.graph, end.name, hops)
        return (_NEARNESS[kind], sum(hop.latency_seconds or 0.0 for hop in hops), len(hops))

    def _find(self, end: Vertex, port: Vertex, away: bool) -> Iterator[Way]:
        hops = self._joined(end.name, port.name, away=away)
        if end.kind is not VertexKind.GPU or port.kind is VertexKind.GPU:
            if hops is not None:
                yield Way(hops=hops)
            return
        straight = self._by_gpu(end, port, hops, away=away) if hops is not None else None
        if straight is not None:
            yield straight
        if away and (relayed := self._relayed(end, port, straight)) is not None:
            yield relayed

    def _by_gpu(self, gpu: Vertex, port: Vertex, hops: Hops, *, away: bool) -> Way:
        """Return the way between a GPU and a port without another GPU: direct, or through host memory."""
        gdr, why = self._gpudirect(gpu, port, self._type(gpu.name, port.name))
        if gdr is False:
            return Way(self._through(gpu, port, VertexKind.NUMA, away=away) or hops, gdr=gdr, why=why)
        bridge = self._redirecting(gpu, port)
        crossed = {hop.dst for hop in hops}
        if bridge and not any(self.graph[name].kind is VertexKind.HOST_BRIDGE for name in crossed):
            caution = f"ACS at {bridge} sends what {gpu.name} and {port.local_name} exchange up to the root and back"
            up = self._through(gpu, port, VertexKind.HOST_BRIDGE, away=away)
            return Way(up or hops, gdr=gdr, why=why, cautions=(caution,))
        return Way(hops, gdr=gdr, why=why)

    def _relayed(self, gpu: Vertex, port: Vertex, straight: Way | None) -> Way | None:
        """Return the way by a GPU beside the port, where NCCL's rule takes it: the port is far, or the way narrow."""
        relay = self._beside(port)
        if relay is None or relay == gpu:
            return None
        last = self._joined(relay.name, port.name) or ()
        if straight is not None and self._type(gpu.name, port.name) in _NEAR and _width(last) <= _width(straight.hops):
            return None
        first = self._nvlink.best(gpu.name, relay.name)
        if first is None:
            return None
        by = self._by_gpu(relay, port, last, away=True)
        why = f"{gpu.local_name} passes it by NVLink to {relay.local_name} (PXN): {by.why}"
        return Way((*first, *by.hops), relay=relay.name, gdr=by.gdr, why=why, cautions=by.cautions)

    def _beside(self, port: Vertex) -> Vertex | None:
        """Return the GPU nearest to a port that can exchange data with it directly."""
        if port.name not in self._relays:
            near: list[tuple[float, int, int, Vertex]] = []
            for gpu in self.graph.of_kind(VertexKind.GPU):
                hops = self._joined(gpu.name, port.name)
                kind = self._type(gpu.name, port.name)
                if hops is not None and self._gpudirect(gpu, port, kind)[0] is not False and kind in _NEAR:
                    near.append((-_width(hops), _NEARNESS[kind], len(near), gpu))
            self._relays[port.name] = min(near)[3] if near else None
        return self._relays[port.name]

    def _gpudirect(self, gpu: Vertex, port: Vertex, kind: PathType) -> tuple[bool | None, str]:
        """Return whether a port reads and writes a GPU's memory, and the facts that say so."""
        if port.kind is VertexKind.NIC and self._driver(port).startswith("cxi"):
            return None, f"whether libfabric's provider for {port.local_name} registers GPU memory is not known"
        if port.kind is VertexKind.NIC:
            return False, f"{port.local_name} carries IP, which the kernel copies"
        if port.gdr is False:
            return False, f"{port.local_name} registers no GPU memory, neither by dma-buf nor by a peer-memory module"
        if kind not in _NEAR and self._hidden:
            return None, f"how far {port.local_name} is from {gpu.local_name} is hidden by the virtual machine"
        if kind not in _NEAR:
            level = f"libraries go no farther than PXB unless told (NCCL_NET_GDR_LEVEL={kind})"
            return False, f"{gpu.local_name} and {port.local_name} are {kind} apart; {level}"
        if port.gdr is None:
            known = "whether it registers GPU memory is not known"
            return None, f"{gpu.local_name} and {port.local_name} are {kind} apart, but {known}"
        apart = f"{gpu.local_name} and {port.local_name} are {kind} apart"
        return True, f"{apart}, GPU memory is registered by {self._registers(port)}"

    def _driver(self, port: Vertex) -> str:
        return next((one.driver for one in self.snapshot.interfaces if one.name == port.local_name), "")

    def _registers(self, port: Vertex) -> str:
        hca = next((hca for hca in self.snapshot.hcas if hca.name == port.local_name.rpartition(":")[0]), None)
        return "dma-buf" if hca is not None and hca.dmabuf else "a peer-memory module"

    def _redirecting(self, gpu: Vertex, port: Vertex) -> str:
        """Return the PCIe port above a GPU or an adapter that sends what is for its neighbours up to the root."""
        for name in (gpu.local_name, port.local_name):
            device = self._pci.get(self._bus_of.get(name, ""))
            above = self._pci.get(device.parent) if device is not None else None
            if above is not None and above.acs_redirects:
                return above.address
        return ""

    def _through(self, end: Vertex, port: Vertex, kind: VertexKind, *, away: bool) -> Hops | None:
        """Return the best way that leads through some vertex of a kind."""
        found: list[tuple[float, float, int, Hops]] = []
        middles = self.graph.of_kind(kind) or self.graph.of_kind(VertexKind.MACHINE)
        for middle in middles:
            parts = (self._joined(end.name, middle.name, away=away), self._joined(middle.name, port.name, away=away))
            if parts[0] is not None and parts[1] is not None:
                hops = (*parts[0], *parts[1]) if away else (*parts[1], *parts[0])
                latency = sum(hop.latency_seconds or 0.0 for hop in hops)
                found.append((-_width(hops), latency, len(found), hops))
        return min(found)[3] if found else None

    def _joined(self, a: str, b: str, *, away: bool = True) -> Hops | None:
        """Return the best way from ``a`` to ``b``, or back, through no other GPU."""
        src, dst = (a, b) if away else (b, a)
        if (src, dst) not in self._hops:
            self._hops[src, dst] = self._search.best(src, dst)
        return self._hops[src, dst]

    def _type(self, a: str, b: str) -> PathType:
        hops = self._joined(a, b)
        return PathType.DIS if hops is None else path_type(self.graph, a, hops)

    @cached_property
    def _nvlink(self) -> PathSearch:
        """Search over NVLink alone, through switches but through no other GPU."""
        others = [link for link in LinkKind if link is not LinkKind.NVLINK]
        return PathSearch(self.graph.without(*others), relays=False)

    @cached_property
    def _hidden(self) -> bool:
        """The machine hides how its devices hang together, and no file tells."""
        return bool(flattened(self.snapshot)) and placement(self.snapshot).template is None


def _width(hops: Hops) -> float:
    known = bottleneck(hops)
    return UNKNOWN_WIDTH if known is None else known
