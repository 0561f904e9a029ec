"""Islands: hosts of a group that something faster joins than what joins all of them."""

from collections.abc import Sequence

from fabricd.graph.networks import find_networks
from fabricd.model.path import Transport
from fabricd.model.plan import Island
from fabricd.plan.group_hosts import Hosts, Place

#: What makes an island, the best first.
_INSIDE = (Transport.NVLINK, Transport.INFINIBAND, Transport.ROCE, Transport.EFA, Transport.SLINGSHOT)


def islands_of(hosts: Hosts) -> tuple[Island, ...]:
    """Return the islands of a group, in order of their leaders; none where all hosts are on one, or each is alone.

    A leader is the lowest rank: between islands only leaders would have to talk. Networks that are chained by hosts on
    two of them are two islands; each host is in the best one that it shares with another host of the group.
    """
    places = hosts.places
    networks = find_networks({place.name: place.facts for place in places}).networks
    left = {place.name: place for place in places}
    found: list[Island] = []
    for transport in _INSIDE:
        for network in networks:
            here = [left[node] for node in dict.fromkeys(port.node for port in network.ports) if node in left]
            if network.transport is transport and len(here) > 1:
                found.append(_island(network.name, transport, here))
                left = {name: place for name, place in left.items() if place not in here}
    if not found or (len(found) == 1 and not left):
        return ()
    alone = [_island(place.name, Transport.SHM, [place]) for place in left.values()]
    return tuple(sorted([*found, *alone], key=lambda island: island.leader))


def _island(name: str, transport: Transport, places: Sequence[Place]) -> Island:
    ranks = tuple(sorted(rank for place in places for rank in place.ranks))
    return Island(network=name, transport=transport, ranks=ranks, leader=ranks[0])
