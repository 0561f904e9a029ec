"""Trees that fill a machine's links: for every root those that spread its data, and those that reduce to it.

The same column generation as for rings, with the cheapest arborescence over the ranks as the price. Switches do not
copy: an arc goes from rank to rank. On several equal machines trees start on the first, and the others' are the same
turned round, so that each link's load is what all machines' links of that place bear together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from fabricd.plan.collective.arborescence import cheapest_tree
from fabricd.plan.collective.fabric import Floats, Routes, Step
from fabricd.plan.collective.rings import CLOSE, lengths_at

#: More ranks than this are too many trees.
MAX_RANKS = 72
_MAX_ROUNDS = 120


@dataclass(frozen=True, slots=True, eq=False)
class PackedTree:
    """A tree and what it carries.

    Attributes:
        root: rank.
        toward_root: it reduces.
        arcs: (sender, receiver), nearest to the root first.
        usage: how often each link is crossed.
        weight: GB/s.
    """

    root: int
    toward_root: bool
    arcs: tuple[Step, ...]
    usage: Floats
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class TreePacking:
    """Trees, what they carry as bus bandwidth, the certified limit of it, and the links' prices; GB/s."""

    trees: tuple[PackedTree, ...]
    busbw: float
    limit: float
    prices: Floats


#: Root and whether trees lead towards it.
_Set = tuple[int, bool]


class _Problem:
    """Rates to maximise; each needs as much of every one of its sets of trees.

    Attributes:
        rates: the sets of each rate.
        factor: bus bandwidth by the sum of the rates.
    """

    def __init__(self, routes: Routes, machines: int, collective: str, root: int) -> None:
        self.routes = routes
        self.machines = machines
        self.local = routes.fabric.ranks
        self.ranks = self.local * machines
        roots = range(self.local)
        if collective == "all_reduce":
            self.rates: list[list[_Set]] = [[(one, False), (one, True)] for one in roots]
            self.factor = 2 * (self.ranks - 1) / self.ranks * machines
        elif collective in ("all_gather", "reduce_scatter"):
            self.rates = [[(one, collective == "reduce_scatter") for one in roots]]
            self.factor = float(self.ranks - 1)
        else:
            self.rates = [[(root, collective == "reduce")]]
            self.factor = 1.0
        self.sets = [one for rate in self.rates for one in rate]

    def cheapest(self, lengths: Floats) -> Iterator[tuple[_Set, PackedTree | None, float]]:
        """Yield the cheapest tree of each set with its cost."""
        prices = self.routes.price(lengths)
        matrix, ports = self._matrix(prices)
        for root, toward in self.sets:
            parents = cheapest_tree(matrix.T if toward else matrix, root)
            if parents is None:
                yield (root, toward), None, np.inf
                continue
            arcs = tuple(_arcs(parents.tolist(), root, toward=toward))
            steps = [step for arc in arcs for step in self._steps(arc, ports)]
            usage = self.routes.usage(steps)
            yield (root, toward), PackedTree(root, toward, arcs, usage), float(usage @ lengths)

    def _matrix(self, prices: Floats) -> tuple[Floats, tuple[list[int], list[int]]]:
        """Return what arcs cost, and by which ports each local rank leaves and is entered."""
        local = self.local
        inner = prices[:local, :local]
        if self.machines == 1:
            return inner, ([], [])
        leaves, entries = prices[:local, local:], prices[local:, :local]
        outer = leaves.min(axis=1)[:, None] + entries.min(axis=0)[None, :]
        own = np.kron(np.eye(self.machines), np.ones((local, local))) > 0
        tiles = (self.machines, self.machines)
        matrix = np.where(own, np.tile(inner, tiles), np.tile(outer, tiles))
        return matrix, (leaves.argmin(axis=1).tolist(), entries.argmin(axis=0).tolist())

    def _steps(self, arc: Step, ports: tuple[list[int], list[int]]) -> list[Step]:
        (from_machine, sender), (to_machine, receiver) = divmod(arc[0], self.local), divmod(arc[1], self.local)
        if from_machine == to_machine:
            return [(sender, receiver)]
        return [(sender, self.local + ports[0][sender]), (self.local + ports[1][receiver], receiver)]


