"""Probe ``netlink``: every network interface with its addresses and routes, by rtnetlink, ethtool and sysfs."""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from fabricd.model.device import InterfaceKind, IpAddress, NetInterface
from fabricd.model.routing import Route, RoutingRule
from fabricd.probe.answers import ask
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeNotRun, ProbeResult, ProbeUnsupported
from fabricd.probe.files import FieldReader
from fabricd.probe.net_sysfs import Hardware, dump_sysfs, is_same_interface, rdma_devices, read_hardware
from fabricd.probe.netlink_dump import DriverFacts, LinkFacts, NetlinkDump, SpeedFacts, dump_kernel
from fabricd.probe.netlink_routes import RT_TABLE_MAIN

#: Where a replay keeps the kernel's answers, in the folder of recorded answers.
RECORDED = "netlink.json"
_IFF_UP = 0x1
#: Routes of a table that a rule names: a rail's has a handful.
_MAX_RULE_ROUTES = 64
_ARPHRD_INFINIBAND, _ARPHRD_LOOPBACK = 32, 772
# Ports of an embedded switch that stand for a virtual or sub-function.
# Source: kernel Documentation/networking/devlink/devlink-port.rst, phys_port_name.
_REPRESENTOR = re.compile(r"^(c\d+)?pf\d+(vf|sf)\d+$")
_KINDS = {
    "veth": InterfaceKind.VETH, "netkit": InterfaceKind.VETH, "bridge": InterfaceKind.BRIDGE,
    "bond": InterfaceKind.BOND, "team": InterfaceKind.TEAM, "vlan": InterfaceKind.VLAN,
    "macvlan": InterfaceKind.MACVLAN, "macvtap": InterfaceKind.MACVLAN, "ipvlan": InterfaceKind.IPVLAN,
    "ipvtap": InterfaceKind.IPVLAN, "tun": InterfaceKind.TUN, "ifb": InterfaceKind.IFB,
    "dummy": InterfaceKind.DUMMY, "ipoib": InterfaceKind.IPOIB,
}  # fmt: skip
_TUNNELS = {
    "vxlan", "geneve", "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan", "ipip", "ip6tnl", "sit", "vti",
    "vti6", "wireguard", "xfrm", "bareudp", "gtp", "amt",
}  # fmt: skip
_PAIRS = ("veth", "netkit")  #: their lower link is the other end, not a parent


class NetlinkProbe:
    """Network interfaces, the main routing table of this network namespace, and those that addresses have alone."""

    name = "netlink"
    deadline_seconds = 10.0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        """Read the interfaces in order of index, and the routes in the kernel's order.

        Raises:
            ProbeAbsent: neither netlink nor sysfs shows an interface.
            ProbeFailed: the recorded answers are not what they should be.
        """
        read = FieldReader()
        net = ctx.roots.sys / "class/net"
        dump = _dump(ctx, net, read)
        if not dump.links:
            raise ProbeAbsent("no network interface: " + ("; ".join(read.notes[:3]) or f"{net} is missing or empty"))
        interfaces = _interfaces(dump, net, rdma_devices(ctx.roots.sys, read), read)
        facts = {
            "interfaces": interfaces,
            "routes": tuple(_routes(dump, RT_TABLE_MAIN)),
            "routing_rules": tuple(_rules(dump, read)),
        }
        return ProbeResult(facts=facts, notes=tuple(read.notes))


def _routes(dump: NetlinkDump, table: int, family: int | None = None) -> Iterator[Route]:
    names = {link.index: link.name for link in dump.links}
    for route in dump.routes:
        if route.table == table and route.index in names and family in (None, route.family):
            yield Route(
                destination=route.destination,
                family=route.family,
                interface=names[route.index],
                gateway=route.gateway,
                metric=route.metric,
            )


def _rules(dump: NetlinkDump, read: FieldReader) -> Iterator[RoutingRule]:
    """Yield the rules with the routes of their tables: small ones, or else it is no rail's."""
    for rule in sorted(dump.rules, key=lambda one: one.priority):
        routes = tuple(islice(_routes(dump, rule.table, rule.family), _MAX_RULE_ROUTES + 1))
        if len(routes) > _MAX_RULE_ROUTES:
            read.note(f"table {rule.table}", f"it has more than {_MAX_RULE_ROUTES} routes; the rest is left out")
        yield RoutingRule(
            source=rule.source,
            family=rule.family,
            priority=rule.priority,
            table=rule.table,
            routes=routes[:_MAX_RULE_ROUTES],
        )


