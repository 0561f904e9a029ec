"""From hops to a ``Path``: its type in NCCL's vocabulary, what carries it, its figures and where they come from."""

from collections.abc import Sequence

from fabricd.graph import nominal
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path, PathType, Transport

_WEAKNESS = {evidence: weakness for weakness, evidence in enumerate(Evidence)}
_CPU_SIDE = frozenset({VertexKind.HOST_BRIDGE, VertexKind.NUMA, VertexKind.MACHINE})


def describe(graph: Graph, src: str, dst: str, hops: Sequence[Hop]) -> Path:
    """Return the path that some hops of one node's graph make."""
    kind = path_type(graph, src, dst, hops)
    relays = sum(graph[hop.src].kind is VertexKind.GPU for hop in hops[1:])
    return Path(
        src=src,
        dst=dst,
        type=kind,
        transport=_transport(kind, hops),
        bandwidth_bytes_per_second=bottleneck(hops),
        latency_seconds=sum(hop.latency_seconds or 0.0 for hop in hops) + relays * nominal.GPU_RELAY_LATENCY,
        hops=tuple(hops),
        evidence=weakest(hops),
        gdr=_gdr(graph[src], graph[dst]),
        virtual=graph[src].virtual or graph[dst].virtual,
    )


def bottleneck(hops: Sequence[Hop]) -> float | None:
    """Return the least bandwidth of those that are known, ``None`` when none is."""
    known = [hop.bandwidth_bytes_per_second for hop in hops if hop.bandwidth_bytes_per_second is not None]
    return min(known, default=None)


def weakest(hops: Sequence[Hop]) -> Evidence:
    """Return the weakest evidence of the hops that have a figure; without any, all is assumed."""
    known = [hop.evidence for hop in hops if hop.bandwidth_bytes_per_second is not None]
    return max(known, key=_WEAKNESS.__getitem__, default=Evidence.ASSUMED)


def path_type(graph: Graph, src: str, dst: str, hops: Sequence[Hop]) -> PathType:
    """Return what NCCL would call such a path, by what it consists of and crosses.

    A relay through a GPU is NVB over NVLink alone, else PXN. A way through a processor's host bridge is PHB, over
    the interconnect between NUMA nodes SYS, from C2C through the processor to a card P2C.
    """
    links = {hop.link for hop in hops}
    if links <= {LinkKind.LOCAL}:
        return PathType.LOC
    if links == {LinkKind.NVLINK}:
        relayed = any(graph[hop.src].kind is VertexKind.GPU for hop in hops[1:])
        return PathType.NVB if relayed else PathType.NVL
    if any(graph[hop.src].kind is VertexKind.GPU for hop in hops[1:]):
        return PathType.PXN
    if LinkKind.INTERCONNECT in links:
        return PathType.SYS
    if LinkKind.C2C in links:
        return PathType.C2C if links == {LinkKind.C2C} else PathType.P2C
    touched = [graph[src], *(graph[hop.dst] for hop in hops)]
    if any(vertex.kind in _CPU_SIDE for vertex in touched):
        return PathType.PHB
    switches = sum(vertex.kind is VertexKind.PCI_SWITCH for vertex in touched)
    return PathType.PIX if switches <= 1 else PathType.PXB


def _gdr(a: Vertex, b: Vertex) -> bool | None:
    """Whether a GPU and a port exchange data without a copy in host memory; ``None`` for other pairs, or unknown."""
    kinds = {a.kind, b.kind}
    if VertexKind.GPU not in kinds or len(kinds) == 1:
        return None
    if False in (a.gdr, b.gdr):
        return False
    return True if a.gdr and b.gdr else None


def _transport(kind: PathType, hops: Sequence[Hop]) -> Transport:
    if kind is PathType.LOC:
        return Transport.SELF
    if kind in (PathType.NVL, PathType.NVB):
        return Transport.NVLINK
    if kind is PathType.C2C:
        return Transport.C2C
    in_memory = {LinkKind.MEMORY, LinkKind.INTERCONNECT}
    return Transport.SHM if {hop.link for hop in hops} <= in_memory else Transport.PCIE
