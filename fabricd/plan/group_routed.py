"""Networks that join the hosts of a group over routers, by the routes of each host, and by the rules of its ports."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from ipaddress import ip_address, ip_network

from fabricd.graph.networks_ip import unusable
from fabricd.graph.networks_rails import rail_ports
from fabricd.graph.networks_routed import BY_DEFAULT, Routes, Targets
from fabricd.graph.networks_routed_group import End, joined, routed_name
from fabricd.graph.snapshot import VIRTUAL_KINDS
from fabricd.model.device import NetInterface
from fabricd.model.network import NetworkPort
from fabricd.model.path import Transport
from fabricd.plan.group_candidate import DEVICE, Candidate, slowest
from fabricd.plan.group_hosts import Place, first_address
from fabricd.units import format_names


def routed(places: Sequence[Place], past: Collection[str] = ()) -> list[Candidate]:
    """Return choices of one interface at each place such that the routes lead from each to each other.

    Fabrics are built so whose hosts have a network of their own each, up to the first switch.

    Args:
        places: where the ranks are.
        past: addresses at the first place that need no routes.
    """
    starts = [port for port in _ways_out(places[0]) if port.address not in past]
    if not starts:
        return []
    routes = [Routes(place.facts) for place in places]
    others = [_ways_out(place) for place in places[1:]]
    rails = [{name: port.rail for port in rail_ports(place.facts) for name in port.interfaces} for place in places]
    found: dict[tuple[NetworkPort, ...], Candidate] = {}
    for start in starts:
        ports = [start]
        for own, known, rail in zip(others, routes[1:], rails[1:], strict=True):
            back = [one for one in own if known.to(start.address, one.address).interface == one.interface]
            if not back:
                break
            # With a routing table for each of them several lead back: the one of the same rail is meant.
            ports.append(min(back, key=partial(_unlike, start.interface, rails[0].get(start.interface), rail)))
        if len(ports) == len(places) and (candidate := _candidate(places, ports, routes)):
            found[tuple(ports)] = candidate
    return list(found.values())


def _unlike(start: str, rail: int | None, rails: Mapping[str, int], port: NetworkPort) -> tuple[bool, bool]:
    return rails.get(port.interface) != rail, port.interface != start


def _candidate(places: Sequence[Place], ports: Sequence[NetworkPort], routes: Sequence[Routes]) -> Candidate | None:
    """Return what routes make of a port at each place; None where they do not join all."""
    ends = [[End(port.interface, port.address)] for port in ports]
    way = joined(ends, routes)
    if not way.all:
        return None
    subnets = sorted({_subnet(place, port) for place, port in zip(places, ports, strict=True)})
    doubt = BY_DEFAULT if way.by_default else ""
    reason = f"no subnet joins all hosts, but routes lead from each to each: {format_names(subnets)}"
    return Candidate(
        name=routed_name(subnets),
        transport=Transport.ETHERNET,
        ports=tuple((port,) for port in ports),
        virtual=any(port.virtual for port in ports),
        role="data",
        reason="; ".join(filter(None, (reason, doubt))),
        speed_bytes_per_second=slowest(ports),
        by_source=not joined(ends, [one.main() for one in routes]).all,
        hidden=_hidden(places, ports, routes),
        doubt=doubt,
    )


def _hidden(places: Sequence[Place], ports: Sequence[NetworkPort], routes: Sequence[Routes]) -> str:
    """Return why UCX would not take these ports, ``""`` if it would.

    UCX 1.20 takes all of a host's tables for one, whatever rules say (``ucs_netlink_is_best_route``).
    """
    targets = Targets(port.address for port in ports)
    for place, own, known in zip(places, ports, routes, strict=True):
        best, by_own = known.longest(targets), known.longest(targets, own.interface)
        here = targets.place(own.address)
        away = [at for at, length in enumerate(best) if at != here and by_own[at] < length]
        if away:
            other = next(port for port in ports if targets.place(port.address) == away[0])
            return (
                f"at {place.name}, UCX asks no rules and finds a longer prefix to {other.node} than by {own.interface}"
            )
    return ""


def _ways_out(place: Place) -> list[NetworkPort]:
    return [_port(place, one) for one in place.facts.interfaces if _leads_out(place, one)]


def _port(place: Place, interface: NetInterface) -> NetworkPort:
    return NetworkPort(
        node=place.name,
        interface=interface.name,
        address=first_address(interface, 4),
        speed_bytes_per_second=interface.speed_bytes_per_second,
        virtual=interface.kind in VIRTUAL_KINDS,
    )


def _leads_out(place: Place, interface: NetInterface) -> bool:
    by_name = {one.name: one for one in place.facts.interfaces}
    address = first_address(interface, 4)
    fine = bool(address) and not unusable(interface, by_name) and bool(DEVICE.fullmatch(interface.name))
    return fine and not ip_address(address).is_link_local


def _subnet(place: Place, port: NetworkPort) -> str:
    interface = next(one for one in place.facts.interfaces if one.name == port.interface)
    length = next(one.prefix_length for one in interface.addresses if one.address == port.address)
    return str(ip_network(f"{port.address}/{length}", strict=False))
