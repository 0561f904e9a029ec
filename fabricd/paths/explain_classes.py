"""Why a better class of transport is no candidate at all: the facts that rule it out."""

from collections.abc import Iterator, Mapping, Sequence

from fabricd.graph.graph import LinkKind, VertexKind
from fabricd.graph.networks import NetworkMap
from fabricd.model.path import Path, Rejected, Transport
from fabricd.model.snapshot import Snapshot
from fabricd.paths.ends import End

_WITHIN = (Transport.NVLINK, Transport.C2C)
_BETWEEN = (
    Transport.NVLINK, Transport.INFINIBAND, Transport.ROCE, Transport.EFA, Transport.SLINGSHOT, Transport.ETHERNET,
)  # fmt: skip
_LINK_OF = {Transport.NVLINK: LinkKind.NVLINK, Transport.C2C: LinkKind.C2C}
_TITLE = {
    Transport.NVLINK: "NVLink",
    Transport.C2C: "C2C",
    Transport.INFINIBAND: "InfiniBand",
    Transport.ROCE: "RoCE",
    Transport.EFA: "EFA",
    Transport.SLINGSHOT: "Slingshot",
    Transport.ETHERNET: "Ethernet",
}


def better_classes_within(start: End, goal: End, paths: Sequence[Path]) -> Iterator[Rejected]:
    """Yield why NVLink and C2C are no candidates between two ends of one node."""
    for transport in _left_out(_WITHIN, paths):
        for end in (start, goal):
            title = _TITLE[transport]
            if end.vertex.kind not in (VertexKind.GPU, VertexKind.NUMA, VertexKind.NVSWITCH):
                yield Rejected(name=transport, reason=f"{end.vertex.name} ({end.vertex.kind}) has no {title}")
                break
            if not any(hop.link == _LINK_OF[transport] for hop in end.graph.edges_from(end.vertex.name)):
                yield Rejected(name=transport, reason=f"{end.vertex.name} has no {title} that is known to be active")
                break
        else:
            yield Rejected(name=transport, reason=f"no chain of {_TITLE[transport]} links joins the two")


def better_classes_between(
    nodes: Mapping[str, Snapshot], found: NetworkMap, start: End, goal: End, paths: Sequence[Path]
) -> Iterator[Rejected]:
    """Yield why each class of network better than the best candidate does not join two nodes."""
    for transport in _left_out(_BETWEEN, paths):
        on = {
            end.node: [net.name for net, _ in found.of(end.node_id) if net.transport is transport]
            for end in (start, goal)
        }
        without = [end for end in (start, goal) if not on[end.node]]
        title = _TITLE[transport]
        if without:
            end = without[0]
            reason = f"{end.node} has no {title} port that is up{_ports_there(nodes[end.node_id], transport)}"
        elif set(on[start.node]) & set(on[goal.node]):
            reason = f"the ends asked for are not ports of the {title} network that both nodes are on"
        else:
            sides = "; ".join(f"{node}: {', '.join(dict.fromkeys(names))}" for node, names in on.items())
            reason = f"the nodes are on different {title} networks ({sides})"
        yield Rejected(name=transport, reason=reason)


def _left_out(classes: Sequence[Transport], paths: Sequence[Path]) -> list[Transport]:
    """Return the classes better than the best path's that no candidate uses."""
    if not paths:
        return list(classes)
    order = list(Transport)
    best, used = order.index(paths[0].transport), {path.transport for path in paths}
    return [transport for transport in classes if order.index(transport) < best and transport not in used]


def _ports_there(snapshot: Snapshot, transport: Transport) -> str:
    """Name the ports of a class that are there, with their state."""
    kinds = {transport.value, "soft-roce" if transport is Transport.ROCE else transport.value}
    ports = [
        f"{hca.name}:{port.port} is {port.state or 'in unknown state'}"
        for hca in snapshot.hcas
        if hca.kind in kinds
        for port in hca.ports
    ]
    return f" ({', '.join(ports[:4])})" if ports else ""
