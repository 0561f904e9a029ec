"""Trees that fill a machine's links: for every root those that spread its data, and those that reduce to it.

The same column generation as for rings, with the cheapest arborescence over the ranks as the price. Switches do not
copy: an arc goes from rank to rank. Of machines that are alike trees start on the first, and the others' are the same
turned round, so that what counts is what all their links of one place bear and carry together.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fabricd.plan.collective.arborescence import cheapest_tree
from fabricd.plan.collective.fabric import Floats, Routes, Step
from fabricd.plan.collective.linear import maximise
from fabricd.plan.collective.rings import CLOSE, lengths_at

#: More ranks take more than ten seconds.
MAX_RANKS = 144
_MAX_ROUNDS = 120


@dataclass(frozen=True, slots=True, eq=False)
class PackedTree:
    """A tree and what it carries.

    Attributes:
        root: rank, on the first machine of its kind.
        toward_root: it reduces.
        arcs: (sender, receiver), nearest to the root first.
        usage: how often the links of each place are crossed by it and by the same trees of machines that are alike.
        weight: GB/s.
    """

    root: int
    toward_root: bool
    arcs: tuple[Step, ...]
    usage: Floats
    weight: float = 0.0


@dataclass(frozen=True, slots=True)
class TreePacking:
    """Trees, what they carry as bus bandwidth, the certified limit of it, and the links' prices; GB/s.

    ``unsolved`` says why a program of it was not solved, as ``fabricd.plan.collective.rings.Packing`` does.
    """

    trees: tuple[PackedTree, ...]
    busbw: float
    limit: float
    prices: Floats
    unsolved: str = ""


#: Root and whether trees lead towards it.
_Set = tuple[int, bool]


class _Problem:
    """Rates to maximise; each needs as much of every one of its sets of trees.

    Attributes:
        rates: the sets of each rate.
        gains: what a rate counts: how many machines have it.
        factor: bus bandwidth by the sum of what rates count.
        capacity: of the links of each kind of machine, of all its machines together; kind after kind.
    """

    def __init__(self, kinds: Sequence[Routes], order: Sequence[int], collective: str, root: int) -> None:
        self.kinds = kinds
        self.order = order
        self.counts = [sum(1 for one in order if one == kind) for kind in range(len(kinds))]
        locals_ = [kinds[kind].fabric.ranks for kind in order]
        self.starts = np.cumsum([0, *locals_]).tolist()
        self.ranks = self.starts[-1]
        self.machine = np.repeat(np.arange(len(order)), locals_).tolist()
        self.capacity: Floats = np.concatenate(
            [routes.fabric.capacity * count for routes, count in zip(kinds, self.counts, strict=True)]
        )
        firsts = [order.index(kind) for kind in range(len(kinds))]
        roots = [rank for first in firsts for rank in range(self.starts[first], self.starts[first + 1])]
        self.gains = np.ones(1)
        if collective == "all_reduce":
            self.rates: list[list[_Set]] = [[(one, False), (one, True)] for one in roots]
            self.gains = np.array([float(self._alike(one)) for one in roots])
            self.factor = 2 * (self.ranks - 1) / self.ranks
        elif collective in ("all_gather", "reduce_scatter"):
            self.rates = [[(one, collective == "reduce_scatter") for one in roots]]
            self.factor = float(self.ranks - 1)
        else:
            self.rates = [[(root, collective == "reduce")]]
            self.factor = 1.0
        self.sets = [one for rate in self.rates for one in rate]

    def _alike(self, rank: int) -> int:
        """Return how many machines are like that of a rank."""
        return self.counts[self.order[self.machine[rank]]]

    def cheapest(self, lengths: Floats) -> Iterator[tuple[_Set, PackedTree | None, float]]:
        """Yield the cheapest tree of each set with its cost."""
        parts = np.split(lengths, np.cumsum([len(routes.fabric.capacity) for routes in self.kinds])[:-1])
        prices = [routes.price(part) for routes, part in zip(self.kinds, parts, strict=True)]
        matrix = self._matrix(prices)
        for root, toward in self.sets:
            parents = cheapest_tree(matrix.T if toward else matrix, root)
            if parents is None:
                yield (root, toward), None, np.inf
                continue
            arcs = tuple(_arcs(parents.tolist(), root, toward=toward))
            usage = self._usage(arcs, prices) * self._alike(root)
            yield (root, toward), PackedTree(root, toward, arcs, usage), float(usage @ lengths)

    def _matrix(self, prices: Sequence[Floats]) -> Floats:
        """Return what arcs cost: between machines, by the cheapest ports of both."""
        own = [(prices[kind], self.kinds[kind].fabric.ranks) for kind in self.order]
        if len(own) == 1:
            return prices[0]
        leaves = np.concatenate([price[:local, local:].min(axis=1) for price, local in own])
        entries = np.concatenate([price[local:, :local].min(axis=0) for price, local in own])
        matrix: Floats = leaves[:, None] + entries[None, :]
        for start, (price, local) in zip(self.starts, own, strict=False):
            matrix[start : start + local, start : start + local] = price[:local, :local]
        return matrix

    def _usage(self, arcs: Sequence[Step], prices: Sequence[Floats]) -> Floats:
        """Return how often the links of each place are crossed."""
        steps: list[list[Step]] = [[] for _ in self.kinds]
        for sender, receiver in arcs:
            from_, to = self.machine[sender], self.machine[receiver]
            one, other = sender - self.starts[from_], receiver - self.starts[to]
            if from_ == to:
                steps[self.order[from_]].append((one, other))
                continue
            leaving, entering = self.order[from_], self.order[to]
            local, there = self.kinds[leaving].fabric.ranks, self.kinds[entering].fabric.ranks
            steps[leaving].append((one, local + int(prices[leaving][one, local:].argmin())))
            steps[entering].append((there + int(prices[entering][there:, other].argmin()), other))
        return np.concatenate(
            [
                routes.usage(own) if own else np.zeros(len(routes.fabric.capacity))
                for routes, own in zip(self.kinds, steps, strict=True)
            ]
        )


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


def pack_trees(kinds: Sequence[Routes], order: Sequence[int], collective: str, *, root: int = 0) -> TreePacking | None:
    """Return the trees that carry most together; None if some rank cannot be reached.

    Args:
        kinds: the ways between ranks and ports of a machine, for each kind of machine.
        order: the kind of each machine, in the order of the ranks; one machine for a broadcast or reduce.
        collective: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "reduce".
        root: of a broadcast or reduce.
    """
    problem = _Problem(kinds, order, collective, root)
    capacity = problem.capacity
    trees: list[PackedTree] = []
    seen: set[object] = set()
    limit, unsolved = np.inf, ""
    best = _Solution(np.zeros(0), 0.0, np.zeros(len(capacity)), dict.fromkeys(problem.sets, np.inf))
    for _ in range(_MAX_ROUNDS):
        lengths = lengths_at(best.prices, capacity)
        costs, added = {}, False
        for key, tree, cost in problem.cheapest(lengths):
            if tree is None:
                return None
            costs[key] = cost
            mark = (key, tree.arcs, tree.usage.tobytes())
            if cost < best.worth[key] and mark not in seen:
                seen.add(mark)
                trees.append(tree)
                added = True
        least = min(
            sum(costs[one] for one in rate) / gain for rate, gain in zip(problem.rates, problem.gains, strict=True)
        )
        limit = min(limit, float(lengths @ capacity / least))
        if limit <= CLOSE * best.total or not added:
            break
        solved = _solve(problem, trees, capacity)
        if isinstance(solved, str):
            unsolved = solved
            best = best if best.total else _even(problem, trees, best)
            break
        best = solved
    used = [
        replace(tree, weight=float(weight))
        for tree, weight in zip(trees, best.weights, strict=False)  # after the last solution more may have come
        if weight > 0
    ]
    return TreePacking(tuple(used), best.total * problem.factor, limit * problem.factor, best.prices, unsolved)


@dataclass(frozen=True, slots=True)
class _Solution:
    """The trees' weights, the sum of rates, the price of each link, and the worth of a tree of each set."""

    weights: Floats
    total: float
    prices: Floats
    worth: Mapping[_Set, float]


def _even(problem: _Problem, trees: Sequence[PackedTree], before: _Solution) -> _Solution:
    """Return the first round's trees, which are one of each set, with one weight for all."""
    rate = 1 / float(np.max(sum(tree.usage for tree in trees) / problem.capacity))
    return replace(before, weights=np.full(len(trees), rate), total=float(problem.gains.sum()) * rate)


def _solve(problem: _Problem, trees: Sequence[PackedTree], capacity: Floats) -> _Solution | str:
    """Return the trees that carry most within the capacities; else why there is no solution."""
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
    gains = np.concatenate([problem.gains, np.zeros(len(trees))])
    most = np.concatenate([capacity[rows] / unit, np.zeros(len(sets))])
    solved = maximise(gains, np.concatenate([limits, needs]), most)
    if isinstance(solved, str):
        return solved
    prices = np.zeros(len(capacity))
    prices[rows] = solved.prices[: len(rows)]
    worth = {key: float(solved.prices[len(rows) + at]) for key, at in place.items()}
    weights = solved.values[rates:] * unit
    over = max(1.0, float(np.max(usage @ weights / capacity)))
    return _Solution(weights / over, float(problem.gains @ solved.values[:rates]) * unit / over, prices, worth)
