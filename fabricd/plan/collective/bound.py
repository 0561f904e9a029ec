"""What no schedule can exceed on these links, by collective, as bus bandwidth.

* all-gather: the data of the ranks in any set must leave it. Reduce-scatter: the same on the links turned round.
* all-reduce: something must cross every set that parts the ranks; and where the network does not reduce, ``2 (p - 1)``
  times the message leaves the parts of any partition of the ranks into ``p`` parts: single ranks, machines, islands.
* broadcast and reduce: from (to) the root, the smallest cut.

Each is a cut that exists, so each is a bound whatever was overlooked. The all-gather cut is reached by trees
(Edmonds; Zhao et al. 2024). A cluster is machines joined by a network that is not a limit itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fabricd.plan.collective.cuts import Cuts
from fabricd.plan.collective.fabric import Fabric
from fabricd.units import format_bandwidth

_MAX_PASSES = 20
#: Islands are sought in so many coarseness levels at most.
_MAX_LEVELS = 8
#: Finding islands takes a cut for each rank and level.
_MAX_RANKS_FOR_ISLANDS = 16

Set = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound and what makes it.

    Attributes:
        busbw: GB/s.
        kind: index of the machine's kind that it is found on.
        links: of the cut, numbers in the fabric of that kind; empty for a bound by partition.
        because: in words.
    """

    busbw: float
    kind: int
    links: tuple[int, ...]
    because: str


@dataclass(frozen=True, slots=True)
class Kind:
    """Machines that are all alike."""

    fabric: Fabric
    count: int


def bound(kinds: Sequence[Kind], collective: str, *, root_kind: int = 0, root: int = 0) -> Bound:
    """Return the least of all bounds known.

    Args:
        kinds: the cluster; fabrics with ports, unless it is one machine.
        collective: "all_reduce", "all_gather", "reduce_scatter", "broadcast" or "reduce".
        root_kind: which kind the root of a broadcast or reduce is of.
        root: which rank of its machine it is.
    """
    turned = collective in ("reduce_scatter", "reduce")
    cuts = [Cuts(kind.fabric, reverse=turned) for kind in kinds]
    if collective in ("broadcast", "reduce"):
        found = list(_from_root(kinds, cuts, root_kind, root))
    elif collective == "all_reduce":
        back = [Cuts(kind.fabric, reverse=True) for kind in kinds]
        found = [*_parting(kinds, cuts), *_parting(kinds, back), *_partitions(kinds, cuts), *_partitions(kinds, back)]
    else:
        found = list(_gathering(kinds, cuts))
    return min(found, key=lambda one: one.busbw)


def reducing_bound(kinds: Sequence[Kind], *, network: bool = False) -> Bound:
    """Return what bounds an all-reduce if the switches within a machine reduce.

    The message then crosses every cut once each way.

    Args:
        kinds: the cluster.
        network: whether the network between machines reduces, too.
    """
    found: list[Bound] = []
    for turned in (False, True):
        cuts = [Cuts(kind.fabric, reverse=turned) for kind in kinds]
        found += _parting(kinds, cuts)
        if not network and not _alone(kinds):
            found.append(_by_machines(kinds, cuts))
    return min(found, key=lambda one: one.busbw)


def ring_bound(kind: Kind, *, alone: bool) -> float:
    """Return what rings cannot exceed on a machine, GB/s: each leaves and enters every set of ranks."""
    found = []
    for turned in (False, True):
        cuts = Cuts(kind.fabric, reverse=turned)
        first, *others = cuts.ranks.tolist()
        ends = (
            [([first], [other]) for other in others] if alone else [([rank], [cuts.rest]) for rank in (first, *others)]
        )
        found += [cuts.leaving(cuts.smallest(*pair)) for pair in ends]
    return min(found, default=np.inf)


def _ranks(kinds: Sequence[Kind]) -> int:
    return sum(kind.fabric.ranks * kind.count for kind in kinds)


def _alone(kinds: Sequence[Kind]) -> bool:
    return sum(kind.count for kind in kinds) == 1


def _of_cut(cuts: Cuts, inside: Set, busbw: float, kind: int, because: str) -> Bound:
    links = cuts.crossed(inside)
    return Bound(busbw, kind, tuple(links.tolist()), because)


def _gathering(kinds: Sequence[Kind], cuts: Sequence[Cuts]) -> Iterator[Bound]:
    total = _ranks(kinds)
    for number, cut in enumerate(cuts):
        if _alone(kinds):
            trials: list[tuple[list[int], int, int]] = [([], int(rank), 0) for rank in cut.ranks]
        else:
            elsewhere = total - len(cut.ranks)
            trials = [([], cut.rest, 0), *(([cut.rest], int(rank), elsewhere) for rank in cut.ranks)]
        rate, inside, held = _slowest(cut, trials)
        why = f"the data of {held} ranks must leave them over {_gb(rate * held)}"
        yield _of_cut(cut, inside, (total - 1) * rate, number, why)


