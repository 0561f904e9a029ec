"""The cheapest tree that reaches every element from a root: Chu-Liu and Edmonds, on a dense matrix."""

import numpy as np

from fabricd.plan.collective.fabric import Floats, Integers


def cheapest_tree(matrix: Floats, root: int) -> Integers | None:
    """Return the parent of each element in the cheapest tree, the root's its own; None if some cannot be reached.

    Args:
        matrix: cost of each arc from row to column, shape [n, n]; infinite where there is none.
        root: where the tree starts.
    """
    costs = matrix.copy()
    np.fill_diagonal(costs, np.inf)
    costs[:, root] = np.inf
    costs[root, root] = 0.0
    return _tree(costs, root)


def _tree(costs: Floats, root: int) -> Integers | None:
    parents: Integers = np.argmin(costs, axis=0)
    if np.isinf(costs[parents, np.arange(len(costs))]).any():
        return None
    cycle = _cycle(parents, root)
    if cycle is None:
        return parents
    rest = np.setdiff1d(np.arange(len(costs)), cycle)
    # The cycle becomes the last element: to enter it at one of its own costs what its arc on the cycle saves.
    entering = costs[np.ix_(rest, cycle)] - costs[parents[cycle], cycle][None, :]
    leaving = costs[np.ix_(cycle, rest)]
    small = np.full((len(rest) + 1, len(rest) + 1), np.inf)
    small[:-1, :-1] = costs[np.ix_(rest, rest)]
    small[:-1, -1], small[-1, :-1] = entering.min(axis=1), leaving.min(axis=0)
    found = _tree(small, int(np.flatnonzero(rest == root)[0]))
    if found is None:
        return None
    from_cycle = found[:-1] == len(rest)
    parents[rest] = np.where(from_cycle, cycle[leaving.argmin(axis=0)], np.append(rest, -1)[found[:-1]])
    parents[cycle[entering[found[-1]].argmin()]] = rest[found[-1]]
    return parents


def _cycle(parents: Integers, root: int) -> Integers | None:
    """Return the elements of a cycle of parents."""
    state = np.zeros(len(parents), dtype=np.int64)
    state[root] = -1
    for start in range(len(parents)):
        here = start
        while state[here] == 0:
            state[here] = start + 1
            here = int(parents[here])
        if state[here] == start + 1:
            cycle = [here]
            while (following := int(parents[cycle[-1]])) != here:
                cycle.append(following)
            return np.array(cycle, dtype=np.int64)
        # Elements seen from an earlier start lead to the root.
    return None
