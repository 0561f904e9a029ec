"""Ways between two nodes that share no subnet: by their routes. That a router passes it on is assumed.

Where an address has a table of its own, by a rule, its packets go by that: so each of several rails has its gateway.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from fabricd.model.routing import Route
from fabricd.model.snapshot import Snapshot

#: Ports of a node that are looked at.
MAX_PORTS = 64
#: Routes of a node that are looked at; routers of the internet have a million.
MAX_ROUTES = 1024
#: Likewise rules by source address, and routes of the table of each.
MAX_RULES, MAX_RULE_ROUTES = 64, 64
#: What the name of a network begins with that routes join.
ROUTED_PREFIX = "routed:"
#: Said of ways that only default routes show.
BY_DEFAULT = "only default routes lead from the one to the other; nothing shows that they arrive"
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
        unverified.append(BY_DEFAULT)
    # On the internet the speed of the own port says nothing.
    members = [replace(port, speed_bytes_per_second=None) if internet else port for port in ports]
    return Network(
        name=f"{ROUTED_PREFIX}{nets[0].name}+{nets[1].name}",
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


class Targets:
    """Addresses that ways are asked for at once: in order, so that a route is for a stretch of them.

    Args:
        addresses: of both families.
    """

    def __init__(self, addresses: Iterable[str]) -> None:
        self._keys = sorted({(one.version, int(one)) for one in map(ip_address, addresses)})

    def __len__(self) -> int:
        return len(self._keys)

    def place(self, address: str) -> int:
        """Return where an address that is among them stands."""
        one = ip_address(address)
        return bisect_left(self._keys, (one.version, int(one)))

    def within(self, network: IPv4Network | IPv6Network) -> slice:
        """Return the stretch that is in a network."""
        first, last = int(network.network_address), int(network.broadcast_address)
        return slice(
            bisect_left(self._keys, (network.version, first)), bisect_right(self._keys, (network.version, last))
        )


class Routes:
    """The routes of a node, each read once.

    Args:
        snapshot: of the node.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
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

    def main(self) -> "Routes":
        """Return those of what comes from no address in particular: of the main table alone."""
        return Routes(replace(self._snapshot, routing_rules=())) if self._rules else self

    def longest(self, targets: Targets, interface: str = "") -> list[int]:
        """Return the length of the longest prefix to each target, of all tables as if they were one; -1 for none.

        Args:
            targets: where to.
            interface: of routes by this one alone; "" of all.
        """
        found = [-1] * len(targets)
        routes = [route for table in (self._main, *(table for _, table in self._rules)) for route in table.routes]
        for network, _, by in sorted(routes, key=lambda one: one[0].prefixlen):
            if not interface or by == interface:
                at = targets.within(network)
                found[at] = [network.prefixlen] * (at.stop - at.start)
        return found

    def to_all(self, targets: Targets, sources: Iterable[str]) -> Iterator[list[Led]]:
        """Yield for each source how packets from it leave to each of the targets, as ``to`` says."""
        by_main = [Led()] * len(targets)
        self._main.lay_over(by_main, targets)
        for source in sources:
            led, own = by_main.copy(), ip_address(source)
            for rule_sources, table in reversed(self._rules):
                if own.version == rule_sources.version and own in rule_sources:
                    table.lay_over(led, targets, alone=True)
            yield led


class _Table:
    """A routing table, and what it answered."""

    def __init__(self, routes: Sequence[Route]) -> None:
        found = [
            (network, -(route.metric or 0), route.interface)
            for route in routes
            if route.interface and (network := _destination(route.destination, route.family)) is not None
        ]
        #: The best first: of the longest prefix, of the least metric, of equal ones the first.
        self.routes = sorted(found, key=lambda one: (one[0].prefixlen, one[1]), reverse=True)
        self._answers: dict[str, Led] = {}

    def to(self, address: str) -> Led:
        if address not in self._answers:
            self._answers[address] = self._find(address)
        return self._answers[address]

    def lay_over(self, led: list[Led], targets: Targets, *, alone: bool = False) -> None:
        """Enter what this table has a way to over what others say; ``alone``: their sources have it to themselves."""
        for network, _, interface in reversed(self.routes):
            at = targets.within(network)
            if at.start < at.stop:
                led[at] = [Led(interface, by_default=not alone and network.prefixlen == 0)] * (at.stop - at.start)

    def _find(self, address: str) -> Led:
        target = ip_address(address)
        for network, _, interface in self.routes:
            if network.version == target.version and target in network:
                return Led(interface, by_default=network.prefixlen == 0)
        return Led()


def _destination(text: str, family: int) -> IPv4Network | IPv6Network | None:
    everything = "::/0" if family == 6 else "0.0.0.0/0"
    try:
        return ip_network(everything if text == "default" else text, strict=False)
    except ValueError:
        return None
