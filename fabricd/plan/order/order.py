"""The order of ranks over nodes: fewest crossings of what joins them, then the fastest edges.

Engines join the ranks of a node first and then node to node in the order of the ranks (NCCL 2.30, graph/connect.cc), so
what is ordered is a closed ring of nodes.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fabricd.plan.order.bandwidth import PairBandwidth, ring_bound
from fabricd.plan.order.cost import EdgeCost
from fabricd.plan.order.exact import MAX_SITES, cheapest_ring
from fabricd.plan.order.places import Crossing, RankPlace, Site, crossing_report, grouped, sites_of
from fabricd.plan.order.search import improve
from fabricd.plan.order.slots import Slots, rank_list, slots_of
from fabricd.units import format_bandwidth, format_names

#: Moves tried for each threshold: so many for each node, up to a bound that keeps 2,048 nodes within seconds.
_STEPS_PER_NODE, _MIN_STEPS, _MAX_STEPS = 200, 5_000, 60_000
#: Thresholds to choose from; further ones lie between them.
_MAX_THRESHOLDS = 256
_SHOWN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestEdge:
    """The edge that holds a ring back."""

    src: str
    dst: str
    bandwidth_bytes_per_second: float
    measured: bool  #: False: this pair was not, and is taken for as fast as the median


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOrder:
    """A new order of ranks, and what it changes."""

    order: tuple[int, ...]  #: by new rank, the rank as it was
    nodes: tuple[str, ...]  #: in order of the ring
    crossings: tuple[Crossing, ...]
    slowest_before: SlowestEdge | None = None  #: None without figures, or on one node
    slowest_after: SlowestEdge | None = None
    #: What the slowest edge of no order can exceed; None without figures.
    bound_bytes_per_second: float | None = None
    seconds_before: float | None = None  #: of one all_reduce of ``bytes`` over a ring, by its slowest edge alone
    seconds_after: float | None = None
    bytes: int = 0
    optimal: bool = False  #: proven: no order has fewer crossings, nor with so few a faster slowest edge
    method: str = ""  #: "grouped", "exact" or "search"
    because: tuple[str, ...] = ()

    @property
    def moved(self) -> int:
        """How many ranks change their number."""
        return sum(new != old for new, old in enumerate(self.order))


def rank_order(
    places: Sequence[RankPlace],
    *,
    bandwidth: PairBandwidth | None = None,
    fixed: Collection[int] = (),
    size: int = 1 << 30,
) -> RankOrder:
    """Return the best order found for one communicator of all ranks.

    Args:
        places: where the ranks 0 to n - 1 are.
        bandwidth: between nodes; without it crossings alone decide.
        fixed: ranks that keep their number.
        size: bytes of the all_reduce whose time is told.

    Raises:
        InputError: places that cannot be, or fixed ranks that cannot stay.
    """
    sites = sites_of(places)
    slots = slots_of(sites, fixed)
    cost = EdgeCost(sites, bandwidth)
    place, site = next(iter(slots.pinned.items()), (0, 0))
    turnable = not slots.pinned or (len(slots.pinned) == 1 and len({len(site.ranks) for site in sites}) == 1)
    found, method = _search(sites, Slots(pinned={}) if turnable else slots, cost, bandwidth)
    # Of equal ones that which moves nothing.
    best = min((*slots.as_it_was(len(sites)), found), key=cost.tour)
    if turnable:  # a ring has no beginning
        best = _turned(best, place, site)
    return _result(sites, best, cost, bandwidth, fixed, size, method)


def _search(
    sites: Sequence[Site], slots: Slots, cost: EdgeCost, bandwidth: PairBandwidth | None
) -> tuple[list[int], str]:
    start = slots.fill(sites, grouped(sites))
    count = len(sites)
    if bandwidth is None and all(one.after == one.least for one in crossing_report(sites, start, start)):
        return start, "grouped"
    if count <= MAX_SITES:
        first = min(slots.pinned, default=0)  # one place to begin at: a ring has no other beginning
        allowed = slots.allowed(sites)
        turned = allowed[first:] + allowed[:first]

        def exact(tour: list[int]) -> list[int]:
            ring = cheapest_ring(count, cost.edge, turned)
            return tour if ring is None else ring[1][count - first :] + ring[1][: count - first]

        return _with_threshold(sites, cost, bandwidth, start, exact), "exact"
    steps = min(max(_STEPS_PER_NODE * count, _MIN_STEPS), _MAX_STEPS)
    free = slots.free(sites)
    if bandwidth is not None and free is None:
        start = _nearest(start, cost)

    def search(tour: list[int]) -> list[int]:
        return improve(tour, cost, steps=steps, free=free, polish=not cost.threshold)

    found = _with_threshold(sites, cost, bandwidth, start, search)
    return improve(found, cost, steps=steps, free=free), "search"


def _with_threshold(
    sites: Sequence[Site],
    cost: EdgeCost,
    bandwidth: PairBandwidth | None,
    start: list[int],
    solve: Callable[[list[int]], list[int]],
) -> list[int]:
    """Return a ring of few crossings whose slowest edge is as fast as can be, and then of little time in all.

    A bottleneck travelling salesman: for a threshold, is there a ring without slower edges? Bisected over those
    thresholds that the measurements offer.
    """
    best = solve(start)
    slowest = cost.slowest(best)
    if bandwidth is None or slowest is None:
        return best
    crossed = cost.crossing_part(cost.tour(best))
    bound, _ = ring_bound([site.node for site in sites], bandwidth)
    offered = [value for value in bandwidth.values() if slowest[0] < value <= bound]
    offered = offered[:: len(offered) // _MAX_THRESHOLDS + 1]
    low, high = 0, len(offered)
    while low < high:
        middle = (low + high) // 2
        cost.threshold = offered[middle]
        tour = solve(best)
        total = cost.tour(tour)
        if cost.slow_edges(total) or cost.crossing_part(total) > crossed:
            high = middle
            continue
        best = tour
        low = bisect_right(offered, cost.bottleneck(best))
    cost.threshold = cost.bottleneck(best)
    return solve(best)


def _nearest(start: Sequence[int], cost: EdgeCost) -> list[int]:
    """Return the sites with the groups in the given order, and each group as a chain of nearest neighbours."""
    chain: list[int] = []
    for run in cost.runs(start):
        left = dict.fromkeys(run)
        while left:
            last = chain[-1] if chain else run[0]
            following = min(left, key=lambda site: (cost.edge(last, site) if site != last else 0, site))
            del left[following]
            chain.append(following)
    return chain


def _turned(tour: list[int], place: int, site: int) -> list[int]:
    """Return a ring turned so that a site stands at a place, in the direction that leads on to the lower number."""
    at = tour.index(site)
    ring = tour[at:] + tour[:at]
    if len(ring) > 2 and ring[-1] < ring[1]:
        ring = [ring[0], *ring[:0:-1]]
    return ring[-place:] + ring[:-place] if place else ring


def _result(
    sites: Sequence[Site],
    tour: list[int],
    cost: EdgeCost,
    bandwidth: PairBandwidth | None,
    fixed: Collection[int],
    size: int,
    method: str,
) -> RankOrder:
    before = list(range(len(sites)))
    crossed = crossing_report(sites, before, tour)
    order = rank_list(sites, tour, fixed)
    old, new = (_slowest_edge(sites, cost, bandwidth, one) for one in (before, tour))
    bound, holds = (None, "")
    if bandwidth is not None and len(sites) > 1:
        bound, holds = ring_bound([site.node for site in sites], bandwidth)
    least = all(one.after == one.least for one in crossed)
    reached = bound is None or (new is not None and new.bandwidth_bytes_per_second >= bound)
    return RankOrder(
        order=tuple(order),
        nodes=tuple(sites[number].node for number in tour),
        crossings=crossed,
        slowest_before=old,
        slowest_after=new,
        bound_bytes_per_second=bound,
        seconds_before=_seconds(old, len(order), size),
        seconds_after=_seconds(new, len(order), size),
        bytes=size,
        optimal=method == "exact" or (not fixed and least and reached),
        method=method,
        because=tuple(_because(crossed, new, bound, holds, bandwidth, sites)),
    )


def _slowest_edge(
    sites: Sequence[Site], cost: EdgeCost, bandwidth: PairBandwidth | None, tour: Sequence[int]
) -> SlowestEdge | None:
    found = cost.slowest(tour)
    if found is None or bandwidth is None:
        return None
    speed, *ends = found
    a, b = (sites[end].node for end in ends)
    known = bandwidth.measured(a, b) is not None
    return SlowestEdge(src=a, dst=b, bandwidth_bytes_per_second=speed, measured=known)


def _seconds(edge: SlowestEdge | None, ranks: int, size: int) -> float | None:
    """Return the time of an all_reduce over a ring: 2 (n - 1) / n of the bytes pass each edge."""
    return None if edge is None else 2 * (ranks - 1) / ranks * size / edge.bandwidth_bytes_per_second


def _because(
    crossed: Sequence[Crossing],
    slowest: SlowestEdge | None,
    bound: float | None,
    holds: str,
    bandwidth: PairBandwidth | None,
    sites: Sequence[Site],
) -> Iterator[str]:
    for one in crossed:
        least = "the least there can be" if one.after == one.least else f"at least {one.least}"
        yield f"{one.level}: {one.groups} groups, crossed {one.before} times before and {one.after} now ({least})"
    if not crossed:
        yield "nothing is known that tells the nodes' places apart"
    if slowest is not None and bound is not None:
        speed = format_bandwidth(slowest.bandwidth_bytes_per_second)
        limit = f"no order can exceed {format_bandwidth(bound)}, for {holds} has no two faster partners"
        yield f"slowest edge {slowest.src} - {slowest.dst} at {speed}; {limit}"
    if bandwidth is not None:
        unknown = bandwidth.unknown([site.node for site in sites])
        if unknown:
            yield f"no measurement names {format_names(unknown, _SHOWN)}; taken for as fast as the median"
