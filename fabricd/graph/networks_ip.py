"""Networks of IP interfaces, by subnet and VLAN, and which interfaces can be on none."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import NamedTuple

from fabricd.graph.snapshot import VIRTUAL_KINDS, carriers_of
from fabricd.model.device import InterfaceKind, IpAddress, NetInterface
from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Rejected, Transport
from fabricd.model.snapshot import Snapshot

_NEVER = {
    InterfaceKind.LOOPBACK: "a loopback leads nowhere but back",
    InterfaceKind.IFB: "an ifb shapes traffic and joins nothing",
    InterfaceKind.DUMMY: "a dummy interface discards what it is given",
}
_DOWN_STATES = frozenset({"down", "lowerlayerdown", "notpresent", "dormant"})
#: Drivers of the virtual USB card that a machine's management controller shows to its host.
_BMC_DRIVERS = frozenset({"cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset", "rndis_host"})
_OVERLAYS = frozenset({"vxlan", "geneve"})
#: A port this many times slower than the node's fastest, of whatever kind, is there for management; fewer times will
#: do where packets for everywhere leave by it.
_MANAGEMENT_RATIO, _DEFAULT_ROUTE_RATIO = 10, 4


class IpPort(NamedTuple):
    """One address of an interface that can carry something to another host."""

    port: NetworkPort
    subnet: str
    vlan: int | None
    slingshot: bool
    role: str
    role_reason: str


def ip_ports(node_id: str, snapshot: Snapshot) -> tuple[list[IpPort], list[Rejected]]:
    """Return a node's addresses on networks, and the interfaces that are on none."""
    facts = _Facts(snapshot)
    found: list[IpPort] = []
    rejected: list[Rejected] = []
    for interface in snapshot.interfaces:
        reason = unusable(interface, facts.by_name)
        addresses = () if reason else _addresses(interface)
        if addresses:
            found += _ports(node_id, interface, addresses, facts)
        else:
            rejected.append(Rejected(name=f"{node_id}/{interface.name}", reason=reason or _no_address(interface)))
    return found, rejected


def ip_networks(ports: Iterable[IpPort]) -> list[Network]:
    """Return networks by IP subnet.

    One subnet is one network, unless facts say otherwise: different VLAN tags, or one address on two nodes (as
    behind address translation, where every virtual machine is 10.0.2.15) prove that networks differ.
    """
    subnets: dict[str, list[IpPort]] = {}
    for one in ports:
        subnets.setdefault(one.subnet, []).append(one)
    networks = [network for subnet, found in subnets.items() for network in _split(subnet, found)]
    return _without_doubles(networks)


def unusable(interface: NetInterface, by_name: Mapping[str, NetInterface]) -> str:
    """Return why an interface can carry nothing to another host, ``""`` if it can."""
    if interface.kind in _NEVER:
        return _NEVER[interface.kind]
    if not interface.admin_up:
        return "it is switched off"
    if interface.oper_state in _DOWN_STATES or interface.carrier is False:
        return f"it is down ({interface.oper_state or 'no carrier'})"
    if interface.kind is InterfaceKind.BRIDGE:
        carriers = [carrier for carrier, _ in carriers_of(interface, by_name)]
        if all(carrier.kind in VIRTUAL_KINDS for carrier in carriers):
            return "a bridge with no card of this host in it joins only what is on this host"
    return ""


def _addresses(interface: NetInterface) -> list[tuple[IpAddress, str]]:
    """Return the addresses of an interface that reach beyond its own link, each with its subnet."""
    return [(address, subnet) for address in interface.addresses if (subnet := subnet_of(address))]


def _no_address(interface: NetInterface) -> str:
    if interface.controller:
        return f"it carries {interface.controller}, which has the address"
    return "none of its addresses reaches beyond its own link" if interface.addresses else "it has no IP address"


@lru_cache(maxsize=1024)
def subnet_of(address: IpAddress) -> str:
    """Return an address's subnet, ``""`` for one that no other host can be reached by (link-local, not an address)."""
    try:
        parsed = ip_address(address.address)
    except ValueError:
        return ""
    host_bits = parsed.max_prefixlen - address.prefix_length
    if not 0 <= host_bits <= parsed.max_prefixlen:
        return ""
    if parsed.is_link_local or parsed.is_loopback or parsed.is_multicast or parsed.is_unspecified:
        return ""
    # ``ip_interface`` says the same, and takes thrice as long.
    return f"{type(parsed)(int(parsed) >> host_bits << host_bits)}/{address.prefix_length}"


