"""One order for all groups of a mesh: nodes are dealt out axis by axis, then exchanged while that helps."""

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from fabricd.errors import InputError
from fabricd.plan.order.bandwidth import PairBandwidth
from fabricd.plan.order.mesh import Mesh
from fabricd.plan.order.mesh_cost import MeshCost
from fabricd.plan.order.places import RankPlace, Site, grouped, sites_of
from fabricd.plan.order.slots import rank_list, slots_of

_SEED = 1
#: Orders of the axes tried to deal out the nodes: all of up to five axes that span nodes.
_MAX_DEALS = 120
#: Edges looked at while exchanging, in all: a few seconds at most.
_EDGE_BUDGET, _MAX_STEPS, _TIMES_EACH_PAIR = 1_500_000, 20_000, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisReport:
    """What an order does for one axis. Seconds are those of one operation, assumed where nothing was measured."""

    name: str
    size: int
    groups: int
    inside_nvlink_before: int  #: groups that do not leave it
    inside_nvlink: int
    mean_seconds_before: float
    mean_seconds: float
    slowest_seconds_before: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshOrder:
    """A new order of ranks for a mesh."""

    order: tuple[int, ...]  #: by new rank, the rank as it was
    nodes: tuple[str, ...]  #: of the new ranks, each node where it begins
    axes: tuple[AxisReport, ...]
    weighted_seconds_before: float  #: mean time of an operation by weight, summed over the axes
    weighted_seconds: float
    because: tuple[str, ...] = ()


def mesh_order(
    places: Sequence[RankPlace],
    mesh: Mesh,
    *,
    bandwidth: PairBandwidth | None = None,
    fixed: Collection[int] = (),
    whole_nodes: bool = True,
) -> MeshOrder:
    """Return the best order found.

    Args:
        places: where the ranks 0 to n - 1 are.
        mesh: their groups.
        bandwidth: measured between nodes.
        fixed: ranks that keep their number.
        whole_nodes: the ranks of a node stay together, in their order.

    Raises:
        InputError: places or a mesh that cannot be, or nodes with different numbers of ranks.
    """
    ordered = sorted(places, key=lambda place: place.rank)
    nodes = sites_of(ordered)
    size = len(nodes[0].ranks)
    if any(len(site.ranks) != size for site in nodes):
        raise InputError("a mesh needs as many ranks on each node", hint="leave out the nodes that have fewer")
    units, unit_size = (nodes, size) if whole_nodes else (_single(nodes), 1)
    cost = MeshCost(mesh, [ordered[unit.ranks[0]] for unit in units], unit_size, bandwidth)
    before = list(range(len(units)))
    slots = slots_of(units, fixed)
    dealt = _deals(mesh, units, unit_size, slots.pinned)
    best = min((*slots.as_it_was(len(units)), *dealt), key=cost.total)
    best = min((best, _exchanged(best, cost, slots.pinned)), key=cost.total)
    order = rank_list(units, best, fixed)
    was = cost
    if any(unit.ranks != tuple(range(unit.ranks[0], unit.ranks[0] + unit_size)) for unit in units):
        # Ranks dealt out over the nodes: as they were, no groups of them are in one unit.
        was, before = MeshCost(mesh, ordered, 1, bandwidth), list(range(len(ordered)))
    reports = tuple(_reports(mesh, _figures(was, before), _figures(cost, best)))
    return MeshOrder(
        order=tuple(order),
        nodes=tuple(dict.fromkeys(ordered[rank].node for rank in order)),
        axes=reports,
        weighted_seconds_before=_weighted(mesh, [one.mean_seconds_before for one in reports]),
        weighted_seconds=_weighted(mesh, [one.mean_seconds for one in reports]),
        because=tuple(_because(mesh, reports, ordered)),
    )


def _single(nodes: Sequence[Site]) -> list[Site]:
    """Return each rank as a unit of its own, by rank."""
    units = [Site(node=site.node, ranks=(rank,), levels=site.levels) for site in nodes for rank in site.ranks]
    return sorted(units, key=lambda unit: unit.ranks)


