"""Networks that are not for jobs' data, by where their ports sit: away from the GPUs, while others sit beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fabricd.graph.networks_rails import beside_gpus, interfaces_of
from fabricd.model.network import Network
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_JUDGED = frozenset({Transport.INFINIBAND, Transport.ROCE, Transport.ETHERNET, Transport.SLINGSHOT})
_LEAST_GPUS = 2


def by_gpus(networks: Sequence[Network], nodes: Mapping[str, Snapshot]) -> list[Network]:
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


def _roles(snapshot: Snapshot, networks: Mapping[int, set[str]]) -> dict[int, str]:
    """Return what one node says of its networks: "" for those beside GPUs; nothing where it cannot tell."""
    beside = beside_gpus(snapshot) if len(snapshot.gpus) >= _LEAST_GPUS else {}
    if len(beside) < _LEAST_GPUS:
        return {}
    address_of = {nic.name: nic.pci_address for nic in snapshot.interfaces}
    carried: dict[str, str] = {}
    for hca in snapshot.hcas:
        for port in hca.ports:
            address_of[f"{hca.name}:{port.port}"] = hca.pci_address
            carried.update(dict.fromkeys(interfaces_of(snapshot, hca, port), hca.pci_address))
    addresses = {
        at: {carried.get(name) or address_of.get(name, "") for name in names} - {""} for at, names in networks.items()
    }
    near = {at: sum(not known.isdisjoint(found) for known in beside.values()) for at, found in addresses.items()}
    covered = all(any(not known.isdisjoint(found) for found in addresses.values()) for known in beside.values())
    if not covered:
        return {}
    default = {route.interface for route in snapshot.routes if route.destination == "default"}
    return {
        at: "" if near[at] or not addresses[at] else "management" if default & networks[at] else "storage"
        for at in networks
    }
