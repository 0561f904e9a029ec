"""Rails: networks, or leaf switches, that join the adapters of one place in their nodes, and which adapters count.

Nobody tells a host its rails. They are seen where several networks each join ports of one place on all their nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fabricd.model.device import InterfaceKind, PciDevice
from fabricd.model.network import Network, Rail
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

#: RDMA devices whose ports may carry jobs' data; not those that are done by software.
RDMA_KINDS = frozenset({"infiniband", "roce", "efa", "mana", "slingshot", "omni-path"})
#: One network of these holds all of a node's adapters.
_WITHOUT_RAILS = frozenset({Transport.NVLINK, Transport.EFA, Transport.INTERNET})
_UP = frozenset({"active", ""})
_BONDS = frozenset({InterfaceKind.BOND, InterfaceKind.TEAM})


@dataclass(frozen=True, slots=True)
class RailPort:
    """A port for jobs' data."""

    rail: int  #: its place among the node's, in order of PCI address
    name: str  #: "mlx5_0:1", or an interface of a node without RDMA
    interfaces: tuple[str, ...]  #: network interfaces on the same port


def rail_ports(snapshot: Snapshot) -> tuple[RailPort, ...]:
    """Return a node's ports for jobs' data, in order of PCI address: RDMA ports, else NICs.

    Where every GPU has one of them beside it, only those beside GPUs count; elsewhere those that are at least half as
    fast as the fastest; all of one link layer. One that is down keeps its place, so that the others keep theirs.
    """
    found = _one_a_card(_rdma_ports(snapshot)) or _one_a_card(_nics(snapshot))
    beside = beside_gpus(snapshot)
    addresses = {port.address for port in found}
    if beside and not any(near.isdisjoint(addresses) for near in beside.values()):
        near = frozenset().union(*beside.values())
        found = [port for port in found if port.address in near]
    else:
        fastest = max((port.speed or 0 for port in found if port.up), default=0)
        found = [port for port in found if not port.up or (port.speed or 0) * 2 >= fastest]
    # InfiniBand for jobs beside Ethernet for storage, or the other way round: that of the fastest port counts.
    layer = max(found, key=lambda port: (port.up, port.speed or 0)).layer if found else ""
    found = [port for port in found if port.layer == layer]
    found.sort(key=lambda port: (port.address, port.name))
    return tuple(RailPort(rail, port.name, port.interfaces) for rail, port in enumerate(found))


def beside_gpus(snapshot: Snapshot) -> Mapping[str, frozenset[str]]:
    """Return, for each GPU by PCI address, the devices that share a PCIe switch with it; root ports are no switches.

    Kept by kind of machine: snapshots that came over the network share a PCI tree that is equal on them.
    """
    cards = (*(hca.pci_address for hca in snapshot.hcas), *(nic.pci_address for nic in snapshot.interfaces))
    gpus = tuple(gpu.pci_address for gpu in snapshot.gpus)
    return _beside(_Tree(snapshot.pci), cards, gpus)


class _Tree:
    """A PCI tree that is equal to itself alone: comparing hundreds of functions would cost more than it saves."""

    __slots__ = ("devices",)

    def __init__(self, devices: tuple[PciDevice, ...]) -> None:
        self.devices = devices

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Tree) and other.devices is self.devices

    def __hash__(self) -> int:
        return id(self.devices)


@lru_cache(maxsize=64)
def _beside(tree: _Tree, cards: tuple[str, ...], gpus: tuple[str, ...]) -> Mapping[str, frozenset[str]]:
    parents = {device.address: device.parent for device in tree.devices}

    def switches(address: str) -> set[str]:
        above: dict[str, None] = {}
        while (address := parents.get(address, "")) and address not in above:
            above[address] = None
        return set(list(above)[:-1])  # the last is the root port

    above = {card: switches(card) for card in dict.fromkeys(cards) if card}
    return {
        gpu: frozenset(card for card, known in above.items() if known & own)
        for gpu in gpus
        if gpu
        for own in [switches(gpu)]
    }


@dataclass(frozen=True, slots=True)
class _Port:
    name: str
    address: str  #: of the card
    up: bool
    speed: int | None
    layer: str  #: of an RDMA port: "infiniband", "ethernet"
    interfaces: tuple[str, ...]


