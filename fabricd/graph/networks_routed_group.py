"""RoCE ports that share no subnet, as networks that all of some nodes are on: where their routes lead to each other.

Large RoCE fabrics are built so: every link to a leaf switch is a subnet, and each port has a routing table of its own.
That routers pass it on is assumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from fabricd.graph.networks_fabric import ROCE_PREFIX
from fabricd.graph.networks_rails import rail_ports
from fabricd.graph.networks_routed import BY_DEFAULT, MAX_PORTS, ROUTED_PREFIX, Led, Routes, Targets
from fabricd.model.network import Network, NetworkPort, Rail, role_rank
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_names

_FOR_DATA = role_rank("data")
#: Subnets that a name or a reason tells.
_SHOWN = 3


class End(NamedTuple):
    """A port of a node, as routes know it."""

    interface: str
    address: str


class Joined(NamedTuple):
    """Whether routes lead from each port to each of the other nodes'."""

    all: bool
    by_default: bool = False  #: some only by default routes


def joined(ends: Sequence[Sequence[End]], routes: Sequence[Routes]) -> Joined:
    """Tell whether packets from each port leave by it to each port of the other nodes.

    Args:
        ends: by node.
        routes: likewise.
    """
    addresses = [end.address for own in ends for end in own]
    targets = Targets(addresses)
    if len(targets) < len(addresses):
        return Joined(all=False)  # an address that two have leads to one of them
    by_default = False
    for own, known in zip(ends, routes, strict=True):
        places = [targets.place(end.address) for end in own]
        for end, led in zip(own, known.to_all(targets, [end.address for end in own]), strict=True):
            ways = _but(led, places)
            if any(way.interface != end.interface for way in ways):
                return Joined(all=False)
            by_default = by_default or any(way.by_default for way in ways)
    return Joined(all=True, by_default=by_default)


def _but(led: list[Led], places: Sequence[int]) -> set[Led]:
    """Return the different ways among some, but for those at some places."""
    first = next((at for at in range(len(led)) if at not in places), None)
    if first is None:
        return set()
    for at in places:
        led[at] = led[first]
    # Most often there is one way for all, and to count is ten times as quick as to hash.
    return {led[first]} if led.count(led[first]) == len(led) else set(led)


class _Port(NamedTuple):
    port: NetworkPort
    end: End
    subnet: str


def routed_roce(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> list[Network]:
    """Return networks that join RoCE ports of all nodes over routers.

    One, where every port leads to every other node's; else one for each rail whose ports do so. None, where they do
    not, or routes are not known. Ports that are for something else than data, that software makes or that have
    no GID of RoCE v2 do not count, nor default routes of the main table between addresses of the internet.

    Args:
        networks: of the nodes, by their facts.
        nodes: by node_id.
    """
    ports = _ports(networks, nodes)
    routes = {name: Routes(snapshot) for name, snapshot in nodes.items()}
    for version in (4, 6):
        found = {
            name: [one for one in own if ip_address(one.end.address).version == version] for name, own in ports.items()
        }
        if len(nodes) > 1 and all(found.values()):
            by_version = [*_whole(found, routes)] or [*_rails(found, routes, nodes)]
            if by_version:
                return by_version
    return []


def _ports(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> dict[str, list[_Port]]:
    """Return the ports that routes may join, by node."""
    subnets = {
        (name, address.address): (interface.name, address.prefix_length)
        for name, snapshot in nodes.items()
        for interface in snapshot.interfaces
        for address in interface.addresses
    }
    found: dict[str, list[_Port]] = {name: [] for name in nodes}
    known: set[tuple[str, str, bool]] = set()  # of several addresses of a family, the first counts
    for network in networks:
        if network.transport is not Transport.ROCE or role_rank(network.role) > _FOR_DATA:
            continue
        for port in network.ports:
            own, key = found[port.node], (port.node, port.interface, ":" in port.address)
            on = subnets.get((port.node, port.address))
            if on is None or key in known or len(own) >= MAX_PORTS or not _routable(port, nodes[port.node]):
                continue
            known.add(key)
            interface, length = on
            subnet = str(ip_network(f"{port.address}/{length}", strict=False))
            own.append(_Port(port, End(interface, port.address), subnet))
    return found


def _routable(port: NetworkPort, snapshot: Snapshot) -> bool:
    """Tell whether routers know what to do with a port's packets: RoCE v1 has no IP header."""
    if port.virtual:
        return False
    types = {
        gid.type for name, _, one in snapshot.hca_ports() if name == port.interface for gid in one.gids if gid.type
    }
    return not types or "roce-v2" in types


def _whole(ports: Mapping[str, Sequence[_Port]], routes: Mapping[str, Routes]) -> Iterator[Network]:
    found = joined([[one.end for one in own] for own in ports.values()], list(routes.values()))
    members = [one for own in ports.values() for one in own]
    if found.all and not _by_internet(members, found):
        yield _network(members, found)


def _by_internet(members: Sequence[_Port], found: Joined) -> bool:
    return found.by_default and any(ip_address(one.end.address).is_global for one in members)


def _rails(
    ports: Mapping[str, Sequence[_Port]], routes: Mapping[str, Routes], nodes: Mapping[str, Snapshot]
) -> Iterator[Network]:
    by_rail: dict[int, dict[str, _Port]] = {}
    for node, own in ports.items():
        rails = {port.name: port.rail for port in rail_ports(nodes[node])}
        for one in own:
            if (rail := rails.get(one.port.interface)) is not None:
                by_rail.setdefault(rail, {}).setdefault(node, one)
    for rail, members in sorted(by_rail.items()):
        if len(members) < len(nodes):
            continue
        here = [members[node] for node in nodes]
        found = joined([[one.end] for one in here], list(routes.values()))
        if found.all and not _by_internet(here, found):
            reason = f"routes join port {rail} of the {len(nodes)} nodes, by PCI address, and not all ports with all"
            network = _network(here, found)
            yield replace(network, rail=Rail(index=rail, reason=reason)) if len(by_rail) > 1 else network


def _network(ports: Sequence[_Port], found: Joined) -> Network:
    subnets = sorted({one.subnet for one in ports})
    return Network(
        name=ROCE_PREFIX + routed_name(subnets),
        transport=Transport.ROCE,
        ports=tuple(one.port for one in ports),
        reason=f"no subnet joins all nodes, but routes lead from each to each: {format_names(subnets, _SHOWN)}",
        unverified=(BY_DEFAULT,) if found.by_default else (),
    )


def routed_name(subnets: Sequence[str]) -> str:
    """Return the name of a network that routes join out of some subnets."""
    return ROUTED_PREFIX + "+".join(subnets[:_SHOWN]) + ("+..." if len(subnets) > _SHOWN else "")
