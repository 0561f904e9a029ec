"""A better order for the ranks of a group: those of a host together, and hosts so that a ring rarely leaves a leaf.

Engines that know the network only as addresses, such as Gloo, pass data on in the order of the ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricd.graph.placement import placement
from fabricd.model.placement import Place
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_hosts import Hosts
from fabricd.plan.order import rank_order
from fabricd.plan.order.from_map import rank_place

#: Beyond this, ordering takes longer than ranks should wait for their plan; ``fabricctl order`` takes its time.
_MAX_HOSTS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOrder:
    """An order of ranks; the ranks as they are where nothing is gained."""

    order: tuple[int, ...] = ()  #: by new rank, the rank as it is; () leaves all
    because: str = ""


def order_of(hosts: Hosts, nodes: Mapping[str, Snapshot]) -> GroupOrder:
    """Return a better order of a group's ranks. Rank 0 stays.

    Args:
        hosts: where the ranks are.
        nodes: snapshots by node_id, of the daemons that are known.
    """
    if not 1 < len(hosts.places) <= _MAX_HOSTS:
        return GroupOrder()
    known = {place.node_id: nodes[place.node_id] for place in hosts.places if place.node_id in nodes}
    stands = placement(known)
    ranks = []
    for rank in range(len(hosts.host_of)):
        place = hosts.places[hosts.place_of[rank]]
        ranks.append(rank_place(rank, place.name, stands.get(place.node_id, Place(node=place.name)), ""))
    found = rank_order(ranks)
    if not found.moved:
        return GroupOrder()
    fewer = [f"{one.level}: {one.before} to {one.after}" for one in found.crossings if one.after < one.before]
    gain = f"crossings of {', '.join(fewer)}" if fewer else "those of each host together"
    return GroupOrder(order=found.order, because=f"another order of ranks would be better: {gain}")
