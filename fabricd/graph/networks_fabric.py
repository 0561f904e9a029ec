"""Networks of RDMA ports."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from fabricd.graph.disjoint import DisjointSets
from fabricd.graph.networks_partitions import by_partition, full_keys
from fabricd.model.device import Hca, HcaPort
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Rejected, Transport
from fabricd.model.snapshot import Snapshot

_DEFAULT_PREFIX = "fe80:0000:0000:0000"
#: What the name of a RoCE network begins with; that of the IP network on its ports follows.
ROCE_PREFIX = "roce:"
_ROCE = frozenset({"roce", "soft-roce", "mana"})


class Leaf(NamedTuple):
    """The switch that a port goes into."""

    fabric: IbFabric
    switch: IbSwitch
    link: IbLink  #: the switch's end of the link


class FabricPort(NamedTuple):
    """An InfiniBand port that is active, and what tells which fabric it is on."""

    port: NetworkPort
    prefix: str  #: of its subnet: the upper half of the first GID
    manager: int | None  #: LID of the subnet manager
    lid: int | None
    virtual_function: bool
    walked: frozenset[str]  #: GUIDs of the switches nearby, where its node has walked over the fabric
    keys: frozenset[int]  #: of partitions that it is a full member of


def fabric_ports(
    node_id: str, snapshot: Snapshot, leaves: Mapping[str, Leaf]
) -> tuple[list[FabricPort], list[Rejected]]:
    """Return a node's InfiniBand ports, and those of them that are on no fabric.

    Args:
        node_id: of the node.
        snapshot: of the node.
        leaves: switches that its ports go into.
    """
    walked = _walked(leaves)
    found, rejected = [], []
    for name, hca, port in snapshot.hca_ports():
        if port.link_layer == "infiniband" and port.state == "active":
            first = min(port.gids, key=lambda gid: gid.index, default=None)
            found.append(
                FabricPort(
                    _network_port(node_id, name, hca, port),
                    sys.intern(first.gid[:19].lower()) if first else "",
                    port.sm_lid,
                    port.lid,
                    hca.virtual_function,
                    walked.get(name, frozenset()),
                    full_keys(port),
                )
            )
        elif port.link_layer == "infiniband":
            reason = f"its state is {port.state or 'unknown'}"
            rejected.append(Rejected(name=f"{node_id}/{name}", reason=reason))
    return found, rejected


def leaves_of(snapshot: Snapshot) -> dict[str, Leaf]:
    """Return the switch that each port of a node goes into, by the port's name, where it has walked over the fabric."""
    return {
        link.local_port: Leaf(fabric, switch, link)
        for fabric in snapshot.ib_fabrics
        for switch in fabric.switches
        for link in switch.links
        if link.local_port
    }


