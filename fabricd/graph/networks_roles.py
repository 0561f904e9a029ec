"""Networks that are not for jobs' data, by where their ports sit: away from the GPUs, while others sit beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fabricd.graph.networks_rails import beside_gpus
from fabricd.model.network import Network
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_JUDGED = frozenset({Transport.INFINIBAND, Transport.ROCE, Transport.ETHERNET, Transport.SLINGSHOT})
_LEAST_GPUS = 2


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What of a node tells which of its ports sit beside GPUs."""

    beside: Sequence[frozenset[str]]  #: PCI addresses of the cards beside each GPU; none where it cannot be told
    address_of: Mapping[str, str]  #: of the card below each port and interface
    default: frozenset[str]  #: interfaces that packets for everywhere leave by


def surroundings(snapshot: Snapshot, interfaces: Mapping[str, Sequence[str]]) -> Surroundings:
    """Return what of a node tells which ports sit beside GPUs; for nodes that are alike one object.

    Args:
        snapshot: of the node.
        interfaces: on each RDMA port.
    """
    beside = tuple(beside_gpus(snapshot).values()) if len(snapshot.gpus) >= _LEAST_GPUS else ()
    if len(beside) < _LEAST_GPUS:
        return _UNKNOWN
    address_of = {nic.name: nic.pci_address for nic in snapshot.interfaces}
    for name, hca, _ in snapshot.hca_ports():
        address_of[name] = hca.pci_address
        if hca.pci_address:
            address_of.update(dict.fromkeys(interfaces[name], hca.pci_address))
    default = frozenset(route.interface for route in snapshot.routes if route.destination == "default")
    return _as_one(beside, tuple(address_of.items()), default)


@lru_cache(maxsize=1024)
def _as_one(
    beside: tuple[frozenset[str], ...], address_of: tuple[tuple[str, str], ...], default: frozenset[str]
) -> Surroundings:
    return Surroundings(beside, dict(address_of), default)


_UNKNOWN = Surroundings((), {}, frozenset())


def by_gpus(networks: Sequence[Network], nodes: Mapping[str, Surroundings]) -> list[Network]:
    """Return networks, with role "storage" or "management" for those whose ports are beside no GPU.

    Only where it is plain: on a node where each of several GPUs has a port of another network beside it. The way that
    packets for everywhere take is called management, another one storage.
    """
    judged = [at for at, network in enumerate(networks) if _is_open(network)]
    ports: dict[str, dict[int, set[str]]] = {}  # node -> network -> its ports there
    for at in judged:
        for port in networks[at].ports:
            ports.setdefault(port.node, {}).setdefault(at, set()).add(port.interface)
    speaks: dict[int, set[str]] = {}  # network -> what its nodes say: "" for "it has ports beside GPUs"
    for node_id, of_networks in ports.items():
        for at, role in _roles(nodes[node_id], of_networks).items():
            speaks.setdefault(at, set()).add(role)
    told = list(networks)
    for at, roles in speaks.items():
        if "" not in roles:
            role = "management" if "management" in roles else "storage"
            told[at] = replace(told[at], role=role, reason=f"{told[at].reason}; {_REASON}")
    return told


def _is_open(network: Network) -> bool:
    return network.role == "data" and not network.configured and network.transport in _JUDGED


_REASON = "no GPU is beside its ports, while each GPU of the node has a port of another network beside it"


def _roles(node: Surroundings, networks: Mapping[int, set[str]]) -> dict[int, str]:
    """Return what one node says of its networks: "" for those beside GPUs; nothing where it cannot tell."""
    if not node.beside:
        return {}
    addresses = {at: {node.address_of.get(name, "") for name in names} - {""} for at, names in networks.items()}
    met = frozenset().union(*addresses.values())
    if any(cards.isdisjoint(met) for cards in node.beside):
        return {}
    near = frozenset().union(*node.beside)
    return {
        at: ""
        if not cards or not cards.isdisjoint(near)
        else "management"
        if node.default & networks[at]
        else "storage"
        for at, cards in addresses.items()
    }
