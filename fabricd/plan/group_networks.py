"""Which networks could join the hosts of a group, and why the others could not."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address, ip_network

from fabricd.graph.networks import find_networks
from fabricd.graph.networks_ip import unusable
from fabricd.graph.networks_rails import rail_ports
from fabricd.graph.networks_routed import BY_DEFAULT, Routes
from fabricd.graph.networks_routed_group import End, joined, routed_name, routed_roce
from fabricd.graph.snapshot import VIRTUAL_KINDS
from fabricd.localview import LocalView
from fabricd.model.device import NetInterface
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Rejected, Transport
from fabricd.plan.group_hosts import Hosts, Place, first_address

#: What UCX reaches through an interface's IP address.
_BY_TCP = frozenset({Transport.ETHERNET, Transport.SLINGSHOT})
_BY_RDMA = frozenset({Transport.INFINIBAND, Transport.ROCE})
_NOT_FOR_MPI = {
    Transport.NVLINK: "NVLink carries memory of GPUs, and this engine moves memory of hosts",
    Transport.EFA: "the MPI engine is not set up for EFA; the same card's Ethernet is a candidate",
}
#: Less than this cannot be registered with an HCA by an MPI library that is to do anything.
_MEMLOCK_MIN_BYTES = 64 << 20
_MAX_REJECTED = 100
#: A fabric of this prefix may be several: isolated rails all bear it.
_DEFAULT_PREFIX = "fe80:0000:0000:0000"
#: A name that cannot be misread in UCX_NET_DEVICES.
_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A network with a port at every place."""

    name: str
    transport: Transport
    ports: tuple[tuple[NetworkPort, ...], ...]  #: by place: all that it has there, best first
    virtual: bool
    role: str
    reason: str  #: which facts put the ports together
    configured: bool = False  #: the role is the site's word
    speed_bytes_per_second: int | None = None  #: nominal, of the slowest place; None unknown
    one_fabric: bool = (
        False  #: a host's ports on it reach each other: that is known, or the facts that join them say so
    )
    routed: bool = False  #: an RDMA network over routers, where routes say so
    software: str = ""  #: "rxe0:1 is RDMA done by software on eth0"; "" for what cards do
    has_tcp_below: bool = False  #: it is such RDMA, and TCP on the interfaces below is another candidate

    @property
    def rdma(self) -> bool:
        """Whether it is used past the IP stack."""
        return self.transport in _BY_RDMA

    @property
    def ipv6(self) -> bool:
        """Whether it is used by IPv6 addresses."""
        return not self.rdma and ":" in self.ports[0][0].address


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """What could join the places, in no order, and what could not."""

    networks: tuple[Candidate, ...]
    rejected: tuple[Rejected, ...]


def find_candidates(hosts: Hosts, views: Mapping[int, LocalView]) -> Candidates:
    """Return the networks that every place has a usable port on; routed ones where no other of their kind is."""
    places = hosts.places
    found = find_networks({place.name: place.facts for place in places})
    rejected = _together(found.rejected, len(places))
    networks: list[Candidate] = []
    for network in found.networks:
        _add(_candidate(network, places, views), network, networks, rejected)
    if not any(one.transport is Transport.ROCE and not one.software for one in networks):
        refused: list[Rejected] = []
        for network in routed_roce(found.networks, {place.name: place.facts for place in places}):
            _add(_candidate(network, places, views, routed=True), network, networks, refused)
        rejected = refused + rejected
    if all(one.routed for one in networks):
        networks += routed(places)
    networks = [replace(one, has_tcp_below=_tcp_below(one, networks)) if one.software else one for one in networks]
    return Candidates(networks=tuple(networks), rejected=tuple(rejected))


def _add(found: Candidate | str, network: Network, networks: list[Candidate], rejected: list[Rejected]) -> None:
    if isinstance(found, Candidate):
        networks.append(found)
    elif len(rejected) < _MAX_REJECTED:
        rejected.append(Rejected(name=network.name, reason=found))


def _together(rejected: Iterable[Rejected], places: int) -> list[Rejected]:
    """Return one line for what every place has, e.g. ``"*/lo"``: plans go to every rank, and hosts may be many."""
    at: dict[tuple[str, str], list[str]] = {}
    for one in rejected:
        place, _, port = one.name.rpartition("/")
        at.setdefault((port, one.reason), []).append(place)
    told = [
        Rejected(
            name=f"*/{port}" if len(where) == places > 1 else _list(f"{place}/{port}" for place in where), reason=reason
        )
        for (port, reason), where in at.items()
    ]
    return told[:_MAX_REJECTED]


def _candidate(
    network: Network, places: Sequence[Place], views: Mapping[int, LocalView], *, routed: bool = False
) -> Candidate | str:
    """Return the network as a candidate, or why it is none."""
    if network.transport in _NOT_FOR_MPI:
        return _NOT_FOR_MPI[network.transport]
    if network.transport not in _BY_TCP | _BY_RDMA:
        return f"the MPI engine has no transport for {network.transport}"
    here: dict[str, list[NetworkPort]] = {}
    for port in network.ports:
        here.setdefault(port.node, []).append(port)
    without = [place.name for place in places if place.name not in here]
    if without:
        return f"{_list(without)} {'is' if len(without) == 1 else 'are'} not on it"
    at = [here[place.name] for place in places]
    rdma = network.transport in _BY_RDMA
    usable = []
    for place, ports in zip(places, at, strict=True):
        faults = {port.interface: _fault(port, place, views, rdma) for port in ports}
        fine = [port for port in ports if not faults[port.interface]]
        if not fine:
            return f"at {place.name}: " + "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        usable.append(tuple(sorted(fine, key=_port_order)))
    first = [ports[0] for ports in usable]
    return Candidate(
        name=network.name,
        transport=network.transport,
        ports=tuple(usable),
        virtual=any(port.virtual for port in first),
        role=network.role,
        configured=network.configured,
        reason="; ".join((network.reason, *network.unverified)),
        speed_bytes_per_second=_slowest(first),
        one_fabric=network.verified is not Evidence.ASSUMED or _DEFAULT_PREFIX not in network.name,
        routed=routed,
        software=_software(first, places) if rdma else "",
    )


