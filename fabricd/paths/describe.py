"""From hops to a ``Path``: its type in NCCL's vocabulary, what carries it, its figures and where they come from."""

from collections.abc import Sequence, Set

from fabricd.graph import nominal
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path, PathType, Transport

_WEAKNESS = {evidence: weakness for weakness, evidence in enumerate(Evidence)}
_CPU_SIDE = frozenset({VertexKind.HOST_BRIDGE, VertexKind.NUMA, VertexKind.MACHINE})


def describe(graph: Graph, src: str, dst: str, hops: Sequence[Hop]) -> Path:
    """Return the path that some hops of one node's graph make."""
    relays = sum(graph[hop.src].kind is VertexKind.GPU for hop in hops[1:])
    latency = relays * nominal.GPU_RELAY_LATENCY
    for hop in hops:
        latency += hop.latency_seconds or 0.0
    links = {hop.link for hop in hops}
    kind = _type(graph, src, hops, links, relays)
    a, b = graph[src], graph[dst]
    return Path(
        src=src,
        dst=dst,
        type=kind,
        transport=_transport(kind, links),
        bandwidth_bytes_per_second=bottleneck(hops),
        latency_seconds=latency,
        hops=tuple(hops),
        evidence=weakest(hops),
        gdr=_gdr(a, b) if a.kind is not b.kind else None,
        virtual=a.virtual or b.virtual,
    )


def bottleneck(hops: Sequence[Hop]) -> float | None:
    """Return the least bandwidth of those that are known, ``None`` when none is."""
    least = None
    for hop in hops:
        known = hop.bandwidth_bytes_per_second
        if known is not None and (least is None or known < least):
            least = known
    return least


def weakest(hops: Sequence[Hop]) -> Evidence:
    """Return the weakest evidence of the hops that have a figure; without any, all is assumed."""
    return weakest_of({hop.evidence for hop in hops if hop.bandwidth_bytes_per_second is not None})


def weakest_of(said: Set[Evidence]) -> Evidence:
    """Return the weakest evidence of some; without any, all is assumed."""
    return max(said, key=_WEAKNESS.__getitem__, default=Evidence.ASSUMED)


def path_type(graph: Graph, src: str, hops: Sequence[Hop]) -> PathType:
    """Return what NCCL would call such a path, by what it consists of and crosses.

    A relay through a GPU is NVB over NVLink alone, else PXN. A way through a processor's host bridge is PHB, over
    the interconnect between NUMA nodes SYS, from C2C through the processor to a card P2C.
    """
    relays = sum(graph[hop.src].kind is VertexKind.GPU for hop in hops[1:])
    return _type(graph, src, hops, {hop.link for hop in hops}, relays)


def _type(graph: Graph, src: str, hops: Sequence[Hop], links: Set[str], relays: int) -> PathType:
    if links <= {LinkKind.LOCAL}:
        return PathType.LOC
    if links == {LinkKind.NVLINK}:
        return PathType.NVB if relays else PathType.NVL
    if relays:
        return PathType.PXN
    if LinkKind.INTERCONNECT in links:
        return PathType.SYS
    if LinkKind.C2C in links:
        return PathType.C2C if links == {LinkKind.C2C} else PathType.P2C
    kinds = [graph[src].kind, *(graph[hop.dst].kind for hop in hops)]
    if not _CPU_SIDE.isdisjoint(kinds):
        return PathType.PHB
    return PathType.PIX if kinds.count(VertexKind.PCI_SWITCH) <= 1 else PathType.PXB


def _gdr(a: Vertex, b: Vertex) -> bool | None:
    """Whether a GPU and a port exchange data without a copy in host memory; ``None`` for other pairs, or unknown."""
    if VertexKind.GPU not in (a.kind, b.kind):
        return None
    if False in (a.gdr, b.gdr):
        return False
    return True if a.gdr and b.gdr else None


def _transport(kind: PathType, links: Set[str]) -> Transport:
    if kind is PathType.LOC:
        return Transport.SELF
    if kind in (PathType.NVL, PathType.NVB):
        return Transport.NVLINK
    if kind is PathType.C2C:
        return Transport.C2C
    return Transport.SHM if links <= {LinkKind.MEMORY, LinkKind.INTERCONNECT} else Transport.PCIE