def _slowest(cuts: Cuts, trials: Sequence[tuple[list[int], int, int]]) -> tuple[float, Set, int]:
    """Return the least of what leaves a set by ranks in it; a set, and its ranks.

    Args:
        cuts: of one machine.
        trials: what is in the set, what is not, and how many ranks of other machines are in it.
    """
    first, *others = cuts.ranks.tolist()
    alone = cuts.smallest([first], [*others, cuts.rest])
    best = (cuts.leaving(alone), alone, 1)
    for _ in range(_MAX_PASSES):
        before = best[0]
        for inside, outside, elsewhere in trials:
            found = cuts.smallest(inside, [outside], each=best[0])
            held = cuts.held(found) + elsewhere
            if held and cuts.leaving(found) / held < best[0] * (1 - 1e-9):
                best = (cuts.leaving(found) / held, found, held)
        if best[0] == before:
            break
    return best


def _parting(kinds: Sequence[Kind], cuts: Sequence[Cuts]) -> Iterator[Bound]:
    """Bound an all-reduce by what every rank must be told at least: the whole message once."""
    total = _ranks(kinds)
    for number, cut in enumerate(cuts):
        if _alone(kinds):
            first, *others = cut.ranks.tolist()
            sets = [cut.smallest([first], [other]) for other in others]
        else:
            sets = [cut.smallest([int(rank)], [cut.rest]) for rank in cut.ranks]
        inside = min(sets, key=cut.leaving)
        width = cut.leaving(inside)
        why = f"{cut.held(inside)} ranks are joined to the others by {_gb(width)}"
        yield _of_cut(cut, inside, 2 * (total - 1) / total * width, number, why)


def _partitions(kinds: Sequence[Kind], cuts: Sequence[Cuts]) -> Iterator[Bound]:
    total = _ranks(kinds)
    beyond = [[] if _alone(kinds) else [cut.rest] for cut in cuts]
    single = [
        _sum_of_parts(cut, [[int(rank)] for rank in cut.ranks], rest) for cut, rest in zip(cuts, beyond, strict=True)
    ]
    width = sum(kind.count * one for kind, one in zip(kinds, single, strict=True))
    yield Bound(width / total, 0, (), f"{total} ranks together send {_gb(width)}, and each must send what it reduces")
    if not _alone(kinds):
        yield _by_machines(kinds, cuts)
    elif total <= _MAX_RANKS_FOR_ISLANDS:
        for parts in _islands(cuts[0]):
            width = _sum_of_parts(cuts[0], parts, [])
            busbw = (total - 1) / total * width / (len(parts) - 1)
            yield Bound(busbw, 0, (), f"{len(parts)} islands of ranks together send {_gb(width)}")


def _by_machines(kinds: Sequence[Kind], cuts: Sequence[Cuts]) -> Bound:
    total, nodes = _ranks(kinds), sum(kind.count for kind in kinds)
    width = sum(
        kind.count * _sum_of_parts(cut, [cut.ranks.tolist()], [cut.rest]) for kind, cut in zip(kinds, cuts, strict=True)
    )
    busbw = (total - 1) / total * width / (nodes - 1)
    return Bound(busbw, 0, (), f"{nodes} machines together send {_gb(width)}, and each must send what it reduces")


def _sum_of_parts(cuts: Cuts, parts: Sequence[Sequence[int]], beyond: Sequence[int]) -> float:
    """Return what leaves the parts, all summed up."""
    ranks = set(cuts.ranks.tolist())
    return sum(cuts.leaving(cuts.smallest(part, [*sorted(ranks - set(part)), *beyond])) for part in parts)


def _islands(cuts: Cuts) -> Iterator[list[list[int]]]:
    """Yield partitions of the ranks: those joined by more than some width, for each width that parts them anew."""
    nodes: list[int] = cuts.ranks.tolist()
    parent = dict.fromkeys(nodes, nodes[0])
    width: dict[int, float] = {}
    for at, node in enumerate(nodes[1:], start=1):  # Gusfield's tree of smallest cuts
        inside = cuts.smallest([node], [parent[node]])
        width[node] = cuts.leaving(inside)
        for other in nodes[at + 1 :]:
            if parent[other] == parent[node] and inside[other]:
                parent[other] = node
    for least in sorted(set(width.values()))[:_MAX_LEVELS]:
        top = {nodes[0]: nodes[0]}
        for node in nodes[1:]:
            top[node] = node if width[node] <= least * (1 + 1e-9) else top[parent[node]]
        parts: dict[int, list[int]] = {}
        for node in nodes:
            parts.setdefault(top[node], []).append(node)
        if 1 < len(parts) < len(nodes):
            yield list(parts.values())


def _from_root(kinds: Sequence[Kind], cuts: Sequence[Cuts], root_kind: int, root: int) -> Iterator[Bound]:
    for number, cut in enumerate(cuts):
        start = int(cut.ranks[root])
        own = number == root_kind
        pairs = [(start, int(rank)) for rank in cut.ranks if own and rank != start]
        if not _alone(kinds):
            pairs += [(start, cut.rest)] if own else []
            pairs += [(cut.rest, int(rank)) for rank in cut.ranks if not own or kinds[number].count > 1]
        for one, other in pairs:
            inside = cut.smallest([one], [other])
            width = cut.leaving(inside)
            yield _of_cut(cut, inside, width, number, f"the smallest cut from the root carries {_gb(width)}")


def _gb(width: float) -> str:
    return format_bandwidth(width * 1e9)