def _software(ports: Sequence[NetworkPort], places: Sequence[Place]) -> str:
    """Return which of some RDMA ports no card is behind, ``""`` for none."""
    for port, place in zip(ports, places, strict=True):
        if port.virtual:
            below = [one.name for one in place.facts.interfaces if port.address in _addresses(one)]
            return f"{port.interface} is RDMA done by software on {_list(below) or port.address}"
    return ""


def _addresses(interface: NetInterface) -> set[str]:
    return {one.address for one in interface.addresses}


def _tcp_below(software: Candidate, candidates: Sequence[Candidate]) -> bool:
    """Tell whether a candidate is TCP on the same addresses."""
    own = [ports[0].address for ports in software.ports]
    for one in candidates:
        at = [{port.address for port in ports} for ports in one.ports]
        if not one.rdma and all(address in there for address, there in zip(own, at, strict=True)):
            return True
    return False


def _slowest(ports: Iterable[NetworkPort]) -> int | None:
    speeds = [port.speed_bytes_per_second or 0 for port in ports]
    return min(speeds) or None


def _port_order(port: NetworkPort) -> tuple[bool, int, str]:
    return port.virtual, -(port.speed_bytes_per_second or 0), port.interface


def _fault(port: NetworkPort, place: Place, views: Mapping[int, LocalView], rdma: bool) -> str:
    """Return why UCX could not use a port, ``""`` if it could."""
    if not _DEVICE.fullmatch(port.interface):
        return "its name cannot be written into UCX_NET_DEVICES"
    if rdma:
        limits = [views[rank].memlock_bytes for rank in place.ranks]
        least = min((limit for limit in limits if limit is not None), default=None)
        if least is not None and least < _MEMLOCK_MIN_BYTES:
            return f"the memlock limit of {least} bytes is too low for RDMA (ulimit -l unlimited)"
        return ""
    interface = next(one for one in place.facts.interfaces if one.name == port.interface)
    taken = first_address(interface, 6 if ":" in port.address else 4)
    # UCX 1.20 binds to the interface's first address of a family, which cannot be chosen.
    return "" if taken == port.address else f"UCX would use its first address, {taken}"


def routed(places: Sequence[Place]) -> list[Candidate]:
    """Return choices of one interface at each place such that the routes lead from each to each other.

    Fabrics are built so whose hosts have a network of their own each, up to the first switch.
    """
    routes = [Routes(place.facts) for place in places]
    out = [[_port(place, one) for one in place.facts.interfaces if _leads_out(place, one)] for place in places]
    rails = [{name: port.rail for port in rail_ports(place.facts) for name in port.interfaces} for place in places]
    found: dict[tuple[NetworkPort, ...], Candidate] = {}
    for start in out[0]:
        ports = [start]
        for own, known, rail in zip(out[1:], routes[1:], rails[1:], strict=True):
            back = [one for one in own if known.to(start.address, one.address).interface == one.interface]
            # With a routing table for each of them several lead back: the one of the same rail is meant.
            same = partial(_unlike, start.interface, rails[0].get(start.interface), rail)
            ports += sorted(back, key=same)[:1]
        if len(ports) == len(places):
            way = joined([[End(port.interface, port.address)] for port in ports], routes)
            if way.all:
                found[tuple(ports)] = _routed_candidate(places, ports, BY_DEFAULT if way.by_default else "")
    return list(found.values())


def _unlike(start: str, rail: int | None, rails: Mapping[str, int], port: NetworkPort) -> tuple[bool, bool]:
    return rails.get(port.interface) != rail, port.interface != start


def _routed_candidate(places: Sequence[Place], ports: Sequence[NetworkPort], doubt: str) -> Candidate:
    subnets = sorted({_subnet(place, port) for place, port in zip(places, ports, strict=True)})
    reason = f"no subnet joins all hosts, but routes lead from each to each: {_list(subnets)}"
    return Candidate(
        name=routed_name(subnets),
        transport=Transport.ETHERNET,
        ports=tuple((port,) for port in ports),
        virtual=any(port.virtual for port in ports),
        role="data",
        reason="; ".join(filter(None, (reason, doubt))),
        speed_bytes_per_second=_slowest(ports),
    )


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
    fine = bool(address) and not unusable(interface, by_name) and bool(_DEVICE.fullmatch(interface.name))
    return fine and not ip_address(address).is_link_local


def _subnet(place: Place, port: NetworkPort) -> str:
    interface = next(one for one in place.facts.interfaces if one.name == port.interface)
    length = next(one.prefix_length for one in interface.addresses if one.address == port.address)
    return str(ip_network(f"{port.address}/{length}", strict=False))


def _list(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:8]) + (f" and {len(shown) - 8} more" if len(shown) > 8 else "")
