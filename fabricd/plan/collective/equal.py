"""The same rings with one speed for all: NCCL's channels share a speed, and there are at most so many of them.

A ring is repeated to weight it. Several ways, each better on other machines, and the best is kept: round the packing's
weights; add one known ring after another where it loads the fullest link least; and where that is not enough, route
rings anew around what is full already, or, where each ring takes long to find, seek whole numbers of known ones.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array

from fabricd.plan.collective.columns import Column, cheapest_columns, same_segments
from fabricd.plan.collective.fabric import Floats, Routes
from fabricd.plan.collective.orders import TABLE_PATH
from fabricd.plan.collective.rings import Packing

#: NCCL's search ends with at most so many channels.
MAX_CHANNELS = 32
#: This much of the packing is enough.
GOOD = 0.985
#: A share of the packing that counts as all of it.
_AS_MUCH = 1 - 1e-4
#: So many rings are few enough not to look for fewer in every way.
_FEW = 8
_MAX_COUNTS = 10
_PASSES = 6
_STARTS = 3
_STEEPNESS = 12
_STRAIN_STEEPNESS = 30
#: How long whole numbers of rings are sought: by nodes of the search tree, not by the clock.
_SEARCH = {"node_limit": 50, "mip_rel_gap": 0.002, "presolve": False}


@dataclass(frozen=True, slots=True)
class Channels:
    """Rings of one speed.

    Attributes:
        columns: one for each channel, or pair of channels; the same one may be there several times.
        speed: of each channel, GB/s.
    """

    columns: tuple[Column, ...]
    speed: float

    @property
    def count(self) -> int:
        """Number of channels."""
        return sum(column.value for column in self.columns)

    @property
    def total(self) -> float:
        """What all carry, GB/s."""
        return self.speed * self.count


def at_one_speed(routes: Routes, packing: Packing, known: Sequence[Column] = (), *, pairs: bool) -> dict[int, Channels]:
    """Return the best channels found, by their number; empty if there is no ring.

    Args:
        routes: as for the packing.
        packing: rings of any speed.
        known: further rings, as NCCL's own.
        pairs: all in pairs. NCCL makes every second machine change places within each pair of channels, or within
            none: where one ring crosses from port to port, all channels come in pairs.
    """
    capacity = routes.fabric.capacity
    best: dict[int, Channels] = {}
    if not packing.columns:
        return best
    pool = list({same_segments(column): column for column in (*packing.columns, *known, *packing.pool)}.values())
    if pairs:
        pool, known = [_paired(column) for column in pool], [_paired(column) for column in known]
        halves = [weight * column.value / 2 for column, weight in zip(packing.columns, packing.weights, strict=True)]
        packing = replace(packing, columns=tuple(map(_paired, packing.columns)), weights=tuple(halves))
    else:
        pool, known = ([column for column in some if column.value == 1] for some in (pool, known))
    used = [*packing.columns, *known]
    for columns in (*_rounded(packing), *_greedy(used, capacity), known):
        _keep(best, columns, capacity)
    most = max((one.total for one in best.values()), default=0.0)
    if most >= GOOD * packing.total:
        return best
    # New routes are quick to find for few ranks, and better there; for more it is the other way round.
    few = routes.fabric.ranks <= TABLE_PATH
    more = _rerouted(routes, packing, pairs=pairs) if few else _whole(packing, pool, capacity, most)
    for columns in more:
        _keep(best, columns, capacity)
        if max(one.total for one in best.values()) >= GOOD * packing.total:
            break
    return best


def levelled(packing: Packing, known: Sequence[Column], capacity: Floats) -> Packing:
    """Return few rings whose widths are multiples of one speed, where those carry as much; else the packing.

    A linear program spreads widths at random over rings that are equally good. Rings that change from port to port
    are used only if the packing has such.

    Args:
        packing: rings of any speed.
        known: further rings, as NCCL's own.
        capacity: of the links.
    """
    if not packing.columns:
        return packing
    crosses = not all(column.straight for column in packing.columns)
    pool = [*(column for column in (*known, *packing.pool) if crosses or column.straight), *packing.columns]
    best: dict[int, Channels] = {}
    for columns in (*_rounded(packing), *_greedy(pool, capacity)):
        _keep(best, columns, capacity)
    if len(packing.columns) > _FEW:
        for columns in _whole(packing, pool, capacity, _AS_MUCH * packing.total, tries=4):
            _keep(best, columns, capacity)
    enough = [one for one in best.values() if one.total >= _AS_MUCH * packing.total]
    if not enough:
        return packing
    chosen = min(enough, key=lambda one: one.count)
    times = Counter(map(same_segments, chosen.columns))
    first = {same_segments(column): column for column in chosen.columns}
    if len(first) > len(packing.columns):
        return packing
    weights = tuple(chosen.speed * times[key] for key in first)
    return replace(packing, columns=tuple(first.values()), weights=weights, total=chosen.total)


def _paired(column: Column) -> Column:
    """Return a ring twice as one column; a pair as it is."""
    return column if column.value > 1 else Column(column.segments * 2, 2 * column.usage)


def _keep(best: dict[int, Channels], columns: Iterable[Column], capacity: Floats) -> None:
    chosen = tuple(columns)
    if not chosen:
        return
    load = sum((column.usage for column in chosen), start=np.zeros(len(capacity)))
    made = Channels(chosen, 1 / float(np.max(load / capacity)))
    if made.count <= MAX_CHANNELS and (made.count not in best or best[made.count].speed < made.speed):
        best[made.count] = made


def _rounded(packing: Packing) -> Iterator[list[Column]]:
    """Yield the packing's rings as often as a speed goes into their weights, for speeds that divide one of them."""
    weights = np.array(packing.weights)
    values = np.array([column.value for column in packing.columns])
    speeds = sorted({weight / part for weight in packing.weights for part in range(1, MAX_CHANNELS + 1)})
    seen = set()
    for speed in speeds:
        counts = np.floor(weights / speed + 1e-9).astype(int)
        if counts @ values <= MAX_CHANNELS and tuple(counts) not in seen:
            seen.add(tuple(counts))
            yield [column for column, count in zip(packing.columns, counts, strict=True) for _ in range(count)]


