"""Rings on one machine as columns of a linear program, and the search for the cheapest at given link lengths."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from fabricd.plan.collective.fabric import Floats, Routes, Step
from fabricd.plan.collective.heuristic import cheap_cycle, least_cycle
from fabricd.plan.collective.orders import EXACT_CYCLE, TABLE_PATH, cheapest_cycles, cheapest_paths

#: Columns added a round: several halve the number of rounds.
PER_ROUND = 6
#: So much is given for a ring that leaves by the port it came in by: that is on one rail everywhere.
STRAIGHT = 1e-4
#: Where orders are searched for by heuristic, once as it is and so often with slightly changed prices.
_JITTERS = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A ring's part on one machine: all its ranks in order, and the ports (by place) it enters and leaves by."""

    order: tuple[int, ...]
    entry: int = -1  #: -1: the ring closes within the machine
    leave: int = -1

    def steps(self, ranks: int) -> list[Step]:
        """Return the steps between points; ports come after the ranks."""
        inner = list(zip(self.order, self.order[1:], strict=False))
        if self.entry < 0:
            return [*inner, (self.order[-1], self.order[0])] if ranks > 1 else []
        return [(ranks + self.entry, self.order[0]), *inner, (self.order[-1], ranks + self.leave)]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One ring, or two that take each other's part on every other machine so that each stays on its rails.

    Attributes:
        segments: on machines 0, 2, ... the first; of two, the second on machines 1, 3, ...
        usage: how often each link is crossed, by all of the column's rings together.
    """

    segments: tuple[Segment, ...]
    usage: Floats

    @property
    def value(self) -> int:
        """Number of rings."""
        return len(self.segments)

    @property
    def straight(self) -> bool:
        """Whether its rings leave each machine by the port they came in by."""
        return all(segment.entry == segment.leave for segment in self.segments)


@dataclass(frozen=True, slots=True)
class Priced:
    """The cheapest columns found, and what a ring costs at least: 0 if that was not proved."""

    columns: list[Column]
    least: float


def make_column(routes: Routes, segments: Iterable[Segment]) -> Column:
    """Return a column over the ways that were cheapest when last priced."""
    parts = tuple(segments)
    ranks = routes.fabric.ranks
    steps = [step for part in parts for step in part.steps(ranks)]
    return Column(parts, routes.usage(steps) if steps else np.zeros(len(routes.fabric.links)))


def cheapest_columns(routes: Routes, lengths: Floats, *, straight: bool = False) -> Priced:
    """Return the cheapest rings at given lengths of the links; none if some rank cannot be reached.

    Args:
        routes: the ways between points.
        lengths: of the links.
        straight: only rings that leave each machine by the port they came in by; ``least`` is of those.
    """
    prices = routes.price(lengths)
    ranks = routes.fabric.ranks
    inner = prices[:ranks, :ranks]
    if not routes.fabric.nets:
        return _closed(routes, inner)
    entries, leaves = prices[ranks:, :ranks], prices[:ranks, ranks:]
    if ranks <= TABLE_PATH:
        return _crossing(routes, inner, entries, leaves, straight=straight)
    return _crossing_many(routes, inner, entries, leaves, straight=straight)


def _closed(routes: Routes, inner: Floats) -> Priced:
    if len(inner) <= EXACT_CYCLE:
        found = cheapest_cycles(inner, PER_ROUND)
        columns = [make_column(routes, [Segment(order)]) for _, order in found]
        return Priced(columns, found[0][0] if found else np.inf)
    found = [cheap_cycle(inner * jitter) for jitter in _jitters(len(inner))]
    columns = [make_column(routes, [Segment(order)]) for cost, order in found if np.isfinite(cost)]
    return Priced(columns, least_cycle(inner))


def _jitters(size: int) -> list[Floats]:
    """Return factors of 1, then of up to a thousandth more: they part equal costs. Always the same."""
    random = np.random.default_rng(size)
    return [np.ones((size, size)), *(1 + random.random((size, size)) / 1000 for _ in range(_JITTERS))]


def _crossing(routes: Routes, inner: Floats, entries: Floats, leaves: Floats, *, straight: bool) -> Priced:
    """Price pairs of segments: in by one port and out by another, and the other way round."""
    costs, orders = cheapest_paths(inner)
    into = entries[:, :, None] + costs[None, :, :]  # [entry, first, last]
    firsts = np.argmin(into, axis=1)
    reached = np.min(into, axis=1)
    through = reached[:, :, None] + leaves[None, :, :]  # [entry, last, leave]
    lasts = np.argmin(through, axis=1)

    def segment(entry: int, leave: int) -> Segment:
        last = int(lasts[entry, leave])
        return Segment(orders[int(firsts[entry, last]), last], entry, leave)

    both = _both_ways(np.min(through, axis=1), straight=straight)
    return Priced(_columns(routes, both, segment, PER_ROUND), float(both.min()))


def _crossing_many(routes: Routes, inner: Floats, entries: Floats, leaves: Floats, *, straight: bool) -> Priced:
    """As ``_crossing``, for more ranks than all orders can be tried of: a few cycles, opened where it is cheapest.

    The lower bound is that of rings for which any port leads to any other.
    """
    ways: list[tuple[Floats, Callable[[int, int], Segment]]] = []
    for jitter in _jitters(len(inner)):
        cost, order = cheap_cycle(inner * jitter)
        if np.isfinite(cost):
            ways.append(_opened(inner, entries, leaves, order))
    cost, order = cheap_cycle(_ringed(inner, entries.min(axis=0), leaves.min(axis=1)))
    if np.isfinite(cost):
        ways.append(_opened(inner, entries, leaves, tuple(rank - 1 for rank in order[1:])))
    columns: list[Column] = []
    for through, segment in ways:
        both = _both_ways(through, straight=straight)
        columns += _columns(routes, both, segment, max(PER_ROUND, len(both)))
    return Priced(columns, least_cycle(_ringed(inner, entries.min(axis=0), leaves.min(axis=1))))


def _opened(
    inner: Floats, entries: Floats, leaves: Floats, order: tuple[int, ...]
) -> tuple[Floats, Callable[[int, int], Segment]]:
    """Return what it costs to go through a machine along a cycle that is cut open, by both ports, and the segments."""
    firsts = np.array(order)
    lasts = np.roll(firsts, 1)
    steps = inner[lasts, firsts]
    opened = steps.sum() - steps
    leaving = opened[:, None] + leaves[lasts, :]  # [place, leave]
    ports = range(len(entries))
    places = np.stack([np.argmin(entries[port, firsts, None] + leaving, axis=0) for port in ports])
    through = entries[:, firsts][np.array(ports)[:, None], places] + leaving[places, np.arange(len(ports))[None, :]]

    def segment(entry: int, leave: int) -> Segment:
        place = int(places[entry, leave])
        return Segment(order[place:] + order[:place], entry, leave)

    return through, segment


def _both_ways(through: Floats, *, straight: bool) -> Floats:
    """Return the cost of each pair of ports as mean of both directions; of one port alone if ``straight``."""
    both: Floats = (through + through.T) / 2
    return np.where(np.eye(len(both), dtype=bool), both, np.inf) if straight else both


def _columns(routes: Routes, both: Floats, segment: Callable[[int, int], Segment], count: int) -> list[Column]:
    """Return the columns of the cheapest unordered pairs of ports, cheapest first."""
    rows, places = np.triu_indices(len(both))
    values = both[rows, places]
    made = []
    for at in np.argsort(values, kind="stable")[:count]:
        if np.isfinite(values[at]):
            entry, leave = int(rows[at]), int(places[at])
            ends = [(entry, leave)] if entry == leave else [(entry, leave), (leave, entry)]
            made.append(make_column(routes, [segment(*pair) for pair in ends]))
    return made


def _ringed(inner: Floats, entry: Floats, leave: Floats) -> Floats:
    """Return a matrix with the way through other machines as element 0."""
    size = len(inner) + 1
    matrix = np.full((size, size), np.inf)
    matrix[1:, 1:], matrix[0, 1:], matrix[1:, 0] = inner, entry, leave
    return matrix


def same_segments(column: Column) -> tuple[Sequence[Segment], bytes]:
    """Return what tells columns apart: their segments and the links they cross."""
    return column.segments, column.usage.tobytes()
