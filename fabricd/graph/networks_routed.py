"""Ways between two nodes that share no subnet: by their routes. That a router passes it on is assumed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

#: Ports of a node that are looked at.
MAX_PORTS = 64
#: Routes of a node that are looked at; routers of the internet have a million.
MAX_ROUTES = 1024

_BY_IP = frozenset({Transport.ETHERNET, Transport.SLINGSHOT})


def routed_networks(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> Iterator[Network]:
    """Yield a network for each pair of ports such that each node's routes lead to the other by them.

    Ports on a subnet that the two share are left out: that is the better way, and routes follow it.

    Args:
        networks: those of the two nodes, by their facts.
        nodes: the two, by node_id.
    """
    (ours, a), (theirs, b) = nodes.items()
    by_ip = [network for network in networks if network.transport in _BY_IP]
    apart = [network for network in by_ip if len({port.node for port in network.ports}) == 1]
    ports = [(network, port) for network in apart for port in network.ports]
    near_ones = [one for one in ports if one[1].node == ours][:MAX_PORTS]
    far_ones = [one for one in ports if one[1].node == theirs][:MAX_PORTS]
    there, back = _Routes(a if near_ones and far_ones else None), _Routes(b if near_ones and far_ones else None)
    leaves = {port.address: there.to(port.address) for _, port in far_ones}
    returns = {port.address: back.to(port.address) for _, port in near_ones}
    for near_net, near in near_ones:
        for far_net, far in far_ones:
            (out, by), (home, by_too) = leaves[far.address], returns[near.address]
            if out == near.interface and home == far.interface:
                yield _routed((near_net, far_net), (near, far), by_default=0 in (by, by_too))


def _routed(nets: tuple[Network, Network], ports: tuple[NetworkPort, NetworkPort], *, by_default: bool) -> Network:
    near, far = ports
    private = [port.address for port in ports if not ip_address(port.address).is_global]
    internet = len(private) < len(ports)
    reason = f"no subnet joins the two, but the routes of both lead by {near.interface} and {far.interface}"
    unverified = []
    if internet and private:
        unverified.append(
            f"{private[0]} is a private address: from outside it is reached only where something translates"
        )
    elif by_default and not internet:
        unverified.append("only default routes lead from the one to the other; nothing shows that they arrive")
    # On the internet the speed of the own port says nothing.
    members = [replace(port, speed_bytes_per_second=None) if internet else port for port in ports]
    return Network(
        name=f"routed:{nets[0].name}+{nets[1].name}",
        transport=Transport.INTERNET if internet else Transport.ETHERNET,
        ports=tuple(members),
        role=next((network.role for network in nets if network.role != "data"), "data"),
        reason=f"{reason}, over public addresses" if internet else reason,
        unverified=tuple(unverified),
    )


class _Routes:
    """The routes of a node, read once."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._routes = [
            (network, -(route.metric or 0), route.interface)
            for route in (snapshot.routes if snapshot is not None else ())[:MAX_ROUTES]
            if (network := _destination(route.destination, route.family)) is not None
        ]

    def to(self, address: str) -> tuple[str, int]:
        """Return the interface that packets to an address leave by, "" for none, and the length of the prefix."""
        target = ip_address(address)
        found = [
            (network.prefixlen, metric, interface)
            for network, metric, interface in self._routes
            if network.version == target.version and target in network
        ]
        length, _, interface = max(found, default=(0, 0, ""), key=lambda one: one[:2])
        return interface, length


def _destination(text: str, family: int) -> IPv4Network | IPv6Network | None:
    everything = "::/0" if family == 6 else "0.0.0.0/0"
    try:
        return ip_network(everything if text == "default" else text, strict=False)
    except ValueError:
        return None