def _greedy(pool: Sequence[Column], capacity: Floats) -> Iterator[list[Column]]:
    """Yield one list for each number of channels."""
    loads = np.stack([column.usage / capacity for column in pool])
    values = np.array([column.value for column in pool])
    chosen: list[Column] = []
    load, count = np.zeros(len(capacity)), 0
    while True:
        after = (load + loads) / (count + values)[:, None]
        fullest = after.max(axis=1)
        near = np.flatnonzero(fullest <= fullest.min() * (1 + 1e-9))
        pick = int(near[np.argmin((after[near] ** 4).sum(axis=1))])
        load, count = load + loads[pick], count + int(values[pick])
        if count > MAX_CHANNELS:
            return
        chosen = [*chosen, pool[pick]]
        yield chosen


def _whole(
    packing: Packing, pool: Sequence[Column], capacity: Floats, least: float, *, tries: int = 12
) -> Iterator[list[Column]]:
    """Yield the most rings of a speed that fit, for each speed that may carry more than ``least`` and what came before.

    At a speed a link holds a whole number of channels. By the packing's prices that bounds what it can carry in all, so
    that few speeds need to be tried.
    """
    usage = np.stack([column.usage for column in pool], axis=1)
    rows = np.flatnonzero(usage.any(axis=1))
    values = np.array([column.value for column in pool])
    for speed, most in _speeds(packing, capacity)[:tries]:
        if most <= least:
            return
        room = np.floor(capacity[rows] / speed + 1e-9)
        limits = [LinearConstraint(csr_array(usage[rows]), ub=room), LinearConstraint(values, ub=MAX_CHANNELS)]
        found = milp(-values, constraints=limits, integrality=np.ones(len(values)), options=_SEARCH)
        if found.x is None:
            continue
        counts = np.round(found.x).astype(int)
        least = max(least, float(counts @ values) * speed)
        yield [column for column, count in zip(pool, counts.tolist(), strict=True) for _ in range(count)]


