"""Where ranks are, and how often a ring over nodes leaves an NVLink domain, a leaf, a spine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabricd.errors import InputError

#: Outermost first. What a group of ranks shares at one level costs most to leave at the first.
LEVELS = ("zone", "fabric", "core", "spine", "block", "domain", "leaf", "rack")
MAX_RANKS = 1 << 17


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """Where one rank is. ``""`` is "not known" and counts as one more place: two unknown ones are not told apart."""

    rank: int
    node: str
    domain: str = ""  #: NVLink domain that spans nodes
    rack: str = ""
    leaf: str = ""  #: switch that the node hangs on
    block: str = ""  #: scalable unit, or block of a scheduler
    spine: str = ""  #: switch above the leaf
    core: str = ""  #: switch above the spine
    fabric: str = ""  #: network that is left only by something slower
    zone: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node: the ranks on it, and where it is.

    Attributes:
        node: its name.
        ranks: ascending.
        levels: number of the group that it belongs to at each of ``LEVELS``.
    """

    node: str
    ranks: tuple[int, ...]
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """How often a ring leaves a group of one level."""

    level: str
    groups: int  #: that there are
    before: int
    after: int
    least: int  #: what no order can beat, of this level alone


def sites_of(places: Sequence[RankPlace]) -> list[Site]:
    """Return the nodes, in order of their first rank.

    Args:
        places: of the ranks 0 to n - 1, in any order.

    Raises:
        InputError: not the ranks 0 to n - 1, or one node in two places.
    """
    ordered = sorted(places, key=lambda place: place.rank)
    if not ordered or len(ordered) > MAX_RANKS or [place.rank for place in ordered] != list(range(len(ordered))):
        raise InputError(f"{len(ordered)} ranks, expected 0 to n - 1, each once", hint=f"n is at most {MAX_RANKS}")
    numbers: list[dict[str, int]] = [{} for _ in LEVELS]
    ranks: dict[str, list[int]] = {}
    levels: dict[str, tuple[int, ...]] = {}
    for place in ordered:
        named = [getattr(place, level) for level in LEVELS]
        own = tuple(known.setdefault(name, len(known)) for known, name in zip(numbers, named, strict=True))
        if levels.setdefault(place.node, own) != own:
            raise InputError(f"node {place.node!r} is in two places: rank {place.rank} says {' '.join(named)}")
        ranks.setdefault(place.node, []).append(place.rank)
    return [Site(node=node, ranks=tuple(found), levels=levels[node]) for node, found in ranks.items()]


def grouped(sites: Sequence[Site]) -> list[int]:
    """Return the numbers of the sites such that groups stay together, level within level, the coarsest outermost.

    Groups and sites keep the order of their first rank, so that no more is moved than must be.
    """
    counts = [len({site.levels[level] for site in sites}) for level in range(len(LEVELS))]
    coarse_first = sorted(range(len(LEVELS)), key=lambda level: (counts[level], level))
    first: list[dict[tuple[int, ...], int]] = [{} for _ in LEVELS]
    keys = []
    for number, site in enumerate(sites):
        key: tuple[int, ...] = ()
        path: tuple[int, ...] = ()
        for depth, level in enumerate(coarse_first):
            path = (*path, site.levels[level])
            key = (*key, first[depth].setdefault(path, number))
        keys.append((*key, number))
    return sorted(range(len(sites)), key=keys.__getitem__)


def crossings(sites: Sequence[Site], tour: Sequence[int]) -> tuple[int, ...]:
    """Return how often a closed ring over sites leaves a group, by level."""
    counts = [0] * len(LEVELS)
    if len(tour) < 2:
        return tuple(counts)
    previous = sites[tour[-1]].levels
    for number in tour:
        own = sites[number].levels
        if own != previous:
            for level, (a, b) in enumerate(zip(previous, own, strict=True)):
                counts[level] += a != b
        previous = own
    return tuple(counts)


def crossing_report(sites: Sequence[Site], before: Sequence[int], after: Sequence[int]) -> tuple[Crossing, ...]:
    """Return the crossings of the levels that tell nodes apart, outermost first."""
    counted = zip(LEVELS, crossings(sites, before), crossings(sites, after), strict=True)
    found = []
    for level, (name, old, new) in enumerate(counted):
        groups = len({site.levels[level] for site in sites})
        if groups > 1:
            found.append(Crossing(level=name, groups=groups, before=old, after=new, least=groups))
    return tuple(found)


def weights(sites: Sequence[Site]) -> Mapping[int, int]:
    """Return by level what leaving a group costs: one crossing more outside outweighs all that a ring has inside.

    Levels at which all nodes are the same are left out.
    """
    found: dict[int, int] = {}
    weight = 1
    for level in reversed(range(len(LEVELS))):
        if len({site.levels[level] for site in sites}) > 1:
            found[level] = weight
            weight *= len(sites) + 1
    return found