class _Facts:
    """Of one node, what is asked of each of its interfaces."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.by_name = {interface.name: interface for interface in snapshot.interfaces}
        cards = [interface.speed_bytes_per_second for interface in snapshot.interfaces if interface.pci_address]
        ports = [port.rate_bytes_per_second for hca in snapshot.hcas for port in hca.ports if port.state == "active"]
        self.fastest = max((speed or 0 for speed in (*cards, *ports)), default=0)
        self.default = {route.interface for route in snapshot.routes if route.destination == "default"}
        #: VLAN that a switch says it puts an interface's untagged frames into.
        self.vlan = {neighbor.interface: neighbor.vlan_id for neighbor in snapshot.lldp if neighbor.vlan_id}


def _ports(
    node_id: str, interface: NetInterface, addresses: Sequence[tuple[IpAddress, str]], facts: _Facts
) -> Iterator[IpPort]:
    carriers = [carrier for carrier, _ in carriers_of(interface, facts.by_name)]
    virtual = all(carrier.kind in VIRTUAL_KINDS for carrier in carriers)
    # A virtual interface's speed is a constant of its driver and says nothing.
    told = [carrier.speed_bytes_per_second for carrier in carriers if carrier.kind not in VIRTUAL_KINDS]
    speed = sum(one for one in told if one and one > 0) or None
    role, reason = _role(interface, speed, facts)
    for address, subnet in addresses:
        port = NetworkPort(
            node=node_id,
            interface=interface.name,
            address=address.address,
            speed_bytes_per_second=speed,
            virtual=virtual,
            numa_node=interface.numa_node,
        )
        vlan = interface.vlan_id or facts.vlan.get(interface.name)
        yield IpPort(port, subnet, vlan, interface.driver.startswith("cxi"), role, reason)


def _role(interface: NetInterface, speed: int | None, facts: _Facts) -> tuple[str, str]:
    if interface.link_kind in _OVERLAYS:
        return "container", f"{interface.name} is a {interface.link_kind} overlay"
    if interface.kind is InterfaceKind.TUNNEL:
        return "vpn", f"{interface.name} is a {interface.link_kind or 'tunnel'}"
    if interface.kind is InterfaceKind.TUN and not interface.mac.strip("0:"):
        return "vpn", f"{interface.name} is a tun device: a program carries it"
    if interface.kind in VIRTUAL_KINDS and _stands_alone(interface):
        return (
            "container",
            f"{interface.name} is virtual and has a subnet of one address, as container networks give it",
        )
    if interface.driver in _BMC_DRIVERS:
        return "management", f"{interface.name} leads to the machine's own management controller"
    return _role_by_speed(interface.name, speed, facts)


def _stands_alone(interface: NetInterface) -> bool:
    """Whether all of an interface's addresses that count are the only ones of their subnets."""
    counting = [address for address in interface.addresses if subnet_of(address)]
    return all(address.prefix_length == (128 if address.family == 6 else 32) for address in counting)


def _role_by_speed(name: str, speed: int | None, facts: _Facts) -> tuple[str, str]:
    times = facts.fastest // speed if speed else 0
    if times >= _MANAGEMENT_RATIO:
        return "management", f"{name} is {times} times slower than the node's fastest port"
    if times >= _DEFAULT_ROUTE_RATIO and name in facts.default:
        return "management", f"the default route leads by {name}, {times} times slower than the node's fastest port"
    return "data", ""


def _split(subnet: str, found: Sequence[IpPort]) -> Iterator[Network]:
    tags = sorted({one.vlan for one in found if one.vlan is not None})
    if len(tags) > 1:
        for tag in (*tags, None):
            members = [one for one in found if one.vlan == tag]
            name = f"{subnet}@vlan{tag}" if tag is not None else subnet
            if members:
                yield _network(name, members, f"same subnet {subnet}, VLAN {tag or 'unknown'}")
        return
    owners: dict[str, set[str]] = {}
    for one in found:
        owners.setdefault(one.port.address, set()).add(one.port.node)
    twice = next((address for address, nodes in owners.items() if len(nodes) > 1), None)
    if twice is None:
        yield _network(subnet, found, f"same subnet {subnet}")
        return
    for node in sorted({one.port.node for one in found}):
        members = [one for one in found if one.port.node == node]
        reason = f"several nodes have {twice}, so {subnet} is a different network at each of them"
        yield _network(f"{subnet}@{node}", members, reason)


def _network(name: str, found: Sequence[IpPort], reason: str) -> Network:
    ports: dict[tuple[str, str], NetworkPort] = {}
    for one in found:
        ports.setdefault((one.port.node, one.port.interface), one.port)
    roles = [one for one in found if one.role != "data"]
    # One port that is only for management does not make a network so; a tunnel's end does.
    special = roles if len(roles) == len(found) else [one for one in roles if one.role in ("vpn", "container")]
    slingshot = all(one.slingshot for one in found)
    return Network(
        name=name,
        transport=Transport.SLINGSHOT if slingshot else Transport.ETHERNET,
        ports=tuple(ports.values()),
        role=special[0].role if special else "data",
        reason="; ".join([reason, *([special[0].role_reason] if special else [])]),
    )


def _without_doubles(networks: Sequence[Network]) -> list[Network]:
    """Drop a network whose ports all are on another one too, as with IPv4 and IPv6 side by side."""
    kept: list[Network] = []
    on: dict[tuple[str, str], set[int]] = {}  # port -> places in ``kept``
    for network in sorted(networks, key=lambda network: (":" in network.name, network.name)):
        ports = [(port.node, port.interface) for port in network.ports]
        if not set.intersection(*(on.get(port, set()) for port in ports)):
            for port in ports:
                on.setdefault(port, set()).add(len(kept))
            kept.append(network)
    return kept
