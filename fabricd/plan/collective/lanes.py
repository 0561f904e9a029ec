"""From rings on each kind of machine to rings over all ranks.

A lane is one ring's part on the machines of a kind. Lanes of all kinds carry equally much in all, since every ring
crosses every machine; where their widths differ they are cut at each other's ends.
"""

from collections.abc import Sequence
from dataclasses import dataclass

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


def overlaid(kinds: Sequence[Sequence[Lane]]) -> list[list[Lane]]:
    """Return the lanes of several kinds, which carry equally much in all, cut so that they pair up one to one."""
    left = [[lane.width for lane in lanes] for lanes in kinds]
    at = [0] * len(kinds)
    total = max(sum(widths) for widths in left)
    made: list[list[Lane]] = [[] for _ in kinds]
    while all(place < len(widths) for place, widths in zip(at, left, strict=True)):
        width = min(widths[place] for place, widths in zip(at, left, strict=True))
        for number, lanes in enumerate(kinds):
            lane = lanes[at[number]]
            if width > _TINY * total:
                made[number].append(Lane(lane.even, lane.odd, width))
            left[number][at[number]] -= width
            if left[number][at[number]] <= _TINY * total:
                at[number] += 1
    return made


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
