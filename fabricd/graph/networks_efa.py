"""EFA: the cloud's own RDMA, which knows no addresses that a host could compare.

Its traffic leaves neither a virtual network (VPC) nor an availability zone. Source: Amazon EC2 User Guide, limitations
of Elastic Fabric Adapters.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fabricd.model.network import Network, NetworkPort
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot

_UP = frozenset({"active", ""})


def efa_networks(
    ports: Mapping[str, Sequence[NetworkPort]], stands: Mapping[str, tuple[str, str]], ethernet: Sequence[Network]
) -> list[Network]:
    """Return EFA networks: by virtual network and zone where the provider tells both of all nodes, else by IP subnet.

    Nodes of one subnet whose zones are known to differ are apart: then two virtual networks use the same addresses.

    Args:
        ports: EFA ports of each node that has any, by node_id.
        stands: virtual network and zone of each of them, "" for what nobody tells.
        ethernet: the nodes' IP networks.
    """
    if all(vpc and zone for vpc, zone in stands.values()):
        places: dict[tuple[str, str], list[str]] = {}
        for node_id, place in stands.items():
            places.setdefault(place, []).append(node_id)
        return [
            _network(f"{vpc}.{zone}", members, ports, f"the provider says that its nodes are in {vpc} and zone {zone}")
            for (vpc, zone), members in places.items()
        ]
    return list(_by_subnet(ethernet, ports, {node_id: zone for node_id, (_, zone) in stands.items()}))


def _by_subnet(
    ethernet: Sequence[Network], ports: Mapping[str, Sequence[NetworkPort]], zones: Mapping[str, str]
) -> Iterator[Network]:
    left = set(ports)
    for network in ethernet:
        here = list(dict.fromkeys(port.node for port in network.ports if port.node in left))
        left.difference_update(here)
        known = sorted({zones[node_id] for node_id in here} - {""})
        reason = f"EFA devices of nodes on {network.name}"
        if len(known) < 2:
            if here:
                yield _network(network.name, here, ports, reason)
            continue
        for zone in (*known, ""):
            if members := [node_id for node_id in here if zones[node_id] == zone]:
                apart = f"{reason}, which are in different zones; these in {zone or 'none that is known'}"
                yield _network(f"{network.name}@{zone or 'unknown'}", members, ports, apart)


def _network(name: str, members: Iterable[str], ports: Mapping[str, Sequence[NetworkPort]], reason: str) -> Network:
    found = tuple(port for node_id in members for port in ports[node_id])
    return Network(name=f"efa:{name}", transport=Transport.EFA, ports=found, reason=reason)


def efa_ports(node_id: str, snapshot: Snapshot) -> Iterator[NetworkPort]:
    """Yield the EFA ports of a node that are up."""
    for name, hca, port in snapshot.hca_ports():
        if hca.kind == "efa" and port.state in _UP:
            yield NetworkPort(
                node=node_id,
                interface=name,
                speed_bytes_per_second=port.rate_bytes_per_second,
                numa_node=hca.numa_node,
            )


def stands_in(snapshot: Snapshot) -> tuple[str, str]:
    """Return a node's virtual network and zone, "" for what nobody tells."""
    vpc = next((position.vpc for position in snapshot.positions if position.vpc), "")
    return vpc, next((position.zone for position in snapshot.positions if position.zone), "")
