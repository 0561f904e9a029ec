"""Which networks could join the hosts of a group, and why the others could not."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fabricd.graph.networks import find_networks
from fabricd.graph.networks_routed_group import routed_roce
from fabricd.localview import LocalView, locks_too_little
from fabricd.model.device import NetInterface
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Rejected, Transport
from fabricd.plan.group_candidate import BY_RDMA, DEVICE, Candidate, Candidates, slowest
from fabricd.plan.group_hosts import Hosts, Place, first_address
from fabricd.plan.group_routed import routed
from fabricd.units import format_names

#: What UCX reaches through an interface's IP address.
_BY_TCP = frozenset({Transport.ETHERNET, Transport.SLINGSHOT})
_NOT_FOR_MPI = {
    Transport.NVLINK: "NVLink carries memory of GPUs, and this engine moves memory of hosts",
    Transport.EFA: "the MPI engine is not set up for EFA; the same card's Ethernet is a candidate",
}
_MAX_REJECTED = 100
#: A fabric of this prefix may be several: isolated rails all bear it.
_DEFAULT_PREFIX = "fe80:0000:0000:0000"


def find_candidates(hosts: Hosts, views: Mapping[int, LocalView]) -> Candidates:
    """Return the networks that every place has a usable port on; routed ones of ports that no subnet joins."""
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
    by_subnet = {port.address for one in networks if not one.rdma for port in one.ports[0]}
    networks += routed(places, past=by_subnet)
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
            name=f"*/{port}" if len(where) == places > 1 else format_names(f"{place}/{port}" for place in where),
            reason=reason,
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
    if network.transport not in _BY_TCP | BY_RDMA:
        return f"the MPI engine has no transport for {network.transport}"
    here: dict[str, list[NetworkPort]] = {}
    for port in network.ports:
        here.setdefault(port.node, []).append(port)
    without = [place.name for place in places if place.name not in here]
    if without:
        return f"{format_names(without)} {'is' if len(without) == 1 else 'are'} not on it"
    at = [here[place.name] for place in places]
    rdma = network.transport in BY_RDMA
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
        speed_bytes_per_second=slowest(first),
        one_fabric=network.verified is not Evidence.ASSUMED or _DEFAULT_PREFIX not in network.name,
        routed=routed,
        software=_software(first, places) if rdma else "",
    )


def _software(ports: Sequence[NetworkPort], places: Sequence[Place]) -> str:
    """Return which of some RDMA ports no card is behind, ``""`` for none."""
    for port, place in zip(ports, places, strict=True):
        if port.virtual:
            below = [one.name for one in place.facts.interfaces if port.address in _addresses(one)]
            return f"{port.interface} is RDMA done by software on {format_names(below) or port.address}"
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


def _port_order(port: NetworkPort) -> tuple[bool, int, str]:
    return port.virtual, -(port.speed_bytes_per_second or 0), port.interface


def _fault(port: NetworkPort, place: Place, views: Mapping[int, LocalView], rdma: bool) -> str:
    """Return why UCX could not use a port, ``""`` if it could."""
    if not DEVICE.fullmatch(port.interface):
        return "its name cannot be written into UCX_NET_DEVICES"
    if rdma:
        limits = [views[rank].memlock_bytes for rank in place.ranks]
        least = min((limit for limit in limits if limit is not None), default=None)
        if locks_too_little(least):
            return f"the memlock limit of {least} bytes is too low for RDMA (ulimit -l unlimited)"
        return ""
    interface = next(one for one in place.facts.interfaces if one.name == port.interface)
    taken = first_address(interface, 6 if ":" in port.address else 4)
    # UCX 1.20 binds to the interface's first address of a family, which cannot be chosen.
    return "" if taken == port.address else f"UCX would use its first address, {taken}"
