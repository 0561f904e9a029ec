"""Which ports can talk to which: from the nodes' own facts by rules (assumed), and from measurements (measured).

No rule proves that two ports reach each other; some facts prove that they do not. Every network says which facts
put its ports together.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.graph.networks_efa import efa_networks
from fabricd.graph.networks_fabric import ROCE_PREFIX, infiniband_networks, roce_networks
from fabricd.graph.networks_gpudirect import gpudirect_tcp_networks
from fabricd.graph.networks_ip import ip_networks
from fabricd.graph.networks_node import NodePorts
from fabricd.graph.networks_nvlink import nvlink_networks
from fabricd.graph.networks_rails import with_rails
from fabricd.graph.networks_roles import by_gpus
from fabricd.graph.networks_site import as_the_site_says
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Rejected, Transport
from fabricd.model.snapshot import Snapshot

_BY_TCP = frozenset({Transport.ETHERNET, Transport.SLINGSHOT, Transport.INTERNET})


@dataclass(frozen=True, slots=True)
class NetworkMap:
    """Networks of some nodes, and the ports that belong to none, with the reason."""

    networks: tuple[Network, ...]
    rejected: tuple[Rejected, ...]  #: by "node_id/port"

    def of(self, node_id: str) -> list[tuple[Network, NetworkPort]]:
        """Return the networks that a node is on, with its ports there."""
        return [(net, port) for net in self.networks for port in net.ports if port.node == node_id]


def find_networks(nodes: Mapping[str, Snapshot], measurements: Sequence[Measurement] = ()) -> NetworkMap:
    """Return the networks that join some nodes' ports, with their rails.

    Args:
        nodes: snapshots by node_id.
        measurements: what active probes found; they turn assumed into measured.
    """
    return find_networks_of(
        {node_id: NodePorts(node_id, snapshot) for node_id, snapshot in nodes.items()}, measurements
    )


def find_networks_of(ports: Mapping[str, NodePorts], measurements: Sequence[Measurement] = ()) -> NetworkMap:
    """Return the networks that join some nodes' ports, with their rails; arguments as of ``networks_of``."""
    found = networks_of(ports, measurements)
    places = {node_id: one.places for node_id, one in ports.items()} if len(ports) > 1 else {}
    return NetworkMap(networks=tuple(with_rails(found.networks, places)), rejected=found.rejected)


def networks_of(nodes: Mapping[str, NodePorts], measurements: Sequence[Measurement] = ()) -> NetworkMap:
    """Return the networks that join some nodes' ports; nothing is said of rails.

    Args:
        nodes: by node_id.
        measurements: as of ``find_networks``.
    """
    snapshots = {node_id: one.snapshot for node_id, one in nodes.items()}
    ethernet = ip_networks(port for one in nodes.values() for port in one.ip[0])
    ethernet = as_the_site_says(ethernet, snapshots)  # RoCE and EFA follow their IP networks, with their names
    infiniband = infiniband_networks(port for one in nodes.values() for port in one.infiniband[0])
    efa = {node_id: one.efa for node_id, one in nodes.items() if one.efa}
    networks = [
        *nvlink_networks(port for one in nodes.values() for port in one.nvlink),
        *as_the_site_says(infiniband, snapshots),
        *roce_networks_of(nodes, ethernet),
        *efa_networks(efa, {node_id: nodes[node_id].stands_in for node_id in efa}, ethernet),
        *gpudirect_tcp_networks({node_id: one.gpudirect for node_id, one in nodes.items()}, ethernet),
        *ethernet,
    ]
    networks = by_gpus(networks, {node_id: one.surroundings for node_id, one in nodes.items()})
    if measurements:
        networks = [replace(network, verified=_verified(network, measurements)) for network in networks]
    rejected = [one for node in nodes.values() for one in node.ip[1]]
    refused = [one for node in nodes.values() for one in node.infiniband[1]]
    return NetworkMap(networks=tuple(networks), rejected=(*rejected, *refused))


def roce_networks_of(nodes: Mapping[str, NodePorts], ethernet: Sequence[Network]) -> list[Network]:
    """Return the RoCE networks over some IP networks of nodes, by node_id."""
    zones = {node_id: zone for node_id, one in nodes.items() if (zone := one.roce_zone)}
    return roce_networks({node_id: one.roce for node_id, one in nodes.items()}, ethernet, zones)


def measurement_between(
    measurements: Iterable[Measurement], network: Network, a: NetworkPort, b: NetworkPort
) -> Measurement | None:
    """Return the freshest measurement of a network between two of its ports, taken from either side."""
    ends = {(a.node, a.address), (b.node, b.address)}
    found = [one for one in measurements if _ends(one) == ends and is_of(one, network)]
    return min(found, key=lambda one: one.age_seconds, default=None)


def _ends(one: Measurement) -> set[tuple[str, str]]:
    return {(one.src_node, one.src_address), (one.dst_node, one.dst_address)}


def is_of(one: Measurement, network: Network) -> bool:
    """Tell whether a measurement is one of this network. What was sent by TCP says nothing of RDMA, nor that of TCP.

    Its name for the network is the asker's; between the same addresses it is the same network all the same.
    """
    return one.network == network.name or (network.transport in _BY_TCP and not one.network.startswith(ROCE_PREFIX))


def _verified(network: Network, measurements: Sequence[Measurement]) -> Evidence:
    """A network is measured once transfers that worked join all of its ports."""
    group = {(port.node, port.address): number for number, port in enumerate(network.ports)}
    for one in measurements:
        a, b = (one.src_node, one.src_address), (one.dst_node, one.dst_address)
        if one.reachable and a in group and b in group and is_of(one, network):
            old, new = group[b], group[a]
            group = {port: new if number == old else number for port, number in group.items()}
    joined = len(group) > 1 and len(set(group.values())) == 1
    return Evidence.MEASURED if joined else network.verified