def _one_a_card(ports: Sequence[_Port]) -> list[_Port]:
    """Return the ports that are up, and of a card that has none the first; nothing where all are down."""
    up = {port.address for port in ports if port.up}
    first = {port.address: port for port in reversed(ports)}
    return [port for port in ports if port.up or (port.address not in up and first[port.address] is port)] if up else []


def _rdma_ports(snapshot: Snapshot) -> list[_Port]:
    hcas = [hca for hca in snapshot.hcas if hca.kind in RDMA_KINDS]
    # A host's virtual functions share its cards; a virtual machine has nothing else.
    chosen = [hca for hca in hcas if not hca.virtual_function] or hcas
    interfaces = port_interfaces(snapshot)
    return [
        _Port(
            name=name,
            address=hca.pci_address or hca.name,
            up=port.state in _UP,
            speed=port.rate_bytes_per_second,
            layer=port.link_layer,
            interfaces=interfaces[name],
        )
        for hca in chosen
        for name, port in hca.named_ports()
    ]


def port_interfaces(snapshot: Snapshot) -> Mapping[str, tuple[str, ...]]:
    """Return the network interfaces on each RDMA port, as its GIDs and the interfaces themselves say.

    Equal ones of many nodes are one object.
    """
    own: dict[str, list[str]] = {}
    for one in snapshot.interfaces:
        if one.rdma_device:
            own.setdefault(one.rdma_device, []).append(one.name)
    found = []
    for hca in snapshot.hcas:
        alone = own.get(hca.name, ()) if len(hca.ports) == 1 else ()
        for name, port in hca.named_ports():
            names = [gid.interface for gid in port.gids if gid.interface]
            found.append((name, tuple(dict.fromkeys((*names, *alone)))))
    return _by_port(tuple(found))


@lru_cache(maxsize=1024)
def _by_port(found: tuple[tuple[str, tuple[str, ...]], ...]) -> Mapping[str, tuple[str, ...]]:
    return dict(found)


def _nics(snapshot: Snapshot) -> list[_Port]:
    """Return a node's cards; those in a bond are one port, that of the first."""
    bonds = {one.name: one for one in snapshot.interfaces if one.kind in _BONDS}
    found: dict[str, _Port] = {}
    for nic in sorted(snapshot.interfaces, key=lambda one: one.pci_address):
        if nic.pci_address:
            port = bonds.get(nic.controller, nic)
            up = port.admin_up and port.carrier is not False and port.oper_state in ("up", "unknown", "")
            speed = port.speed_bytes_per_second
            found.setdefault(port.name, _Port(port.name, nic.pci_address, up, speed, layer="", interfaces=(port.name,)))
    return list(found.values())


def with_rails(networks: Sequence[Network], places: Mapping[str, Mapping[str, int]]) -> list[Network]:
    """Return networks with their rails: several of one transport that each join ports of one place on their nodes.

    Args:
        networks: of some nodes.
        places: of each node's ports for jobs' data, by node_id.
    """
    if len(places) < 2:
        return list(networks)
    index = {at: _index(network, places) for at, network in enumerate(networks)}
    count = Counter((networks[at].transport, rail) for at, rail in index.items() if rail is not None)
    several = Counter(transport for transport, _ in count)
    return [
        replace(network, rail=_rail(network, rail))
        if (rail := index[at]) is not None and several[network.transport] > 1
        else network
        for at, network in enumerate(networks)
    ]


def _index(network: Network, places: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the place that all ports of a network have in their nodes; None where they have several, or none."""
    if network.transport in _WITHOUT_RAILS or len({port.node for port in network.ports}) < 2:
        return None
    found = {places[port.node].get(port.interface) for port in network.ports}
    return found.pop() if len(found) == 1 else None


def _rail(network: Network, index: int) -> Rail:
    nodes = len({port.node for port in network.ports})
    seen = network.verified is not Evidence.ASSUMED
    return Rail(
        index=index,
        verified=network.verified if seen else Evidence.ASSUMED,
        reason=f"it joins port {index} of the {nodes} nodes, by PCI address, and other networks join their other ports",
    )
