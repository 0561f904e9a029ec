"""What paths between nodes are ordered and chosen by, without the paths: of dozens that there are, a few are shown."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fabricd.graph.graph import LinkKind, VertexKind
from fabricd.graph.networks_nvlink import without_channel
from fabricd.model.observation import Evidence
from fabricd.model.path import PathType, Transport
from fabricd.paths.crossing import NETWORK, Crossing, latency_of
from fabricd.paths.describe import weakest_of
from fabricd.paths.rank import Figures, distance


class Sketch(NamedTuple):
    """A path between nodes that may be shown."""

    crossing: Crossing
    figures: Figures
    gdr: bool | None  #: GPUDirect at each end that is a GPU; ``None``: there is none, or it is not known
    transport: Transport  #: what carries the bytes
    is_straight: bool  #: it leads by the ports nearest to both ends, without a relay
    is_relayed: bool  #: another GPU passes its data on


def sketch(crossing: Crossing) -> Sketch:
    """Return what the path over a crossing is ordered and chosen by."""
    network, near, far = crossing.network, crossing.near, crossing.far
    way, back = near.way, far.way
    bandwidth, evidence = carried(crossing)
    transport = network.transport
    nvlink = transport is Transport.NVLINK and all(hop.link == LinkKind.NVLINK for hop in (*way.hops, *back.hops))
    figures = Figures(
        PathType.NVL if nvlink else PathType.NET,
        transport,
        network.name,
        network.role,
        _is_unverified(crossing),
        bandwidth,
        way.latency_seconds + (latency_of(crossing) or 0.0) + back.latency_seconds,
        near.port.virtual or far.port.virtual or near.end.vertex.virtual or far.end.vertex.virtual,
        evidence,
        crossing.measured is not None,
        (way.gdr is False) + (back.gdr is False),
        crossing.over_spine + crossing.cross_rail + crossing.mtu_differs + len(near.cautions) + len(far.cautions),
        len(way.hops) + 2 + len(back.hops),
        distance(near.type) + distance(far.type),
        (near.end.name, far.end.name, *way.names, NETWORK + network.name, far.name, *back.names),
    )
    gdr = {side.way.gdr for side in (near, far) if side.end.vertex.kind is VertexKind.GPU}
    direct = None if nvlink else False if False in gdr else True if gdr == {True} else None
    relayed = bool(way.relay or back.relay)
    straight = near.nearest and far.nearest and not relayed
    return Sketch(crossing, figures, direct, transport, straight, relayed)


def carried(crossing: Crossing) -> tuple[float | None, Evidence]:
    """Return the narrowest of all hops of the path over a crossing, and the weakest evidence of them.

    Where nobody knows what the network carries, what lies before and behind it says nothing.
    """
    near, far, measured = crossing.near, crossing.far, crossing.measured
    carries, said = (near.carries, far.carries), {near.evidence, far.evidence}
    if measured is not None and measured.bandwidth_bytes_per_second is not None:
        carries, said = (measured.bandwidth_bytes_per_second,) * 2, {Evidence.MEASURED}
    if carries[0] is None or carries[1] is None:
        return None, Evidence.ASSUMED
    said.update(way.evidence for way in (near.way, far.way) if way.evidence is not None)
    return min(carries[0], carries[1], near.way.width, far.way.width), weakest_of(said)


def _is_unverified(crossing: Crossing) -> bool:
    if crossing.measured is None and crossing.network.unverified:
        return True
    sides = (crossing.near, crossing.far) if crossing.network.transport is Transport.NVLINK else ()
    return any(without_channel(side.end.snapshot) for side in sides)


def best_of_each(found: Sequence[Sketch], count: int) -> list[Sketch]:
    """Return up to ``count`` of some paths between nodes that are in order, in that order.

    The best of each transport has precedence, then its best by the ports nearest to the ends and its best by relay,
    then the best of each network, and those with and without GPUDirect: so it can be seen what each is worth.
    """
    chosen: list[int] = []
    kinds: Sequence[Callable[[Sketch], object]] = (
        lambda one: one.transport,
        lambda one: one.transport if one.is_straight else None,
        lambda one: one.transport if one.is_relayed else None,
        lambda one: one.crossing.network.name,
        lambda one: (one.transport, one.gdr),
    )
    for kind in kinds:
        if len(chosen) >= count:
            break
        what = [kind(one) for one in found]
        seen = {None, *(what[place] for place in chosen)}
        for place, one in enumerate(what):
            if one not in seen:
                seen.add(one)
                chosen.append(place)
    return [found[place] for place in sorted(chosen[:count])]
