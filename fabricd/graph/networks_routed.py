"""Ways between two nodes that share no subnet: by their routes. That a router passes it on is assumed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

#: Ports of a node that are looked at.
MAX_PORTS = 64

_BY_IP = frozenset({Transport.ETHERNET, Transport.SLINGSHOT})


def routed_networks(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> Iterator[Network]:
    """Yield a network for each pair of ports such that each node's routes lead to the other by them.

    Nothing, where the two share a subnet: that is the better way, and routes follow it.

    Args:
        networks: those of the two nodes, by their facts.
        nodes: the two, by node_id.
    """
    (ours, a), (theirs, b) = nodes.items()
    by_ip = [network for network in networks if network.transport in _BY_IP]
    if any({ours, theirs} <= {port.node for port in network.ports} for network in by_ip):
        return
    ports = [(network, port) for network in by_ip for port in network.ports]
    near_ones = [one for one in ports if one[1].node == ours][:MAX_PORTS]
    far_ones = [one for one in ports if one[1].node == theirs][:MAX_PORTS]
    there = {port.address: _leaves_by(a, port.address) for _, port in far_ones}
    back = {port.address: _leaves_by(b, port.address) for _, port in near_ones}
    for near_net, near in near_ones:
        for far_net, far in far_ones:
            if there[far.address] == near.interface and back[near.address] == far.interface:
                yield _routed(near_net, near, far_net, far)


def _routed(near_net: Network, near: NetworkPort, far_net: Network, far: NetworkPort) -> Network:
    public = all(ip_address(port.address).is_global for port in (near, far))
    reason = f"no subnet joins the two, but the routes of both lead by {near.interface} and {far.interface}"
    # On the internet the speed of the own port says nothing.
    ports = [replace(port, speed_bytes_per_second=None) if public else port for port in (near, far)]
    return Network(
        name=f"routed:{near_net.name}+{far_net.name}",
        transport=Transport.INTERNET if public else Transport.ETHERNET,
        ports=tuple(ports),
        role=next((network.role for network in (near_net, far_net) if network.role != "data"), "data"),
        reason=f"{reason}, between public addresses" if public else reason,
    )


def _leaves_by(snapshot: Snapshot, address: str) -> str:
    """Return the interface by which a node's routes send packets to an address, ``""`` for none."""
    target = ip_address(address)
    found = [
        (network.prefixlen, -(route.metric or 0), route.interface)
        for route in snapshot.routes
        if (network := _destination(route.destination, route.family)) is not None
        and network.version == target.version
        and target in network
    ]
    return max(found, default=(0, 0, ""), key=lambda one: one[:2])[2]


def _destination(text: str, family: int) -> IPv4Network | IPv6Network | None:
    everything = "::/0" if family == 6 else "0.0.0.0/0"
    try:
        return ip_network(everything if text == "default" else text, strict=False)
    except ValueError:
        return None
