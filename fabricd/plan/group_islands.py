"""Islands: nodes of a job that something faster joins than what joins all of them."""

from collections.abc import Mapping

from fabricd.graph.networks import find_networks
from fabricd.model.path import Transport
from fabricd.model.plan import Island
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group_hosts import Hosts

#: What makes an island, the best first.
_INSIDE = (Transport.NVLINK, Transport.INFINIBAND, Transport.ROCE, Transport.EFA, Transport.SLINGSHOT)


def find_islands(nodes: Mapping[str, Snapshot]) -> list[tuple[str, Transport, list[str]]]:
    """Return networks past TCP with the nodes that they join, in order of their first node.

    Each node is in the best one that it shares with another; one that shares none is an island of its own, by the name
    of the node and SHM. None, where all nodes are on one, or each is alone.

    Args:
        nodes: by name, in order.
    """
    networks = find_networks(nodes).networks
    left = list(nodes)
    found: list[tuple[str, Transport, list[str]]] = []
    for transport in _INSIDE:
        for network in networks:
            on_it = {port.node for port in network.ports}
            here = [node for node in left if node in on_it]
            if network.transport is transport and len(here) > 1:
                found.append((network.name, transport, here))
                left = [node for node in left if node not in on_it]
    if not found or (len(found) == 1 and not left):
        return []
    place = {node: number for number, node in enumerate(nodes)}
    alone = [(node, Transport.SHM, [node]) for node in left]
    return sorted([*found, *alone], key=lambda island: place[island[2][0]])


def islands_of(hosts: Hosts) -> tuple[Island, ...]:
    """Return the islands of a group, by their leaders: the lowest ranks, which alone would talk between islands."""
    ranks_of = {place.name: place.ranks for place in hosts.places}
    found = []
    for network, transport, names in find_islands({place.name: place.facts for place in hosts.places}):
        ranks = tuple(sorted(rank for name in names for rank in ranks_of[name]))
        found.append(Island(network=network, transport=transport, ranks=ranks, leader=ranks[0]))
    return tuple(sorted(found, key=lambda island: island.leader))
