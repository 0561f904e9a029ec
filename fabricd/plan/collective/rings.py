"""Rings that fill a machine's links: column generation, with the proof that no others carry more.

A linear program packs the rings known so far; what a full link is worth prices all other rings; the cheapest of them
join, until none would help. At any prices, capacity worth divided by the cheapest ring's cost bounds *every* packing of
rings, which is the certificate.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fabricd.plan.collective.columns import STRAIGHT, Column, cheapest_columns, same_segments
from fabricd.plan.collective.fabric import Floats, Routes
from fabricd.plan.collective.linear import maximise

#: Rounds, not seconds: the same plan on every machine.
_MAX_ROUNDS = 150
#: Stop when the plan is this near to the certified limit.
CLOSE = 1.0005
#: Nearer with straight rings, lest what is left be made up for by rings that cross.
_CLOSER = 1 + STRAIGHT / 2
#: A ring that costs no less than this much below its worth would not help.
_LEAST_GAIN = 1e-7
#: Every link costs a little, so that ways do not wander over idle ones.
_LEAST_PRICE = 1e-5


@dataclass(frozen=True, slots=True)
class Packing:
    """Rings and what each carries.

    Attributes:
        columns: with a weight each, GB/s of each of a column's rings.
        weights: of the columns.
        total: of all rings, GB/s.
        limit: certified: no rings carry more; infinite where that was not proved.
        prices: of each link, more than 0 for those that hold the packing back.
        pool: all rings that were looked at.
        unsolved: why a program of it was not solved, in the solver's words; the rings are then those of the last one
            that was, or all that were known with one weight. "" otherwise.
    """

    columns: tuple[Column, ...]
    weights: tuple[float, ...]
    total: float
    limit: float
    prices: Floats
    pool: tuple[Column, ...] = ()
    unsolved: str = ""


def pack(routes: Routes, known: Sequence[Column] = (), *, limit: float = np.inf) -> Packing:
    """Return the rings that carry most together; without columns if no ring exists.

    Rings that change from port to port are used only if they carry more than those that do not.

    Args:
        routes: the ways between ranks and ports.
        known: rings to choose from, too.
        limit: what rings cannot exceed anyway, GB/s.
    """
    master = _Master(routes, limit)
    if routes.fabric.nets:
        master.generate(straight=True)
    master.add(known)
    master.solve()
    limit = master.generate()
    if master.unsolved:
        master.carry_at_least(known)
    used = np.flatnonzero(master.weights).tolist()
    return Packing(
        tuple(master.columns[at] for at in used),
        tuple(float(master.weights[at]) for at in used),
        master.total,
        limit,
        master.prices,
        tuple(master.columns),
        master.unsolved,
    )


class _Master:
    """The rings known so far, and the best packing of them."""

    def __init__(self, routes: Routes, limit: float) -> None:
        self.routes = routes
        self.limit = limit
        self.capacity = routes.fabric.capacity
        self.columns: list[Column] = []
        self.weights = np.zeros(0)
        self.prices = np.zeros(len(self.capacity))
        self.unsolved = ""
        self._seen: set[object] = set()

    @property
    def total(self) -> float:
        values = np.array([column.value for column in self.columns])
        return float(values @ self.weights) if self.columns else 0.0

    def add(self, new: Sequence[Column]) -> bool:
        """Add rings that are not there yet; tell whether there were any. Until the next solution they carry nothing."""
        before = len(self.columns)
        for column in new:
            key = same_segments(column)
            if key not in self._seen:
                self._seen.add(key)
                self.columns.append(column)
        self.weights = np.append(self.weights, np.zeros(len(self.columns) - before))
        return len(self.columns) > before

    def solve(self) -> None:
        """Pack anew. Where that fails what was packed before stays; before anything was, all get one weight."""
        if not self.columns:
            return
        solved = _solve(self.columns, self.capacity)
        if not isinstance(solved, str):
            (self.weights, self.prices), self.unsolved = solved, ""
            return
        self.unsolved = solved
        if not self.weights.any():
            self.carry_at_least(self.columns)

    def carry_at_least(self, rings: Sequence[Column]) -> None:
        """Pack these alone, evenly and as often as they are named, where that carries more; all have been added."""
        if not rings:
            return
        times = Counter(map(same_segments, rings))
        even = np.array([float(times[same_segments(column)]) for column in self.columns])
        even /= float(np.max(sum(column.usage for column in rings) / self.capacity))
        values = np.array([column.value for column in self.columns])
        if float(values @ even) > self.total:
            self.weights = even

    def _levelled_limit(self) -> float:
        """Return the limit at prices that are the same for links of one kind.

        On a large symmetric machine all worth may sit on one link of many that are alike, which proves little.
        """
        links = self.routes.fabric.links
        kinds: dict[object, list[int]] = {}
        for number, link in enumerate(links):
            kinds.setdefault((link.type, link.source.type, link.target.type, link.bandwidth), []).append(number)
        prices = self.prices.copy()
        for alike in kinds.values():
            prices[alike] = prices[alike].mean()
        lengths = lengths_at(prices, self.capacity)
        least = cheapest_columns(self.routes, lengths).least
        return float(lengths @ self.capacity) / least if least > 0 else np.inf

    def _useful(self, columns: Sequence[Column], lengths: Floats) -> list[Column]:
        """Return those that would carry more than they displace; before the first solution all."""
        if not self.total:
            return list(columns)
        return [column for column in columns if float(column.usage @ lengths) < column.value * (1 - _LEAST_GAIN)]

    def generate(self, *, straight: bool = False) -> float:
        """Add rings until none would help; return what none can exceed."""
        limit = self.limit
        for _ in range(_MAX_ROUNDS):
            lengths = lengths_at(self.prices, self.capacity)
            priced = cheapest_columns(self.routes, lengths, straight=straight)
            if priced.least > 0:
                limit = min(limit, float(lengths @ self.capacity) / priced.least)
            if limit <= (_CLOSER if straight else CLOSE) * self.total or not self.add(
                self._useful(priced.columns, lengths)
            ):
                break
            self.solve()
            if self.unsolved:
                break
        if limit > CLOSE * self.total and not straight:
            limit = min(limit, self._levelled_limit())
        return limit


def lengths_at(prices: Floats, capacity: Floats) -> Floats:
    """Return what links count at the prices of a packing; at none, the wider the less."""
    worth = float(prices @ capacity)
    if worth <= 0:
        return 1 / capacity
    return prices + _LEAST_PRICE * worth / (len(capacity) * capacity)


def _solve(columns: Sequence[Column], capacity: Floats) -> tuple[Floats, Floats] | str:
    """Return the weights that carry most within the capacities, and the price of each link; else why not."""
    usage = np.stack([column.usage for column in columns], axis=1)
    rows = np.flatnonzero(usage.any(axis=1))
    unit = float(np.max(capacity[rows] / usage[rows].max(axis=1))) if len(rows) else 1.0
    values = np.array([column.value * (1 if column.straight else 1 - STRAIGHT) for column in columns])
    # The programs are alike from round to round.
    solved = maximise(values, usage[rows], capacity[rows] / unit, presolve=False)
    if isinstance(solved, str):
        return solved
    prices = np.zeros(len(capacity))
    prices[rows] = solved.prices
    return _feasible(solved.values * unit, usage, capacity), prices


def _feasible(weights: Floats, usage: Floats, capacity: Floats) -> Floats:
    """Scale weights down by the solver's tolerance, so that no link is over its capacity."""
    weights = np.where(weights > 1e-9 * max(1e-300, float(weights.max())), weights, 0.0)
    over = float(np.max(usage @ weights / capacity))
    return weights / over if over > 1 else weights
