"""Ways between two nodes that share no subnet: by their routes. That a router passes it on is assumed.

Where an address has a table of its own, by a rule, its packets go by that: so each of several rails has its gateway.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from fabricd.model.device import Route
from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

#: Ports of a node that are looked at.
MAX_PORTS = 64
#: Routes of a node that are looked at; routers of the internet have a million.
MAX_ROUTES = 1024
#: Likewise rules by source address, and routes of the table of each.
MAX_RULES, MAX_RULE_ROUTES = 64, 64
#: What comes after the main table is for what that has no route to.
_MAIN_PRIORITY = 32766

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
    if not near_ones or not far_ones:
        return
    there, back = Routes(a), Routes(b)
    for near_net, near in near_ones:
        for far_net, far in far_ones:
            out, home = there.to(far.address, near.address), back.to(near.address, far.address)
            if out.interface == near.interface and home.interface == far.interface:
                yield _routed((near_net, far_net), (near, far), by_default=out.by_default or home.by_default)


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


class Led(NamedTuple):
    """How packets to an address leave a node."""

    interface: str = ""  #: "": they do not
    by_default: bool = False  #: only as all that no other route is for; not by a table that their source has alone


class Routes:
    """The routes of a node, each read once.

    Args:
        snapshot: of the node.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._main = _Table(snapshot.routes[:MAX_ROUTES])
        rules = [rule for rule in snapshot.routing_rules[:MAX_RULES] if rule.priority < _MAIN_PRIORITY]
        self._rules = [
            (source, _Table(rule.routes[:MAX_RULE_ROUTES]))
            for rule in sorted(rules, key=lambda one: one.priority)
            if (source := _destination(rule.source, rule.family)) is not None
        ]

    def to(self, address: str, source: str) -> Led:
        """Return how packets leave.

        Args:
            address: where they go.
            source: of the node's addresses the one that they come from: it may have a table of its own.
        """
        if self._rules:
            own = ip_address(source)
            for sources, table in self._rules:
                if own.version == sources.version and own in sources and (found := table.to(address)).interface:
                    return Led(found.interface)
        return self._main.to(address)


class _Table:
    """A routing table, and what it answered."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [
            (network, -(route.metric or 0), route.interface)
            for route in routes
            if (network := _destination(route.destination, route.family)) is not None
        ]
        self._answers: dict[str, Led] = {}

    def to(self, address: str) -> Led:
        if address not in self._answers:
            self._answers[address] = self._find(address)
        return self._answers[address]

    def _find(self, address: str) -> Led:
        target = ip_address(address)
        found = [
            (network.prefixlen, metric, interface)
            for network, metric, interface in self._routes
            if network.version == target.version and target in network
        ]
        if not found:
            return Led()
        length, _, interface = max(found, key=lambda one: one[:2])
        return Led(interface, by_default=length == 0)


def _destination(text: str, family: int) -> IPv4Network | IPv6Network | None:
    everything = "::/0" if family == 6 else "0.0.0.0/0"
    try:
        return ip_network(everything if text == "default" else text, strict=False)
    except ValueError:
        return None
