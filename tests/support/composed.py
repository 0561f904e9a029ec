"""Clusters composed of the suite's machines: each node has a name, LIDs, GIDs and addresses of its own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address

from fabricd.model.device import Gpu, Hca, HcaPort, IpAddress, NetInterface, NvlinkFabric
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.routing import Route, RoutingRule
from fabricd.model.snapshot import Snapshot
from tests.support.machine_run import probed


def member(machine: str, name: str, number: int) -> Snapshot:
    """Return a machine of the suite as one node of a cluster: LIDs, GIDs and addresses are of this node alone."""
    snapshot = probed(machine)[0]
    return replace(
        snapshot,
        node=replace(snapshot.node, node_id=f"id-{name}", name=name),
        gpus=tuple(replace(gpu, uuid=f"GPU-{name}-{gpu.index}") for gpu in snapshot.gpus),
        hcas=tuple(_own(hca, number) for hca in snapshot.hcas),
        interfaces=tuple(_moved(interface, number) for interface in snapshot.interfaces),
    )


def _own(hca: Hca, number: int) -> Hca:
    ports = (
        replace(
            port,
            lid=port.lid + 100 * number if port.lid else port.lid,
            gids=tuple(replace(gid, gid=_gid(gid.gid, number)) for gid in port.gids),
        )
        for port in hca.ports
    )
    return replace(hca, node_guid=f"{hca.node_guid[:-4]}{number:02x}{hca.node_guid[-2:]}", ports=tuple(ports))


def _gid(gid: str, number: int) -> str:
    """Give a GID another host part; one that stands for an IPv4 address goes with it."""
    if ":ffff:" in gid:
        return f"{gid[:-2]}{int(gid[-2:], 16) + number:02x}"
    return f"{gid[:-4]}{number:02x}{gid[-2:]}"


def _moved(interface: NetInterface, number: int) -> NetInterface:
    """Give an interface another host part, as the next node of a rack has."""
    addresses = []
    for address in interface.addresses:
        head, dot, last = address.address.rpartition(".")
        moved = f"{head}.{int(last) + number}" if dot and address.family == 4 else address.address
        addresses.append(replace(address, address=moved))
    return replace(interface, addresses=tuple(addresses))


def with_ports(snapshot: Snapshot, change: Callable[[int, HcaPort], HcaPort]) -> Snapshot:
    """Change the ports of a node's RDMA devices; ``change`` is told the place of the device."""
    hcas = (
        replace(hca, ports=tuple(change(place, port) for port in hca.ports)) for place, hca in enumerate(snapshot.hcas)
    )
    return replace(snapshot, hcas=tuple(hcas))


def with_address(snapshot: Snapshot, interface: str, address: str, *, gateway: str = "") -> Snapshot:
    """Give an interface one address, "10.0.0.1/24", and with a gateway the default route."""
    plain, _, length = address.partition("/")
    own = (IpAddress(address=plain, prefix_length=int(length), family=4),)
    interfaces = (replace(one, addresses=own) if one.name == interface else one for one in snapshot.interfaces)
    default = Route(destination="default", family=4, interface=interface, gateway=gateway)
    return replace(snapshot, interfaces=tuple(interfaces), routes=(default,) if gateway else snapshot.routes)


def with_tables(snapshot: Snapshot) -> Snapshot:
    """Give each port of RDMA a subnet of two addresses, and a routing table with a default route by its own gateway."""
    interfaces, rules = [], []
    for interface in snapshot.interfaces:
        own = tuple(replace(one, prefix_length=31) for one in interface.addresses if interface.rdma_device)
        for at, address in enumerate(own, start=len(rules)):
            gateway = str(ip_address(address.address) + 1)
            route = Route(destination="default", family=4, interface=interface.name, gateway=gateway)
            source = f"{address.address}/32"
            rules.append(RoutingRule(source=source, family=4, priority=100 + at, table=100 + at, routes=(route,)))
        interfaces.append(replace(interface, addresses=own or interface.addresses))
    return replace(snapshot, interfaces=tuple(interfaces), routes=(), routing_rules=tuple(rules))


def only(snapshot: Snapshot, *hcas: str) -> Snapshot:
    """Leave a node only some of its RDMA devices."""
    return replace(snapshot, hcas=tuple(hca for hca in snapshot.hcas if hca.name in hcas))


def with_fabric(snapshot: Snapshot, **fields: object) -> Snapshot:
    """Change how the GPUs are registered in their NVLink fabric."""

    def changed(gpu: Gpu) -> Gpu:
        return replace(gpu, fabric=replace(gpu.fabric or NvlinkFabric(), **fields))  # type: ignore[arg-type] # the caller names fields

    return replace(snapshot, gpus=tuple(map(changed, snapshot.gpus)))


def on_leaves(snapshot: Snapshot, leaves: Mapping[str, str], port: int) -> Snapshot:
    """Say that the node has walked over one InfiniBand fabric and met a leaf at each of its ports, and a spine."""
    switches = tuple(
        IbSwitch(
            guid=f"0x{name.encode().hex()}",
            name=name,
            links=(IbLink(port=port, peer="x", peer_port=1, local_port=one),),
        )
        for one, name in leaves.items()
    )
    spine = IbSwitch(guid="0x0", name="spine-1", hops=2)
    fabric = IbFabric(
        guid="0x0", switch_count=len(switches) + 1, hca_count=16, link_count=24, switches=(*switches, spine)
    )
    return replace(snapshot, ib_fabrics=(fabric,))
