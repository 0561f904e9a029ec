"""Adapters, their ports, and network interfaces of one node: judged by their like on the same node."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fabricd.findings.kinds import BONDS, Kinds, alike
from fabricd.graph.networks import networks_of
from fabricd.graph.networks_ip import subnet_of
from fabricd.graph.networks_node import NodePorts
from fabricd.graph.networks_rails import RDMA_KINDS
from fabricd.model.device import Hca, InterfaceKind, NetInterface
from fabricd.model.finding import Finding, Severity
from fabricd.model.snapshot import Snapshot
from fabricd.paths.port_facts import PortTables
from fabricd.units import format_bandwidth

#: Those whose drivers reach memory of GPUs by dma-buf or a peer-memory module; others have ways of their own.
_BY_PEER_MEMORY = frozenset({"infiniband", "roce"})
_WAITS_FOR_SM = frozenset({"init", "armed"})
_FULL_MEMBER = 0x8000
_CABLE = "see the cable and its switch port: ethtool -m, mlxlink, the switch's log"


def port_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield what is wrong with the ports of a node."""
    kinds = Kinds(snapshot)
    yield from _hca_ports(snapshot, kinds)
    yield from _gpudirect(snapshot)
    yield from _interfaces(snapshot, kinds)
    yield from _one_subnet(snapshot)
    yield from _gids(snapshot)


def _hca_ports(snapshot: Snapshot, kinds: Kinds) -> Iterator[Finding]:
    ports = [one for one in snapshot.hca_ports() if one[1].kind in RDMA_KINDS]
    for name, hca, port in ports:
        if hca.virtual_function:  # a virtual machine's or container's business, which may not have begun
            continue
        if port.link_layer == "infiniband" and port.state in _WAITS_FOR_SM:
            yield Finding(
                code="no-subnet-manager",
                severity=Severity.ERROR,
                subject=name,
                what=f"{name} is linked, and no subnet manager has made it active",
                evidence=(f"state {port.state}, physical state {port.physical_state or 'unknown'}",),
                fix="sminfo; start opensm, or the subnet manager of a switch, on this fabric",
            )
        if port.pkeys and port.link_layer == "infiniband" and not any(key & _FULL_MEMBER for key in port.pkeys if key):
            yield Finding(
                code="pkey-limited",
                severity=Severity.WARNING,
                subject=name,
                what=f"{name} is a limited member of its partitions, and such do not reach each other",
                evidence=(f"P_Keys {', '.join(f'{key:#06x}' for key in port.pkeys[:8])}",),
                fix="make it a full member in the subnet manager's partitions.conf",
            )
    for group in alike(ports, lambda one: kinds.of_port(*one[1:])):
        up = [one for one in group if one[2].state == "active"]
        for name, _, port in group:
            if port.state == "down" and port.physical_state != "disabled" and len(up) * 2 >= len(group):
                yield _down(name, f"physical state {port.physical_state or 'unknown'}", len(up), up[0][0])
        yield from _slower("port-slow", [(name, port.rate_bytes_per_second) for name, _, port in up])


def _down(name: str, told: str, up: int, other: str) -> Finding:
    return Finding(
        code="port-down",
        severity=Severity.WARNING,
        subject=name,
        what=f"{name} is down, and at least half of its like on this node are up",
        evidence=(told, f"{up} alike are up, {other} for one"),
        fix=_CABLE,
    )


def _slower(code: str, ports: Sequence[tuple[str, int | None]]) -> Iterator[Finding]:
    """Yield the ports that are slower than others of one kind."""
    speeds = [speed for _, speed in ports if speed]
    for name, speed in ports:
        if speed and speed < max(speeds):
            yield Finding(
                code=code,
                severity=Severity.WARNING,
                subject=name,
                what=f"{name} is slower than its like on this node",
                evidence=(f"{format_bandwidth(speed)}, its like on this node up to {format_bandwidth(max(speeds))}",),
                fix=_CABLE,
            )


def _gpudirect(snapshot: Snapshot) -> Iterator[Finding]:
    """Where there are GPUs, an adapter should register their memory: by dma-buf, or by a peer-memory module."""
    if not snapshot.gpus:
        return
    without = [
        hca.name
        for hca in snapshot.hcas
        if hca.kind in _BY_PEER_MEMORY and hca.dmabuf is False and hca.peer_memory is False and _is_up(hca)
    ]
    if without:
        yield Finding(
            code="gpudirect-off",
            severity=Severity.WARNING,
            subject=", ".join(without[:8]),
            what="adapters cannot register memory of GPUs: data between nodes goes through the host's memory",
            evidence=("no dma-buf, and no peer-memory module (nvidia_peermem)",),
            fix="modprobe nvidia_peermem, or a kernel from 5.12 with NVIDIA's open kernel modules (dma-buf); where "
            "GPUs cannot, as GeForce, --ignore gpudirect-off",
        )


