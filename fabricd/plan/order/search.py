"""Better rings over many nodes: moves that make a ring cheaper, tried in a seeded order, within a budget of steps.

The budget is in steps and not in time, so that every machine finds the same ring.
"""

import random
from collections.abc import Sequence

from fabricd.plan.order.cost import EdgeCost

_SEED = 1
#: Longest run of nodes that is moved to another place.
_RUN = 4
#: Steps between two looks at which edges are slow, at least; and how often a move begins at one of those.
_LOOK, _AT_SLOW_EDGES = 8, 0.75
#: How far a near place is.
_NEAR = 32
#: Share of moves that turn a stretch round.
_TURNS = 0.7


def improve(
    tour: Sequence[int], cost: EdgeCost, *, steps: int, free: Sequence[int] | None = None, polish: bool = True
) -> list[int]:
    """Return a ring that costs no more: runs of nodes moved, stretches turned round (2-opt, Or-opt).

    Most moves begin at an edge that is slower than the threshold, and one that only moves the fault elsewhere counts
    as no worse: that is how a ring without such edges is found where there are few (Posa, 1976).

    Args:
        tour: to start from.
        cost: of its edges.
        steps: moves to try.
        free: places whose nodes may be exchanged, in groups of equal ``free`` value; None if all may stand anywhere.
            A negative value pins a place.
        polish: shorten the time, too; else it is done when no edge is slower than the threshold.
    """
    found = list(tour)
    if len(found) < 4 and free is None:
        return found  # up to three nodes, every closed ring has the same edges
    rng = random.Random(_SEED)  # noqa: S311 - no secret: the same moves everywhere
    cost.timed = polish
    if free is not None:
        _exchange(found, cost, steps, rng, free)
    else:
        _rearrange(found, cost, steps, rng, polish=polish)
    cost.timed = True
    return found


def _rearrange(tour: list[int], cost: EdgeCost, steps: int, rng: random.Random, *, polish: bool) -> None:
    size = len(tour)
    slow: list[int] = []
    for step in range(steps):
        if step % max(_LOOK, size // 8) == 0:
            slow = [place for place in range(size) if cost.slow_edges(cost.edge(tour[place - 1], tour[place]))]
            if not slow and not polish:
                return
        start = rng.choice(slow) if slow and rng.random() < _AT_SLOW_EDGES else rng.randrange(size)
        if rng.random() < _TURNS:
            _turn(tour, cost, start, _other(start, size, rng))
        else:
            _move_run(tour, cost, rng)


def _other(place: int, size: int, rng: random.Random) -> int:
    """Return another place, half of the time a near one: nodes of a group stand together."""
    if rng.random() < 0.5:
        return rng.randrange(size)
    step = rng.randint(1, min(_NEAR, size - 1))
    return (place + (step if rng.random() < 0.5 else -step)) % size


def _turn(tour: list[int], cost: EdgeCost, one: int, other: int) -> None:
    """Turn the stretch between two edges round, each named by the place behind it, unless that costs more."""
    size = len(tour)
    first, last = min(one, other), max(one, other) - 1
    if last <= first or last - first >= size - 2:
        return
    before, after = tour[first - 1], tour[(last + 1) % size]
    old = cost.edge(before, tour[first]) + cost.edge(tour[last], after)
    new = cost.edge(before, tour[last]) + cost.edge(tour[first], after)
    if new <= old:
        tour[first : last + 1] = tour[first : last + 1][::-1]


def _move_run(tour: list[int], cost: EdgeCost, rng: random.Random) -> None:
    """Put some nodes in a row between two others, unless that costs more."""
    size = len(tour)
    length = rng.randint(1, min(_RUN, size - 3))
    start = rng.randrange(size - length + 1)
    run = tour[start : start + length]
    left, right = tour[start - 1], tour[(start + length) % size]
    behind = (start + length + _other(0, size - length, rng)) % size
    if not _outside(behind, start, length) or behind == (start - 1) % size:
        return
    a, b = tour[behind], tour[(behind + 1) % size]
    gone = cost.edge(left, run[0]) + cost.edge(run[-1], right) + cost.edge(a, b)
    joined = cost.edge(left, right)
    straight = joined + cost.edge(a, run[0]) + cost.edge(run[-1], b)
    turned = joined + cost.edge(a, run[-1]) + cost.edge(run[0], b)
    if min(straight, turned) > gone:
        return
    rest = tour[:start] + tour[start + length :]
    at = (behind if behind < start else behind - length) + 1
    tour[:] = rest[:at] + (run if straight <= turned else run[::-1]) + rest[at:]


def _outside(place: int, start: int, length: int) -> bool:
    return not start <= place < start + length


def _exchange(tour: list[int], cost: EdgeCost, steps: int, rng: random.Random, free: Sequence[int]) -> None:
    """Exchange nodes of two places that may be exchanged, unless that costs more."""
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(free):
        if group >= 0:
            groups.setdefault(group, []).append(place)
    movable = [places for places in groups.values() if len(places) > 1]
    choice = [place for places in movable for place in places]
    for _ in range(steps if choice else 0):
        one = rng.choice(choice)
        other = rng.choice(groups[free[one]])
        if one == other:
            continue
        old = _around(tour, cost, one, other)
        tour[one], tour[other] = tour[other], tour[one]
        if _around(tour, cost, one, other) > old:
            tour[one], tour[other] = tour[other], tour[one]


def _around(tour: Sequence[int], cost: EdgeCost, one: int, other: int) -> int:
    size = len(tour)
    edges = {one, (one + 1) % size, other, (other + 1) % size}
    return sum(cost.edge(tour[place - 1], tour[place]) for place in edges)