def _speeds(packing: Packing, capacity: Floats) -> list[tuple[float, float]]:
    """Return speeds that divide some link that is full, with what rings of each can carry at most; best first."""
    tight = np.unique(capacity[packing.prices > 0].round(9))
    speeds = np.unique((tight[:, None] / np.arange(1, MAX_CHANNELS + 1)).round(9))
    held = np.floor(capacity / speeds[:, None] + 1e-9) * speeds[:, None]
    most = np.minimum(held @ packing.prices, MAX_CHANNELS * speeds)
    order = np.lexsort((-speeds, -most.round(6)))  # of equals the fewest channels
    return [(float(speeds[at]), float(most[at])) for at in order]


def _counts(routes: Routes, packing: Packing) -> list[int]:
    """Return numbers of channels at which some link that is full would be filled by whole channels."""
    capacity = routes.fabric.capacity
    tight = np.flatnonzero(packing.prices > 0)
    filling = {
        int(packing.total * part / capacity[link] + 1e-9)
        for link in tight.tolist()
        for part in range(1, MAX_CHANNELS + 1)
    }
    useful = sorted((count for count in filling if 1 <= count <= MAX_CHANNELS), reverse=True)
    return list(dict.fromkeys([*useful[: _MAX_COUNTS - 3], 32, 24, 16]))


def _rerouted(routes: Routes, packing: Packing, *, pairs: bool) -> Iterator[list[Column]]:
    for start in range(_STARTS):
        for count in _counts(routes, packing)[:_MAX_COUNTS]:
            random = np.random.default_rng((count, start))
            chosen: list[Column] = []
            load = np.zeros(len(routes.fabric.links))
            while sum(column.value for column in chosen) < count:
                column = _around(routes, load, random, pairs=pairs)
                chosen.append(column)
                load += column.usage
            for _ in range(_PASSES):
                if not _improve(routes, chosen, load, random, pairs=pairs):
                    break
            yield chosen


def _around(routes: Routes, load: Floats, random: np.random.Generator, *, pairs: bool) -> Column:
    """Return a ring, or a pair of them, around what is full."""
    capacity = routes.fabric.capacity
    relative = load / capacity
    fullest = float(relative.max())
    lengths = np.exp(_STEEPNESS * (relative / fullest - 1)) / capacity if fullest else 1 / capacity
    priced = cheapest_columns(routes, lengths * (1 + random.random(len(lengths)) / 1000), straight=not pairs)
    best = min(priced.columns, key=lambda column: float(column.usage @ lengths) / column.value)
    return _paired(best) if pairs else best


def _improve(routes: Routes, chosen: list[Column], load: Floats, random: np.random.Generator, *, pairs: bool) -> bool:
    """Route those that use the fullest links anew, each if that eases the load; tell whether any was."""
    relative = load / routes.fabric.capacity
    fullest = float(relative.max())
    full = relative >= fullest * (1 - 1e-9)
    using = [float(column.usage[full].sum()) for column in chosen]
    eased = False
    for at in sorted((at for at, uses in enumerate(using) if uses), key=lambda at: -using[at]):
        rest = load - chosen[at].usage
        new = _around(routes, rest, random, pairs=pairs)
        before, after = (_strain(one / routes.fabric.capacity / fullest) for one in (load, rest + new.usage))
        if after < before * (1 - 1e-9):
            chosen[at] = new
            load[:] = rest + new.usage
            eased = True
    return eased


def _strain(relative: Floats) -> float:
    """Return what counts the fullest links most, and those next to them, too."""
    return float(np.exp(_STRAIN_STEEPNESS * (np.minimum(relative, 10) - 1)).sum())