def _dump(ctx: ProbeContext, net: Path, read: FieldReader) -> NetlinkDump:
    try:
        dump = ask(ctx, RECORDED, NetlinkDump, _ask_kernel)
    except (ProbeNotRun, ProbeUnsupported) as stop:
        read.note("netlink", f"{stop.reason}; only what sysfs shows is known, without addresses and routes")
        return dump_sysfs(net, read)
    read.notes.extend(dump.notes)
    return dump


def _ask_kernel() -> NetlinkDump:
    read = FieldReader()
    try:
        return replace(dump_kernel(read), notes=tuple(read.notes))
    except (OSError, ValueError) as error:
        raise ProbeUnsupported(str(error)) from error


def _interfaces(dump: NetlinkDump, net: Path, rdma_of: dict[str, str], read: FieldReader) -> tuple[NetInterface, ...]:
    names = {link.index: link.name for link in dump.links}
    speeds = {speed.index: speed for speed in dump.speeds}
    drivers = {driver.interface: driver for driver in dump.drivers}
    addresses: dict[int, list[IpAddress]] = defaultdict(list)
    for fact in dump.addresses:
        family = 6 if ":" in fact.address else 4
        addresses[fact.index].append(
            IpAddress(address=fact.address, prefix_length=fact.prefix_length, family=family, scope=fact.scope)
        )
    members: dict[int, list[str]] = defaultdict(list)
    for link in dump.links:
        if link.controller is not None:
            members[link.controller].append(link.name)
    found = []
    for link in sorted(dump.links, key=lambda link: link.index):
        path = net / link.name
        hardware = read_hardware(path, read) if is_same_interface(path, link) else Hardware()
        found.append(
            _interface(
                link,
                hardware,
                speeds.get(link.index) or SpeedFacts(index=link.index),
                drivers.get(link.name) or DriverFacts(interface=link.name),
                names=names,
                addresses=tuple(addresses[link.index]),
                members=tuple(sorted(members[link.index])),
                rdma_device=rdma_of.get(link.name) or hardware.rdma_device,
            )
        )
    return tuple(found)


def _interface(
    link: LinkFacts,
    hardware: Hardware,
    speed: SpeedFacts,
    driver: DriverFacts,
    *,
    names: dict[int, str],
    addresses: tuple[IpAddress, ...],
    members: tuple[str, ...],
    rdma_device: str,
) -> NetInterface:
    admin_up = bool(link.flags & _IFF_UP)
    rate = speed.megabits_per_second
    return NetInterface(
        name=link.name,
        index=link.index,
        kind=interface_kind(link, hardware),
        link_kind="representor" if _REPRESENTOR.match(link.port_name) else link.kind,
        driver=hardware.driver or driver.driver,
        firmware=driver.firmware,
        mac=link.mac,
        mtu=link.mtu,
        speed_bytes_per_second=None if rate is None else rate * 125_000,
        duplex=speed.duplex,
        admin_up=admin_up,
        oper_state=link.oper_state,
        carrier=link.carrier if admin_up else None,
        addresses=addresses,
        pci_address=hardware.pci_address,
        numa_node=hardware.numa_node,
        parent=names.get(link.lower or 0, "") if link.kind not in _PAIRS else "",
        controller=names.get(link.controller or 0, ""),
        members=members,
        bond_mode=link.bond_mode,
        vlan_id=link.vlan_id,
        physical_function=hardware.physical_function,
        port_name=link.port_name,
        rdma_device=rdma_device,
        rx_bytes=link.rx_bytes,
        tx_bytes=link.tx_bytes,
        carrier_down_count=link.carrier_down_count,
    )


def interface_kind(link: LinkFacts, hardware: Hardware) -> InterfaceKind:
    """Return what an interface is: by the kind that the kernel gives software links, else by what is behind it."""
    if link.hardware_type == _ARPHRD_LOOPBACK:
        return InterfaceKind.LOOPBACK
    if link.kind in _KINDS:
        return _KINDS[link.kind]
    if link.kind in _TUNNELS:
        return InterfaceKind.TUNNEL
    if link.hardware_type == _ARPHRD_INFINIBAND:
        return InterfaceKind.IPOIB
    if not hardware.present or _REPRESENTOR.match(link.port_name):
        return InterfaceKind.OTHER
    return InterfaceKind.VIRTUAL_FUNCTION if hardware.physical_function else InterfaceKind.PHYSICAL