def infiniband_networks(found: Iterable[FabricPort]) -> list[Network]:
    """Return InfiniBand fabrics, or their partitions.

    Ports whose nodes have walked over their fabric are on one, where they met the same switches. Without that, a
    subnet prefix of its own names a fabric. The default one names none: isolated rails all bear it, so there different
    LIDs of the subnet manager, or one LID on two ports, prove that fabrics differ, and agreement on both is only
    assumed to mean one fabric.
    """
    fabrics: dict[tuple[str, int | None], list[FabricPort]] = {}
    for one in found:
        fabrics.setdefault((one.prefix, one.manager), []).append(one)
    networks: list[Network] = []
    for (prefix, manager), ports in sorted(fabrics.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        several = len([1 for other, _ in fabrics if other == prefix]) > 1
        name = f"ib:{prefix or 'unknown'}" + (f"@sm{manager}" if several else "")
        if all(one.walked for one in ports):
            networks += _by_switches(name, ports)
        else:
            networks += _fabric(name, prefix, manager, ports)
    return networks


def _walked(leaves: Mapping[str, Leaf]) -> dict[str, frozenset[str]]:
    """Return the GUIDs that tell a fabric for each port whose node has walked over it: of its switches nearby."""
    met: dict[int, frozenset[str]] = {}
    for leaf in leaves.values():
        if id(leaf.fabric) not in met:
            guids = (leaf.fabric.guid, *(switch.guid for switch in leaf.fabric.switches))
            met[id(leaf.fabric)] = _as_one(frozenset(guids))
    return {port: met[id(leaf.fabric)] for port, leaf in leaves.items()}


@lru_cache(maxsize=1024)
def _as_one(guids: frozenset[str]) -> frozenset[str]:
    """Return one object for all that are equal: nodes on the same leaves have met the same."""
    return guids


def _by_switches(name: str, ports: Sequence[FabricPort]) -> Iterator[Network]:
    """Yield the networks of each group of ports that have switches in common, directly or through others."""
    met = list(dict.fromkeys(one.walked for one in ports))
    if frozenset.intersection(*met):  # one fabric whose spines all have met: most are
        yield from _met_by_all(name, ports, min(map(min, met)))
        return
    together = DisjointSets[str]()
    for walked in met:
        guids = sorted(walked)
        for guid in guids[1:]:
            together.join(*sorted((together.leader(guids[0]), together.leader(guid))))
    groups: dict[str, list[FabricPort]] = {}
    for one in ports:
        groups.setdefault(together.leader(min(one.walked)), []).append(one)
    for guid, members in groups.items():
        yield from _met_by_all(name if len(groups) == 1 else f"{name}@{guid}", members, guid)


def _met_by_all(name: str, ports: Sequence[FabricPort], guid: str) -> Iterator[Network]:
    reason = f"their nodes have walked over the fabric and met the same switches ({guid})"
    yield from _networks(name, ports, reason, Evidence.REPORTED)


def _fabric(name: str, prefix: str, manager: int | None, ports: Sequence[FabricPort]) -> Iterator[Network]:
    facts = f"same subnet prefix {prefix or 'unknown'} and subnet manager LID {manager}"
    if prefix == _DEFAULT_PREFIX:
        facts += "; the prefix is the default one, so this may be several fabrics"
    twice = _lid_twice(ports)
    if not twice:
        yield from _networks(name, ports, facts)
        return
    rails: dict[str, list[FabricPort]] = {}
    for one in ports:
        rails.setdefault(one.port.interface, []).append(one)
    for rail, members in sorted(rails.items()):
        again = _lid_twice(members)
        reason = f"{twice}: several fabrics, taken as one for each rail, by the device's name"
        for group in [[one] for one in members] if again else [members]:
            where = f"@{rail}" + (f"@{group[0].port.node}" if again else "")
            yield from _networks(name + where, group, f"{again or reason}")


def _lid_twice(ports: Iterable[FabricPort]) -> str:
    """Return which LID stands on two ports. Virtual functions share that of their card and prove nothing."""
    seen: dict[int, FabricPort] = {}
    for one in ports:
        if not one.lid or one.virtual_function:
            continue
        other = seen.setdefault(one.lid, one)
        if other is not one:
            ends = [f"{port.node}/{port.interface}" for port in (other.port, one.port)]
            return f"LID {one.lid} is at {ends[0]} and at {ends[1]}"
    return ""


def _networks(
    name: str, ports: Sequence[FabricPort], reason: str, verified: Evidence = Evidence.ASSUMED
) -> Iterator[Network]:
    """Yield the partitions of ports on one fabric."""
    members = tuple(one.port for one in ports)
    network = Network(name=name, transport=Transport.INFINIBAND, ports=members, reason=reason, verified=verified)
    yield from by_partition(network, [one.keys for one in ports])


def roce_ports(
    node_id: str, snapshot: Snapshot, interfaces: Mapping[str, Sequence[str]]
) -> dict[str, list[NetworkPort]]:
    """Return a node's RoCE ports that are active, by the interfaces on them.

    Args:
        node_id: of the node.
        snapshot: of the node.
        interfaces: on each RDMA port.
    """
    found: dict[str, list[NetworkPort]] = {}
    for name, hca, port in snapshot.hca_ports() if interfaces else ():
        if hca.kind in _ROCE and port.link_layer == "ethernet" and port.state == "active":
            for interface in interfaces[name]:
                found.setdefault(interface, []).append(_network_port(node_id, name, hca, port))
    return found


def roce_zone(snapshot: Snapshot) -> str:
    """Return the zone of a node in whose cloud an RDMA network lies in one zone alone; "" for none.

    Source: Google Cloud, VPC documentation, RDMA network profiles: zonal constraint.
    """
    return next((one.zone for one in snapshot.positions if one.source == "gcp" and one.zone), "")


def roce_networks(
    ports: Mapping[str, Mapping[str, Sequence[NetworkPort]]], ethernet: Sequence[Network], zones: Mapping[str, str]
) -> list[Network]:
    """Return RoCE networks: one for each IP network whose interfaces are RDMA devices' own.

    Where nodes stand in different zones and their RDMA networks in one each, one for each zone: the addresses are
    alike, the networks are not.

    Args:
        ports: by node_id, and interface of the node.
        ethernet: IP networks.
        zones: of the nodes that ``roce_zone`` tells one of.
    """
    networks: list[Network] = []
    for network in ethernet:
        members = [
            replace(one, address=port.address)
            for port in network.ports
            for one in ports[port.node].get(port.interface, ())
        ]
        if members:
            whole = Network(
                name=f"{ROCE_PREFIX}{network.name}",
                transport=Transport.ROCE,
                ports=tuple(members),
                role=network.role,
                configured=network.configured,
                reason=network.reason,
            )
            networks += _by_zone(whole, zones) if zones else [whole]
    return networks


def _by_zone(network: Network, zones: Mapping[str, str]) -> Iterator[Network]:
    members: dict[str, list[NetworkPort]] = {}
    for port in network.ports:
        members.setdefault(zones.get(port.node, ""), []).append(port)
    if len(members.keys() - {""}) < 2:
        yield network
        return
    for zone in sorted(members):
        reason = f"{network.reason}, but its nodes are in different zones, which RDMA networks there do not cross"
        where = f"; these in {zone or 'none that is known'}"
        name = f"{network.name}@{zone or 'unknown'}"
        yield replace(network, name=name, ports=tuple(members[zone]), reason=reason + where)


def _network_port(node_id: str, name: str, hca: Hca, port: HcaPort) -> NetworkPort:
    return NetworkPort(
        node=node_id,
        interface=sys.intern(name),  # every node of a large map has the same
        speed_bytes_per_second=port.rate_bytes_per_second,
        virtual=hca.kind == "soft-roce",
        numa_node=hca.numa_node,
    )