def _deals(mesh: Mesh, units: Sequence[Site], size: int, pinned: dict[int, int]) -> list[list[int]]:
    """Return orders in which neighbours in the cluster are neighbours along one axis first, then along the next."""
    count = len(units)
    spread = []
    for axis, stride in zip(mesh.axes, mesh.strides(count * size), strict=True):
        places = [position * size // stride % axis.size for position in range(count)]
        if len(set(places)) > 1:
            spread.append(places)
    first: dict[str, int] = {}
    for place, number in enumerate(grouped(units)):
        first.setdefault(units[number].node, place)
    near = sorted(range(count), key=lambda number: (first[units[number].node], number))
    deals = []
    for _, axes in zip(range(_MAX_DEALS), permutations(spread), strict=False):
        sequence = sorted(range(count), key=lambda position: ([*(places[position] for places in axes), position]))
        taken = set(pinned.values())
        left = iter([number for number in near if number not in taken])
        order = [pinned.get(position, -1) for position in range(count)]
        for position in sequence:
            if position not in pinned:
                order[position] = next(left)
        deals.append(order)
    return deals


def _exchanged(start: Sequence[int], cost: MeshCost, pinned: dict[int, int]) -> list[int]:
    """Return an order in which exchanging two units, tried in a seeded order, no longer helped."""
    order = list(start)
    choice = [position for position in range(len(order)) if position not in pinned and cost.of_unit[position]]
    edges = sum(len(cost.groups[group].units) for position in choice for group in cost.of_unit[position])
    if len(choice) < 2 or not edges:
        return order
    rng = random.Random(_SEED)  # noqa: S311 - no secret: the same moves everywhere
    for _ in range(min(_MAX_STEPS, _TIMES_EACH_PAIR * len(choice) ** 2, _EDGE_BUDGET * len(choice) // (4 * edges) + 1)):
        one, other = rng.sample(choice, 2)
        touched = [cost.groups[group] for group in {*cost.of_unit[one], *cost.of_unit[other]}]
        old = sum(cost.cost(group, order) for group in touched)
        order[one], order[other] = order[other], order[one]
        if sum(cost.cost(group, order) for group in touched) > old:
            order[one], order[other] = order[other], order[one]
    return order


@dataclass(slots=True)
class _Figures:
    """Of one axis in one order."""

    groups: int = 0
    inside: int = 0
    seconds: float = 0.0  #: summed over the groups
    slowest: float = 0.0


def _figures(cost: MeshCost, order: Sequence[int]) -> list[_Figures]:
    """Return the figures of each axis."""
    found = [_Figures() for _ in cost.mesh.axes]
    for group in cost.groups:
        own, seconds = found[group.axis], cost.seconds(group, order)
        own.groups += group.count
        own.inside += group.count if cost.inside_nvlink(group, order) else 0
        own.seconds += seconds * group.count
        own.slowest = max(own.slowest, seconds)
    return found


def _reports(mesh: Mesh, before: Sequence[_Figures], after: Sequence[_Figures]) -> Iterator[AxisReport]:
    for axis, old, new in zip(mesh.axes, before, after, strict=True):
        groups = new.groups or 1  # an axis of size 1 has none
        yield AxisReport(
            name=axis.name,
            size=axis.size,
            groups=new.groups,
            inside_nvlink_before=old.inside,
            inside_nvlink=new.inside,
            mean_seconds_before=old.seconds / groups,
            mean_seconds=new.seconds / groups,
            slowest_seconds_before=old.slowest,
            slowest_seconds=new.slowest,
        )


def _weighted(mesh: Mesh, seconds: Sequence[float]) -> float:
    return sum(axis.weight * time for axis, time in zip(mesh.axes, seconds, strict=True))


def _because(mesh: Mesh, reports: Sequence[AxisReport], places: Sequence[RankPlace]) -> list[str]:
    lines = []
    for axis, report in zip(mesh.axes, reports, strict=True):
        if axis.keep_inside and report.inside_nvlink < report.groups:
            out = report.groups - report.inside_nvlink
            most = _largest_nvlink(places)
            why = f"the largest NVLink domain has {most} ranks" if most < axis.size else "domains are cut by its size"
            lines.append(f"{axis.name}: {out} of {report.groups} groups leave NVLink: {why}")
    return lines


def _largest_nvlink(places: Sequence[RankPlace]) -> int:
    counts: dict[str, int] = {}
    for place in places:
        key = f"domain {place.domain}" if place.domain else f"node {place.node}"
        counts[key] = counts.get(key, 0) + 1
    return max(counts.values())