def _arcs(parents: list[int], root: int, *, toward: bool) -> Iterator[Step]:
    below: dict[int, list[int]] = {}
    for child, parent in enumerate(parents):
        if child != root:
            below.setdefault(parent, []).append(child)
    wave = [root]
    while wave:
        for parent in wave:
            for child in below.get(parent, ()):
                yield (child, parent) if toward else (parent, child)
        wave = [child for parent in wave for child in below.get(parent, ())]


def pack_trees(routes: Routes, machines: int, collective: str, *, root: int = 0) -> TreePacking | None:
    """Return the trees that carry most together; None if some rank cannot be reached.

    Args:
        routes: the ways between ranks and ports of one machine.
        machines: number of machines, all alike; one for a broadcast or reduce.
        collective: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "reduce".
        root: of a broadcast or reduce.
    """
    problem = _Problem(routes, machines, collective, root)
    capacity = routes.fabric.capacity
    trees: list[PackedTree] = []
    seen: set[object] = set()
    limit = np.inf
    prices, worth = np.zeros(len(capacity)), dict.fromkeys(problem.sets, np.inf)
    weights, total = np.zeros(0), 0.0
    for _ in range(_MAX_ROUNDS):
        lengths = lengths_at(prices, capacity)
        costs, added = {}, False
        for key, tree, cost in problem.cheapest(lengths):
            if tree is None:
                return None
            costs[key] = cost
            mark = (key, tree.arcs, tree.usage.tobytes())
            if cost < worth[key] and mark not in seen:
                seen.add(mark)
                trees.append(tree)
                added = True
        least = min(sum(costs[one] for one in rate) for rate in problem.rates)
        limit = min(limit, float(lengths @ capacity) / least)
        if limit <= CLOSE * total or not added:
            break
        weights, total, prices, worth = _solve(problem, trees, capacity)
    used = [
        PackedTree(tree.root, tree.toward_root, tree.arcs, tree.usage, float(weight))
        for tree, weight in zip(trees, weights, strict=False)
        if weight > 0
    ]
    return TreePacking(tuple(used), total * problem.factor, limit * problem.factor, prices)


def _solve(
    problem: _Problem, trees: Sequence[PackedTree], capacity: Floats
) -> tuple[Floats, float, Floats, dict[_Set, float]]:
    """Return the trees' weights, the sum of rates, the price of each link, and the worth of a tree of each set."""
    usage = np.stack([tree.usage for tree in trees], axis=1)
    rows = np.flatnonzero(usage.any(axis=1))
    unit = float(np.max(capacity[rows] / usage[rows].max(axis=1)))
    rates, sets = len(problem.rates), problem.sets
    place = {key: at for at, key in enumerate(sets)}
    needs = np.zeros((len(sets), rates + len(trees)))
    for number, rate in enumerate(problem.rates):
        for key in rate:
            needs[place[key], number] = 1
    for at, tree in enumerate(trees):
        needs[place[tree.root, tree.toward_root], rates + at] = -1
    limits = np.concatenate([np.zeros((len(rows), rates)), usage[rows]], axis=1)
    gain = np.concatenate([-np.ones(rates), np.zeros(len(trees))])
    right = np.concatenate([capacity[rows] / unit, np.zeros(len(sets))])
    solved = linprog(gain, A_ub=np.concatenate([limits, needs]), b_ub=right, method="highs-ds")
    marginals = np.maximum(0.0, -solved.ineqlin.marginals)
    prices = np.zeros(len(capacity))
    prices[rows] = marginals[: len(rows)]
    worth = {key: float(marginals[len(rows) + at]) for key, at in place.items()}
    weights = np.maximum(0.0, solved.x[rates:]) * unit
    over = max(1.0, float(np.max(usage @ weights / capacity)))
    return weights / over, float(solved.x[:rates].sum()) * unit / over, prices, worth
