"""Rings that fill a machine's links: column generation, with the proof that no others carry more.

A linear program packs the rings known so far; what a full link is worth prices all other rings; the cheapest of them
join, until none would help. At any prices, capacity worth divided by the cheapest ring's cost bounds *every* packing of
rings, which is the certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from fabricd.plan.collective.columns import Column, cheapest_columns, same_segments
from fabricd.plan.collective.fabric import Floats, Routes

#: Rounds, not seconds: the same plan on every machine.
_MAX_ROUNDS = 150
#: Stop when the plan is this near to the certified limit.
CLOSE = 1.0005
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
    """

    columns: tuple[Column, ...]
    weights: tuple[float, ...]
    total: float
    limit: float
    prices: Floats


def pack(routes: Routes, known: Sequence[Column] = ()) -> Packing:
    """Return the rings that carry most together; without columns if no ring exists.

    Args:
        routes: the ways between ranks and ports.
        known: rings to begin with.
    """
    capacity = routes.fabric.capacity
    columns: list[Column] = []
    seen: set[object] = set()
    limit = np.inf
    _add(columns, seen, known)
    weights, prices = _solve(columns, capacity)
    for _ in range(_MAX_ROUNDS):
        lengths = lengths_at(prices, capacity)
        priced = cheapest_columns(routes, lengths)
        if priced.least > 0:
            limit = min(limit, float(lengths @ capacity) / priced.least)
        total = _total(columns, weights)
        if limit <= CLOSE * total or not _add(columns, seen, priced.columns):
            break
        weights, prices = _solve(columns, capacity)
    used = [at for at, weight in enumerate(weights) if weight > 0]
    return Packing(
        tuple(columns[at] for at in used),
        tuple(float(weights[at]) for at in used),
        _total(columns, weights),
        limit,
        prices,
    )


def _total(columns: Sequence[Column], weights: Floats) -> float:
    return float(sum(column.value * weight for column, weight in zip(columns, weights, strict=True)))


def _add(columns: list[Column], seen: set[object], new: Sequence[Column]) -> bool:
    """Add those that are not there yet; tell whether there were any."""
    before = len(columns)
    for column in new:
        key = same_segments(column)
        if key not in seen:
            seen.add(key)
            columns.append(column)
    return len(columns) > before


def lengths_at(prices: Floats, capacity: Floats) -> Floats:
    """Return what links count at the prices of a packing; at none, the wider the less."""
    worth = float(prices @ capacity)
    if worth <= 0:
        return 1 / capacity
    return prices + _LEAST_PRICE * worth / (len(capacity) * capacity)


def _solve(columns: Sequence[Column], capacity: Floats) -> tuple[Floats, Floats]:
    """Return the weights that carry most within the capacities, and the price of each link."""
    if not columns:
        return np.zeros(0), np.zeros(len(capacity))
    usage = np.stack([column.usage for column in columns], axis=1)
    rows = np.flatnonzero(usage.any(axis=1))
    unit = float(np.max(capacity[rows] / usage[rows].max(axis=1))) if len(rows) else 1.0
    values = np.array([column.value for column in columns], dtype=np.float64)
    solved = linprog(-values, A_ub=usage[rows], b_ub=capacity[rows] / unit, method="highs-ds")
    prices = np.zeros(len(capacity))
    prices[rows] = np.maximum(0.0, -solved.ineqlin.marginals)
    weights = np.maximum(0.0, solved.x) * unit
    return _feasible(weights, usage, capacity), prices


def _feasible(weights: Floats, usage: Floats, capacity: Floats) -> Floats:
    """Scale weights down by the solver's tolerance, so that no link is over its capacity."""
    weights = np.where(weights > 1e-9 * max(1e-300, float(weights.max())), weights, 0.0)
    over = float(np.max(usage @ weights / capacity))
    return weights / over if over > 1 else weights
