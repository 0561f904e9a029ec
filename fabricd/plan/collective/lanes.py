"""From rings on each kind of machine to rings over all ranks.

A lane is one ring's part on the machines of a kind. Lanes of all kinds carry equally much in all, since every ring
crosses every machine; where their widths differ they are cut at each other's ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fabricd.model.collective import Channel
from fabricd.plan.collective.columns import Column, Segment
from fabricd.plan.collective.fabric import Fabric
from fabricd.plan.nccl.emulate import Member

_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Lane:
    """A ring's part on machines 0, 2, ... and on machines 1, 3, ..., and what it carries, GB/s."""

    even: Segment
    odd: Segment
    width: float


def lanes_of(columns: Sequence[Column], widths: Sequence[float]) -> list[Lane]:
    """Return the lanes of columns; ``widths`` is what each of a column's rings carries."""
    return [
        Lane(column.segments[first], column.segments[(first + 1) % column.value], width)
        for column, width in zip(columns, widths, strict=True)
        for first in range(column.value)
    ]


def cut_to(lanes: Sequence[Lane], total: float) -> list[Lane]:
    """Return lanes that carry less in all, each by the same share."""
    share = total / sum(lane.width for lane in lanes)
    return [Lane(lane.even, lane.odd, lane.width * share) for lane in lanes]


def rail_of(fabric: Fabric, port: int) -> str:
    """Return what the rail of a port is called, the same on all machines; "" for none."""
    if port < 0:
        return ""
    net = fabric.nets[port]
    return str(net.rail) if net.rail is not None else f"{net.label}:{net.port}"


def off_rails(members: Sequence[Member], fabrics: Sequence[Fabric], lanes: Sequence[Sequence[Lane]]) -> float:
    """Return the share of a plan that goes from one rail to another between two machines."""
    total = off = 0.0
    for number, first in enumerate(lanes[members[0].part]):
        ends = []
        for place, member in enumerate(members):
            lane = lanes[member.part][number]
            segment = lane.odd if place % 2 else lane.even
            ends.append([rail_of(fabrics[member.part], port) for port in (segment.entry, segment.leave)])
        total += first.width
        if any(here[1] != there[0] for here, there in zip(ends, [*ends[1:], ends[0]], strict=True)):
            off += first.width
    return off / total if total else 0.0


def overlaid(kinds: Sequence[Sequence[Lane]], rails: Sequence[Sequence[str]]) -> list[list[Lane]]:
    """Return the lanes of several kinds, which carry equally much in all, cut so that they pair up one to one.

    Args:
        kinds: lanes of each kind of machine.
        rails: of each of these lanes; those of one rail are paired as far as they go.
    """
    total = max(sum(lane.width for lane in lanes) for lanes in kinds)
    made: list[list[Lane]] = [[] for _ in kinds]
    left: list[list[Lane]] = [[] for _ in kinds]
    for rail in dict.fromkeys(rail for names in rails for rail in names):
        same = [
            [lane for lane, name in zip(*one, strict=True) if name == rail] for one in zip(kinds, rails, strict=True)
        ]
        for number, rest in enumerate(_pair_up(same, made, total)):
            left[number] += rest
    _pair_up(left, made, total)
    return made


def _pair_up(kinds: Sequence[Sequence[Lane]], made: Sequence[list[Lane]], total: float) -> list[list[Lane]]:
    """Cut lanes so that they pair up, in order; return what is left of kinds that carry more."""
    left = [list(reversed(lanes)) for lanes in kinds]
    while all(left):
        width = min(lanes[-1].width for lanes in left)
        for number, lanes in enumerate(left):
            lane = lanes.pop()
            if width > _TINY * total:
                made[number].append(replace(lane, width=width))
            if lane.width - width > _TINY * total:
                lanes.append(replace(lane, width=lane.width - width))
    return [lanes[::-1] for lanes in left]


def channels_over(
    members: Sequence[Member], fabrics: Sequence[Fabric], lanes: Sequence[Sequence[Lane]]
) -> tuple[Channel, ...]:
    """Return rings over all ranks.

    Args:
        members: all machines in order.
        fabrics: of each part that a member can be.
        lanes: of each part, equally many, paired up one to one.
    """
    channels = []
    for number, first in enumerate(lanes[members[0].part]):
        ring: list[int] = []
        nics: list[tuple[int, int]] = []
        for place, member in enumerate(members):
            lane = lanes[member.part][number]
            segment = lane.odd if place % 2 else lane.even
            ring += [member.ranks[local] for local in segment.order]
            if segment.entry >= 0:
                nets = fabrics[member.part].nets
                nics.append((nets[segment.entry].dev, nets[segment.leave].dev))
        channels.append(
            Channel(ring=tuple(ring), nics=tuple(nics) if nics else None, bandwidth_bytes_per_second=first.width * 1e9)
        )
    return tuple(channels)
