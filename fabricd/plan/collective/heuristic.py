"""A cheap order to visit many ranks in, and what no order can be cheaper than.

Assignment with its subtours patched together, and two tours that go on to the nearest, each improved by moving short
pieces elsewhere. Deterministic: the same matrix gives the same order.
"""

import numpy as np
from scipy.optimize import linear_sum_assignment

from fabricd.plan.collective.arborescence import cheapest_tree
from fabricd.plan.collective.fabric import Floats

_LONGEST_PIECE = 4
_MAX_MOVES = 2000
#: All moves together look at so many places at most: a bound of the work that is the same on every machine.
_MAX_PLACES = 200_000_000


def cheap_cycle(matrix: Floats) -> tuple[float, tuple[int, ...]]:
    """Return the cost of a cheap cycle over all elements, infinite if none was found, and its order from element 0 on.

    Args:
        matrix: cost of each step, shape [n, n] with n >= 3; infinite where there is none.
    """
    costs, barred = _barred(matrix)
    size = len(costs)
    _, columns = linear_sum_assignment(costs)
    tours = [_patched(costs, columns.tolist()), _nearest(costs, 0), _nearest(costs, size // 2)]
    improved = [_improved(costs, tour) for tour in tours]
    best = min(improved, key=lambda tour: (_cost(costs, tour), tour))
    cost = _cost(costs, best)
    at = best.index(0)
    return cost if cost < barred else np.inf, tuple(best[at:] + best[:at])


def least_cycle(matrix: Floats) -> float:
    """Return what no cycle over all elements can cost less than; infinite where that proves that there is none.

    The cheapest assignment, and the cheapest tree from element 0 with the cheapest way back to it.
    """
    costs, barred = _barred(matrix)
    rows, columns = linear_sum_assignment(costs)
    bound = float(costs[rows, columns].sum())
    parents = cheapest_tree(costs, 0)
    if parents is not None:
        bound = max(bound, float(costs[parents[1:], np.arange(1, len(costs))].sum() + costs[1:, 0].min()))
    return bound if bound < barred else np.inf


def _barred(matrix: Floats) -> tuple[Floats, float]:
    """Return costs with a figure above any cycle's where there is no step, and that figure."""
    barred = 1.0 + 2 * len(matrix) * float(np.max(matrix, where=np.isfinite(matrix), initial=0.0))
    costs = np.where(np.isfinite(matrix), matrix, barred)
    np.fill_diagonal(costs, barred)
    return costs, barred


def _cost(costs: Floats, tour: list[int]) -> float:
    return float(costs[tour, tour[1:] + tour[:1]].sum())


def _nearest(costs: Floats, start: int) -> list[int]:
    tour, left = [start], np.ones(len(costs), dtype=bool)
    left[start] = False
    while len(tour) < len(costs):
        following = int(np.argmin(np.where(left, costs[tour[-1]], np.inf)))
        left[following] = False
        tour.append(following)
    return tour


def _patched(costs: Floats, following: list[int]) -> list[int]:
    """Join the cycles of a permutation, the two cheapest to join first."""
    cycles: list[list[int]] = []
    seen: set[int] = set()
    for start in range(len(following)):
        if start not in seen:
            cycle = [start]
            while following[cycle[-1]] != start:
                cycle.append(following[cycle[-1]])
            seen.update(cycle)
            cycles.append(cycle)
    cycles.sort(key=lambda cycle: (-len(cycle), cycle))
    tour = cycles.pop(0)
    while cycles:
        joined = [_joined(costs, tour, cycle) for cycle in cycles]
        which = min(range(len(cycles)), key=lambda index: (joined[index][0], index))
        tour = joined[which][1]
        cycles.pop(which)
    return tour


def _joined(costs: Floats, tour: list[int], cycle: list[int]) -> tuple[float, list[int]]:
    """Return what it costs more to go round a cycle in between two elements of a tour, and the longer tour."""
    tails, heads = np.array(tour), np.roll(tour, -1)
    starts, ends = np.array(cycle), np.roll(cycle, 1)
    extra = costs[np.ix_(tails, starts)] + costs[np.ix_(ends, heads)].T
    extra -= costs[tails, heads][:, None] + costs[ends, starts][None, :]
    at, begin = np.unravel_index(int(np.argmin(extra)), extra.shape)
    piece = cycle[begin:] + cycle[:begin]
    return float(extra[at, begin]), tour[: at + 1] + piece + tour[at + 1 :]


def _improved(costs: Floats, tour: list[int]) -> list[int]:
    """Move pieces of up to four elements to where they cost least, until no move helps."""
    for _ in range(min(_MAX_MOVES, _MAX_PLACES // (_LONGEST_PIECE * len(tour) ** 2) + 1)):
        moved = next((new for length in range(1, _LONGEST_PIECE + 1) if (new := _moved(costs, tour, length))), None)
        if moved is None:
            return tour
        tour = moved
    return tour


def _moved(costs: Floats, tour: list[int], length: int) -> list[int] | None:
    """Return a tour with the piece of some length moved that gains most; None if no move gains."""
    size = len(tour)
    if size < length + 3:
        return None
    around = np.array(tour)
    firsts, lasts = around, np.roll(around, 1 - length)
    before, after = np.roll(around, 1), np.roll(around, -length)
    saved = costs[before, firsts] + costs[lasts, after] - costs[before, after]
    heads = np.roll(around, -1)
    # Rows: the piece that begins there. Columns: the gap after the element there.
    spent = costs[np.ix_(around, firsts)].T + costs[np.ix_(lasts, heads)] - costs[around, heads][None, :]
    distance = (np.arange(size)[None, :] - np.arange(size)[:, None]) % size
    gain = np.where((distance >= length) & (distance < size - 1), saved[:, None] - spent, -np.inf)
    piece, gap = np.unravel_index(int(np.argmax(gain)), gain.shape)
    if gain[piece, gap] <= 1e-9 * float(saved[piece]):
        return None
    turned = tour[piece:] + tour[:piece]
    cut = int(distance[piece, gap]) + 1
    return turned[length:cut] + turned[:length] + turned[cut:]
