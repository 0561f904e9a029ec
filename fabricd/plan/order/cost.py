"""What an edge of a ring over nodes costs, in whole numbers, so that every machine finds the same order.

Lexicographic: crossings of levels, outermost first; then whether the edge is slower than a threshold; then its time.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from fabricd.plan.order.bandwidth import PairBandwidth
from fabricd.plan.order.places import Site, weights

#: Time of an edge is counted in parts of that of a usual one, up to so many times slower.
_PARTS = 1000
_SLOWEST = 1000


class EdgeCost:
    """Cost of the edges between some nodes.

    Attributes:
        threshold: bandwidth that every edge should have, bytes/s; 0 for none.
        timed: whether the time of edges counts; without it, edges on one side of the threshold are equal.
    """

    def __init__(self, sites: Sequence[Site], bandwidth: PairBandwidth | None) -> None:
        self._bandwidth = bandwidth
        self._names = [site.node for site in sites]
        self._levels = [site.levels for site in sites]
        self._weights = list(weights(sites).items())
        #: Equal numbers: nothing is crossed between the two.
        groups: dict[tuple[int, ...], int] = {}
        self._group = [
            groups.setdefault(tuple(levels[level] for level, _ in self._weights), len(groups))
            for levels in self._levels
        ]
        self._slow = len(sites) * _PARTS * _SLOWEST + 1
        self._cross = self._slow * (len(sites) + 1)
        self.threshold = 0.0
        self.timed = True

    def edge(self, a: int, b: int) -> int:
        """Return the cost of an edge between two sites, by number; the same in both directions."""
        cost = 0 if self._group[a] == self._group[b] else self._cross * self._crossed(a, b)
        if self._bandwidth is not None:
            speed = self._bandwidth.between(self._names[a], self._names[b])
            if self.timed:
                cost += min(int(_PARTS * self._bandwidth.usual / speed), _PARTS * _SLOWEST)
            cost += self._slow if speed < self.threshold else 0
        return cost

    def tour(self, tour: Sequence[int]) -> int:
        """Return the cost of a closed ring."""
        return sum(self.edge(tour[place - 1], tour[place]) for place in range(len(tour))) if len(tour) > 1 else 0

    def crossing_part(self, cost: int) -> int:
        """Return the part of a cost that is crossings."""
        return cost // self._cross

    def slow_edges(self, cost: int) -> int:
        """Return how many edges slower than the threshold a cost holds."""
        return cost % self._cross // self._slow

    def speed(self, a: int, b: int) -> float | None:
        """Return the bandwidth of an edge, bytes/s; None without any figures."""
        return None if self._bandwidth is None else self._bandwidth.between(self._names[a], self._names[b])

    def slowest(self, tour: Sequence[int]) -> tuple[float, int, int] | None:
        """Return the slowest edge of a ring: its bandwidth and sites; the first of equal ones."""
        if self._bandwidth is None or len(tour) < 2:
            return None
        edges = [(tour[place - 1], tour[place]) for place in range(len(tour))]
        a, b = min(edges, key=lambda edge: self._bandwidth_of(*edge))
        return self._bandwidth_of(a, b), a, b

    def bottleneck(self, tour: Sequence[int]) -> float:
        """Return the bandwidth of the slowest edge of a ring, bytes/s; 0 without figures."""
        slowest = self.slowest(tour)
        return 0.0 if slowest is None else slowest[0]

    def runs(self, tour: Sequence[int]) -> Iterator[list[int]]:
        """Yield the stretches of an order that cross nothing inside."""
        for _, run in groupby(tour, key=self._group.__getitem__):
            yield list(run)

    def _bandwidth_of(self, a: int, b: int) -> float:
        return self.speed(a, b) or 0.0

    def _crossed(self, a: int, b: int) -> int:
        ours, theirs = self._levels[a], self._levels[b]
        return sum(weight for level, weight in self._weights if ours[level] != theirs[level])