def _is_up(hca: Hca) -> bool:
    return any(port.state == "active" for port in hca.ports)


def _interfaces(snapshot: Snapshot, kinds: Kinds) -> Iterator[Finding]:
    adapters = {hca.pci_address for hca in snapshot.hcas if hca.kind in RDMA_KINDS}  # whose ports are looked at above
    cards = [
        one
        for one in snapshot.interfaces
        if one.kind is InterfaceKind.PHYSICAL and one.admin_up and one.pci_address not in adapters
    ]
    for group in alike(cards, lambda one: kinds.of(one.pci_address)):
        up = [one for one in group if one.carrier]
        for one in group:
            if one.carrier is False and len(up) * 2 >= len(group):
                yield _down(one.name, "set up, and no carrier", len(up), up[0].name)
        yield from _slower("port-slow", [(one.name, one.speed_bytes_per_second) for one in up])
    by_name = {one.name: one for one in snapshot.interfaces}
    for one in snapshot.interfaces:
        if one.duplex == "half" and one.carrier and kinds.is_network(one):
            yield Finding(
                code="half-duplex",
                severity=Severity.ERROR,
                subject=one.name,
                what=f"{one.name} sends and receives in turn (half duplex)",
                evidence=(f"ethtool: {format_bandwidth(one.speed_bytes_per_second)}, half duplex",),
                fix="let both ends negotiate: ethtool -s INTERFACE autoneg on, and the same at the switch",
            )
        if one.kind in BONDS and one.admin_up:
            yield from _bond(one, by_name)


def _bond(bond: NetInterface, by_name: Mapping[str, NetInterface]) -> Iterator[Finding]:
    lost = [name for name in bond.members if name in by_name and by_name[name].carrier is False]
    if lost and len(lost) < len(bond.members):
        yield Finding(
            code="bond-degraded",
            severity=Severity.WARNING,
            subject=bond.name,
            what=f"{bond.name} works with {len(bond.members) - len(lost)} of its {len(bond.members)} members",
            evidence=(f"no carrier on {', '.join(lost)}", f"mode {bond.bond_mode or 'unknown'}"),
            fix=_CABLE,
        )


def _one_subnet(snapshot: Snapshot) -> Iterator[Finding]:
    """Several interfaces in one subnet send by one of them, but for rules that ask where a packet comes from.

    What is part of a bond, a bridge or a VRF is routed by that. InfiniBand's and Slingshot's own messages need no
    addresses, and clouds give all of a node's ports addresses of one subnet.
    """
    seen: dict[str, list[tuple[str, str]]] = defaultdict(list)
    slingshot = {hca.pci_address for hca in snapshot.hcas if hca.kind == "slingshot"} - {""}
    spare = {one.name for one in snapshot.interfaces if one.kind is InterfaceKind.IPOIB or one.pci_address in slingshot}
    for interface in snapshot.interfaces:
        if not interface.carrier or not interface.pci_address or interface.controller:
            continue
        for address in interface.addresses:
            if address.family == 4 and address.prefix_length < 32 and (net := subnet_of(address)):
                seen[net].append((interface.name, address.address))
    ruled = {rule.source.partition("/")[0] for rule in snapshot.routing_rules}
    for net, members in seen.items():
        without = [name for name, address in members if address not in ruled]
        if len({name for name, _ in members}) > 1 and len(without) > 1:
            yield Finding(
                code="one-subnet",
                severity=Severity.NOTE if spare.issuperset(without) else Severity.WARNING,
                subject=net,
                what=f"{', '.join(without[:8])} are in one subnet: TCP leaves by one of them for all",
                evidence=(
                    f"addresses in {net}: {', '.join(address for _, address in members[:8])}",
                    "no `ip rule from` for them",
                ),
                fix="a subnet for each rail; or a routing table for each address (ip rule from ADDRESS) and "
                "net.ipv4.conf.all.arp_ignore=1, arp_announce=2",
            )


def _gids(snapshot: Snapshot) -> Iterator[Finding]:
    """RoCE needs an entry of version 2 for the address in the port's GID table."""
    ports = NodePorts(snapshot.node.node_id, snapshot)
    tables = PortTables(ports)
    told: dict[str, str] = {}
    for network in networks_of({ports.node_id: ports}).networks:
        for port in network.ports:
            if caution := tables.facts(port).gid_missing:
                told.setdefault(port.interface, caution)
    for name, caution in told.items():
        yield Finding(
            code="gid-missing",
            severity=Severity.WARNING,
            subject=name,
            what=f"{name} has no RoCE v2 entry for its address in its GID table",
            evidence=(caution, f"/sys/class/infiniband/{name.partition(':')[0]}/ports"),
            fix="give the interface its address anew; in a container, the RDMA device of the same network namespace",
        )
