"""Rails: networks, or leaf switches, that join the adapters of one place in their nodes, and which adapters count.

Nobody tells a host its rails. They are seen where several networks each join ports of one place on all their nodes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.model.device import Hca, HcaPort
from fabricd.model.network import Network, Rail
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_KINDS = frozenset({"infiniband", "roce", "efa", "mana", "slingshot", "omni-path"})
#: One network of these holds all of a node's adapters.
_WITHOUT_RAILS = frozenset({Transport.NVLINK, Transport.EFA, Transport.INTERNET})
_UP = frozenset({"active", ""})


@dataclass(frozen=True, slots=True)
class RailPort:
    """A port for jobs' data."""

    rail: int  #: its place among the node's, in order of PCI address
    name: str  #: "mlx5_0:1", or an interface of a node without RDMA
    interfaces: tuple[str, ...]  #: network interfaces on the same port


def rail_ports(snapshot: Snapshot) -> tuple[RailPort, ...]:
    """Return a node's ports for jobs' data, in order of PCI address: its fastest RDMA ports, else its fastest NICs.

    Where every GPU has one of them beside it, those beside no GPU do not count: they are for storage.
    """
    found = _rdma_ports(snapshot) or _nics(snapshot)
    fastest = max((speed or 0 for speed, *_ in found), default=0)
    chosen = [(address, name, interfaces) for speed, address, name, interfaces in found if (speed or 0) == fastest]
    beside = beside_gpus(snapshot)
    near = [one for one in chosen if any(one[0] in addresses for addresses in beside.values())]
    if beside and all(any(one[0] in addresses for one in near) for addresses in beside.values()):
        chosen = near
    return tuple(RailPort(rail, name, interfaces) for rail, (_, name, interfaces) in enumerate(sorted(chosen)))


def beside_gpus(snapshot: Snapshot) -> dict[str, frozenset[str]]:
    """Return, for each GPU by PCI address, the devices that share a PCIe switch with it; root ports are no switches."""
    parents = {device.address: device.parent for device in snapshot.pci}

    def switches(address: str) -> set[str]:
        above: list[str] = []
        while (address := parents.get(address, "")) and address not in above:
            above.append(address)
        return set(above[:-1])  # the last is the root port

    cards = [hca.pci_address for hca in snapshot.hcas] + [nic.pci_address for nic in snapshot.interfaces]
    above = {card: switches(card) for card in dict.fromkeys(cards) if card}
    return {
        gpu.pci_address: frozenset(card for card, known in above.items() if known & own)
        for gpu in snapshot.gpus
        if gpu.pci_address
        for own in [switches(gpu.pci_address)]
    }


_Found = tuple[int | None, str, str, tuple[str, ...]]


def _rdma_ports(snapshot: Snapshot) -> list[_Found]:
    hcas = [hca for hca in snapshot.hcas if hca.kind in _KINDS]
    physical = [hca for hca in hcas if not hca.virtual_function]
    found = [
        (port.rate_bytes_per_second, hca.pci_address, f"{hca.name}:{port.port}", interfaces_of(snapshot, hca, port))
        for hca in hcas
        for port in hca.ports
        if port.state in _UP
    ]
    # A host's virtual functions share its cards; a virtual machine has nothing else.
    own = {f"{hca.name}:{port.port}" for hca in physical for port in hca.ports if port.state in _UP}
    return [one for one in found if one[2] in own] if own else found


def interfaces_of(snapshot: Snapshot, hca: Hca, port: HcaPort) -> tuple[str, ...]:
    """Return the network interfaces on an RDMA port, as its GIDs and the interfaces themselves say."""
    by_gid = [gid.interface for gid in port.gids if gid.interface]
    own = [one.name for one in snapshot.interfaces if one.rdma_device == hca.name and len(hca.ports) == 1]
    return tuple(dict.fromkeys((*by_gid, *own)))


def _nics(snapshot: Snapshot) -> list[_Found]:
    return [
        (nic.speed_bytes_per_second, nic.pci_address, nic.name, (nic.name,))
        for nic in snapshot.interfaces
        if nic.pci_address and nic.admin_up and nic.carrier is not False and nic.oper_state in ("up", "unknown", "")
    ]


def with_rails(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> list[Network]:
    """Return networks with their rails: several of one transport that each join ports of one place on their nodes."""
    members = {port.node for network in networks for port in network.ports}
    if len(members) < 2:
        return list(networks)
    places = {node_id: _places(nodes[node_id]) for node_id in members if node_id in nodes}
    index = {at: _index(network, places) for at, network in enumerate(networks)}
    count = Counter((networks[at].transport, rail) for at, rail in index.items() if rail is not None)
    several = Counter(transport for transport, _ in count)
    return [
        replace(network, rail=_rail(network, rail))
        if (rail := index[at]) is not None and several[network.transport] > 1
        else network
        for at, network in enumerate(networks)
    ]


def _places(snapshot: Snapshot) -> dict[str, int]:
    ports = rail_ports(snapshot)
    return {name: port.rail for port in ports for name in (*port.interfaces, port.name)}


def _index(network: Network, places: Mapping[str, Mapping[str, int]]) -> int | None:
    """Return the place that all ports of a network have in their nodes; None where they have several, or none."""
    if network.transport in _WITHOUT_RAILS or len({port.node for port in network.ports}) < 2:
        return None
    found = {places.get(port.node, {}).get(port.interface) for port in network.ports}
    return found.pop() if len(found) == 1 else None


def _rail(network: Network, index: int) -> Rail:
    nodes = len({port.node for port in network.ports})
    seen = network.verified is not Evidence.ASSUMED
    return Rail(
        index=index,
        verified=network.verified if seen else Evidence.ASSUMED,
        reason=f"it joins port {index} of the {nodes} nodes, by PCI address, and other networks join their other ports",
    )
