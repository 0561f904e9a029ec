"""The cheapest orders to visit ranks in, exactly: tables of all orders for few ranks, dynamic programming for more."""

from functools import lru_cache

import numpy as np

from fabricd.plan.collective.fabric import Floats, Integers

#: A table of all cycles has (n - 1)! rows, one of all paths n!.
TABLE_CYCLE = 9
TABLE_PATH = 8
#: Dynamic programming has 2^(n - 1) * (n - 1) states.
EXACT_CYCLE = 16


class _Table:
    """All orders of some elements that begin alike, built one element at a time: cost of each by two additions.

    Attributes:
        orders: shape [orders, elements].
    """

    def __init__(self, size: int, starts: int) -> None:
        self._starts = starts
        orders = np.arange(starts, dtype=np.int64)[:, None]
        self._parents: list[Integers] = []
        self._steps: list[Integers] = []
        for _ in range(size - 1):
            free = np.ones((len(orders), size), dtype=bool)
            np.put_along_axis(free, orders, False, axis=1)
            parents, added = np.nonzero(free)
            self._parents.append(parents)
            self._steps.append(orders[parents, -1] * size + added)
            orders = np.concatenate([orders[parents], added[:, None]], axis=1)
        self.orders: Integers = orders

    def costs(self, matrix: Floats) -> Floats:
        """Return what each order costs as a path; ``matrix`` has a row for each element that a step leaves."""
        flat = matrix.ravel()
        costs = np.zeros(self._starts)
        for parents, steps in zip(self._parents, self._steps, strict=True):
            costs = costs[parents] + flat[steps]
        return costs


@lru_cache(maxsize=8)
def _cycles(size: int) -> _Table:
    return _Table(size, 1)


@lru_cache(maxsize=8)
def _paths(size: int) -> tuple[_Table, Integers, Integers]:
    """Return all paths, their rows grouped by both ends, and the ends as ``first * size + last``."""
    table = _Table(size, size)
    ends = table.orders[:, 0] * size + table.orders[:, -1]
    groups, rows = np.unique(ends), np.argsort(ends, kind="stable")
    return table, rows.reshape(len(groups), -1), groups


def cheapest_cycles(matrix: Floats, count: int) -> list[tuple[float, tuple[int, ...]]]:
    """Return the cheapest orders for a ring, with their costs, best first; each begins with element 0.

    Args:
        matrix: cost of each step, shape [n, n] with 2 <= n <= ``EXACT_CYCLE``; infinite where there is none.
        count: how many to return at most; beyond ``TABLE_CYCLE`` elements one.
    """
    size = len(matrix)
    if size > TABLE_CYCLE:
        cost, order = _held_karp(matrix)
        return [(cost, order)] if np.isfinite(cost) else []
    table = _cycles(size)
    costs = table.costs(matrix) + matrix[table.orders[:, -1], 0]
    return [(float(costs[row]), tuple(table.orders[row].tolist())) for row in _smallest(costs, count)]


def cheapest_paths(matrix: Floats) -> tuple[Floats, dict[tuple[int, int], tuple[int, ...]]]:
    """Return the cost of the cheapest path over all elements for each pair of ends, and these paths.

    Args:
        matrix: as for ``cheapest_cycles``, with 1 <= n <= ``TABLE_PATH``.

    Returns:
        Costs of shape [n, n], infinite where there is none, and orders by (first, last).
    """
    size = len(matrix)
    table, rows, groups = _paths(size)
    costs = table.costs(matrix)[rows]
    best = np.argmin(costs, axis=1)
    found = np.full(size * size, np.inf)
    found[groups] = costs[np.arange(len(groups)), best]
    picked = table.orders[rows[np.arange(len(groups)), best]]
    return found.reshape(size, size), {(order[0], order[-1]): tuple(order) for order in picked.tolist()}


def _smallest(costs: Floats, count: int) -> list[int]:
    """Return where the smallest finite costs are, smallest first; of equal ones the first."""
    count = min(count, len(costs))
    limit = np.partition(costs, count - 1)[count - 1]
    rows = np.flatnonzero(costs <= limit)
    rows = rows[np.argsort(costs[rows], kind="stable")][:count]
    return [int(row) for row in rows if np.isfinite(costs[row])]


@lru_cache(maxsize=8)
def _layers(size: int) -> tuple[Integers, ...]:
    """Return all subsets of some elements as bit sets, by number of elements."""
    sets = np.arange(1 << size, dtype=np.int64)
    counts = np.array([int(one).bit_count() for one in sets.tolist()])
    return tuple(sets[counts == count] for count in range(size + 1))


def _held_karp(matrix: Floats) -> tuple[float, tuple[int, ...]]:
    """Return the cheapest cycle: cheapest paths from element 0 over each subset of the others, by their end."""
    others = len(matrix) - 1
    inner = matrix[1:, 1:]
    costs = np.full((1 << others, others), np.inf)
    came = np.zeros((1 << others, others), dtype=np.int8)
    costs[1 << np.arange(others), np.arange(others)] = matrix[0, 1:]
    for sets in _layers(others)[2:]:
        for last in range(others):
            chosen = sets[sets >> last & 1 == 1]
            options = costs[chosen ^ (1 << last)] + inner[:, last]
            best = np.argmin(options, axis=1)
            costs[chosen, last] = options[np.arange(len(chosen)), best]
            came[chosen, last] = best
    full = (1 << others) - 1
    closing = costs[full] + matrix[1:, 0]
    last = int(np.argmin(closing))
    total, order, left = float(closing[last]), [], full
    while left:
        order.append(last + 1)
        left, last = left ^ (1 << last), int(came[left, last])
    return total, (0, *reversed(order))
