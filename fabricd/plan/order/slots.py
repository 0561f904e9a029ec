"""Which node may stand at which place of the new order, when some ranks are to keep their number.

Ranks of a node stay together. Without fixed ranks the nodes may stand in any order. With some, the places have the
sizes that the nodes have in the order of their first ranks, and a node takes a place of its size.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fabricd.errors import InputError
from fabricd.plan.order.places import Site


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Places of the order, by number.

    Attributes:
        start: first new rank of each place; empty without fixed ranks, for then it follows from the order.
        pinned: site that must stand at a place.
    """

    start: tuple[int, ...] = ()
    pinned: dict[int, int]

    def allowed(self, sites: Sequence[Site]) -> list[list[int]]:
        """Return by place the sites that may stand there."""
        if not self.pinned:
            return [[0], *([*range(1, len(sites))] for _ in sites[1:])]  # a ring has no beginning
        taken = set(self.pinned.values())
        return [
            [self.pinned[place]]
            if place in self.pinned
            else [
                number
                for number, site in enumerate(sites)
                if number not in taken and len(site.ranks) == len(sites[place].ranks)
            ]
            for place in range(len(sites))
        ]

    def free(self, sites: Sequence[Site]) -> list[int] | None:
        """Return by place the size of the nodes that may be exchanged there, -1 where pinned; None without pins."""
        if not self.pinned:
            return None
        return [-1 if place in self.pinned else len(site.ranks) for place, site in enumerate(sites)]

    def as_it_was(self, count: int) -> list[list[int]]:
        """Return the order of the first ranks, if pins allow it: those of ranks dealt out over the nodes may not."""
        before = list(range(count))
        return [before] if all(before[place] == site for place, site in self.pinned.items()) else []

    def fill(self, sites: Sequence[Site], wanted: Sequence[int]) -> list[int]:
        """Return the sites by place, in the wanted order as far as pins and sizes allow."""
        if not self.pinned:
            return list(wanted)
        taken = set(self.pinned.values())
        waiting: dict[int, list[int]] = {}
        for number in reversed(wanted):
            if number not in taken:
                waiting.setdefault(len(sites[number].ranks), []).append(number)
        return [
            self.pinned[place] if place in self.pinned else waiting[len(site.ranks)].pop()
            for place, site in enumerate(sites)
        ]


def slots_of(sites: Sequence[Site], fixed: Collection[int]) -> Slots:
    """Return the places of an order in which some ranks keep their number.

    Raises:
        InputError: a rank that there is not, or fixed ranks that cannot stay while the ranks of a node are together.
    """
    count = sum(len(site.ranks) for site in sites)
    unknown = sorted(rank for rank in fixed if not 0 <= rank < count)
    if unknown:
        raise InputError(f"no rank {unknown[0]} to keep in its place", hint=f"ranks are 0 to {count - 1}")
    if not fixed:
        return Slots(pinned={})
    start, begin = [], 0
    for site in sites:
        start.append(begin)
        begin += len(site.ranks)
    owner = {rank: number for number, site in enumerate(sites) for rank in site.ranks}
    place_of = [place for place, site in enumerate(sites) for _ in site.ranks]
    pinned: dict[int, int] = {}
    for rank in sorted(fixed):
        place, number = place_of[rank], owner[rank]
        fits = len(sites[place].ranks) == len(sites[number].ranks)
        elsewhere = next((other for other, one in pinned.items() if one == number and other != place), None)
        if not fits or pinned.setdefault(place, number) != number or elsewhere is not None:
            raise InputError(
                f"rank {rank} of {sites[number].node} cannot keep its number while the ranks of each node are together",
                hint="fix fewer ranks, or number the ranks node by node",
            )
    return Slots(start=tuple(start), pinned=pinned)


def rank_list(sites: Sequence[Site], tour: Sequence[int], fixed: Collection[int]) -> list[int]:
    """Return by new rank the rank that it was: node by node, in their old order but for fixed ones."""
    order: list[int] = []
    for number in tour:
        ranks = sites[number].ranks
        begin, end = len(order), len(order) + len(ranks)
        stay = {rank for rank in ranks if rank in fixed and begin <= rank < end}
        others = iter([rank for rank in ranks if rank not in stay])
        order += [place if place in stay else next(others) for place in range(begin, end)]
    return order
