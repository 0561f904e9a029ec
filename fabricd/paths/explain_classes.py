"""Why a better class of transport is no candidate at all within a node: the facts that rule it out."""

from collections.abc import Iterator, Sequence

from fabricd.graph.graph import LinkKind, VertexKind
from fabricd.model.path import Path, Rejected, Transport
from fabricd.paths.ends import End

_WITHIN = (Transport.NVLINK, Transport.C2C)
_LINK_OF = {Transport.NVLINK: LinkKind.NVLINK, Transport.C2C: LinkKind.C2C}
_TITLE = {Transport.NVLINK: "NVLink", Transport.C2C: "C2C"}


def better_classes_within(start: End, goal: End, paths: Sequence[Path]) -> Iterator[Rejected]:
    """Yield why NVLink and C2C are no candidates between two ends of one node."""
    for transport in left_out(_WITHIN, [path.transport for path in paths]):
        for end in (start, goal):
            title = _TITLE[transport]
            if end.vertex.kind not in (VertexKind.GPU, VertexKind.NUMA, VertexKind.NVSWITCH):
                yield Rejected(name=transport, reason=f"{end.name} ({end.vertex.kind}) has no {title}")
                break
            if not any(hop.link == _LINK_OF[transport] for hop in end.ways.graph.edges_from(end.vertex.name)):
                yield Rejected(name=transport, reason=f"{end.name} has no {title} that is known to be active")
                break
        else:
            yield Rejected(name=transport, reason=f"no chain of {_TITLE[transport]} links joins the two")


def left_out(classes: Sequence[Transport], used: Sequence[Transport]) -> list[Transport]:
    """Return the classes that no candidate uses and that are better than the best one's, the first of ``used``."""
    if not used:
        return list(classes)
    order = list(Transport)
    best = order.index(used[0])
    return [transport for transport in classes if order.index(transport) < best and transport not in used]
