"""Which ports can talk to which: from the nodes' own facts by rules (assumed), and from measurements (measured).

No rule proves that two ports reach each other; some facts prove that they do not. Every network says which facts
put its ports together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.graph.networks_fabric import efa_networks, infiniband_networks, nvlink_networks, roce_networks
from fabricd.graph.networks_ip import ip_networks
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Rejected
from fabricd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """Networks of some nodes, and the ports that belong to none, with the reason."""

    networks: tuple[Network, ...]
    rejected: tuple[Rejected, ...]  #: by "node_id/port"

    def of(self, node_id: str) -> list[tuple[Network, NetworkPort]]:
        """Return the networks that a node is on, with its ports there."""
        return [(net, port) for net in self.networks for port in net.ports if port.node == node_id]


def find_networks(nodes: Mapping[str, Snapshot], measurements: Sequence[Measurement] = ()) -> NetworkMap:
    """Return the networks that join some nodes' ports.

    Args:
        nodes: snapshots by node_id.
        measurements: what active probes found; they turn assumed into measured.
    """
    ethernet, rejected = ip_networks(nodes)
    infiniband, refused = infiniband_networks(nodes)
    networks = [
        *nvlink_networks(nodes),
        *infiniband,
        *roce_networks(nodes, ethernet),
        *efa_networks(nodes, ethernet),
        *ethernet,
    ]
    verified = tuple(replace(network, verified=_verified(network, measurements)) for network in networks)
    return NetworkMap(networks=verified, rejected=(*rejected, *refused))


def measurement_between(
    measurements: Iterable[Measurement], network: Network, a: NetworkPort, b: NetworkPort
) -> Measurement | None:
    """Return the freshest measurement of a network between two of its ports, taken from either side."""
    ends = {(a.node, a.interface), (b.node, b.interface)}
    found = [
        one
        for one in measurements
        if one.network == network.name
        and {(one.src_node, one.src_interface), (one.dst_node, one.dst_interface)} == ends
    ]
    return min(found, key=lambda one: one.age_seconds, default=None)


def _verified(network: Network, measurements: Sequence[Measurement]) -> Evidence:
    """A network is measured once transfers that worked join all of its ports."""
    group = {(port.node, port.interface): number for number, port in enumerate(network.ports)}
    for one in measurements:
        a, b = (one.src_node, one.src_interface), (one.dst_node, one.dst_interface)
        if one.network == network.name and one.reachable and a in group and b in group:
            old, new = group[b], group[a]
            group = {port: new if number == old else number for port, number in group.items()}
    joined = len(group) > 1 and len(set(group.values())) == 1
    return Evidence.MEASURED if joined else network.verified
