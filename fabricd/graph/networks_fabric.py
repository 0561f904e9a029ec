"""Networks of RDMA ports."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fabricd.graph.disjoint import DisjointSets
from fabricd.graph.networks_rails import interfaces_of
from fabricd.model.device import Hca, HcaPort
from fabricd.model.network import Network, NetworkPort
from fabricd.model.observation import Evidence
from fabricd.model.path import Rejected, Transport
from fabricd.model.snapshot import Snapshot

_DEFAULT_PREFIX = "fe80:0000:0000:0000"


@dataclass(frozen=True, slots=True)
class _Port:
    node: str
    hca: Hca
    port: HcaPort

    @property
    def name(self) -> str:
        return f"{self.hca.name}:{self.port.port}"

    @property
    def prefix(self) -> str:
        """The subnet prefix: the upper half of the first GID."""
        first = min(self.port.gids, key=lambda gid: gid.index, default=None)
        return first.gid[:19].lower() if first else ""

    def as_network_port(self, address: str = "") -> NetworkPort:
        return NetworkPort(
            node=self.node,
            interface=self.name,
            address=address,
            speed_bytes_per_second=self.port.rate_bytes_per_second,
            virtual=self.hca.kind == "soft-roce",
            numa_node=self.hca.numa_node,
        )


def _ports(nodes: Mapping[str, Snapshot], layer: str) -> Iterator[_Port]:
    """Yield the ports of a link layer."""
    for node_id, snapshot in nodes.items():
        for hca in snapshot.hcas:
            for port in hca.ports:
                if port.link_layer == layer:
                    yield _Port(node_id, hca, port)


def infiniband_networks(nodes: Mapping[str, Snapshot]) -> tuple[list[Network], list[Rejected]]:
    """Return InfiniBand fabrics.

    Ports whose nodes have walked over their fabric are on one, where they met the same switches. Without that, a
    subnet prefix of its own names a fabric. The default one names none: isolated rails all bear it, so there different
    LIDs of the subnet manager, or one LID on two ports, prove that fabrics differ, and agreement on both is only
    assumed to mean one fabric.
    """
    walked = _walked(nodes)
    rejected: list[Rejected] = []
    fabrics: dict[tuple[str, int | None], list[_Port]] = {}
    for one in _ports(nodes, "infiniband"):
        if one.port.state != "active":
            reason = f"its state is {one.port.state or 'unknown'}"
            rejected.append(Rejected(name=f"{one.node}/{one.name}", reason=reason))
            continue
        fabrics.setdefault((one.prefix, one.port.sm_lid), []).append(one)
    networks: list[Network] = []
    for (prefix, manager), ports in sorted(fabrics.items(), key=lambda item: (item[0][0], item[0][1] or 0)):
        several = len([1 for other, _ in fabrics if other == prefix]) > 1
        name = f"ib:{prefix or 'unknown'}" + (f"@sm{manager}" if several else "")
        if all((one.node, one.name) in walked for one in ports):
            networks += _by_switches(name, ports, walked)
        else:
            networks += _fabric(name, prefix, manager, ports)
    return networks, rejected


def _walked(nodes: Mapping[str, Snapshot]) -> dict[tuple[str, str], frozenset[str]]:
    """Return the GUIDs that tell a fabric for each port whose node has walked over it: of its switches nearby."""
    known: dict[tuple[str, str], frozenset[str]] = {}
    for node_id, snapshot in nodes.items():
        for fabric in snapshot.ib_fabrics:
            guids = frozenset((fabric.guid, *(switch.guid for switch in fabric.switches)))
            links = (link for switch in fabric.switches for link in switch.links)
            known.update({(node_id, link.local_port): guids for link in links if link.local_port})
    return known


def _by_switches(
    name: str, ports: Sequence[_Port], walked: Mapping[tuple[str, str], frozenset[str]]
) -> Iterator[Network]:
    """Yield one network for each group of ports that have switches in common, directly or through others."""
    met = [walked[one.node, one.name] for one in ports]
    if frozenset.intersection(*met):  # one fabric whose spines all have met: most are
        yield _met_by_all(name, ports, min(map(min, met)))
        return
    together = DisjointSets[str]()
    for one in ports:
        guids = sorted(walked[one.node, one.name])
        for guid in guids[1:]:
            together.join(*sorted((together.leader(guids[0]), together.leader(guid))))
    groups: dict[str, list[_Port]] = {}
    for one in ports:
        groups.setdefault(together.leader(min(walked[one.node, one.name])), []).append(one)
    for guid, members in groups.items():
        yield _met_by_all(name if len(groups) == 1 else f"{name}@{guid}", members, guid)


def _met_by_all(name: str, ports: Sequence[_Port], guid: str) -> Network:
    reason = f"their nodes have walked over the fabric and met the same switches ({guid})"
    return replace(_network(name, ports, reason), verified=Evidence.REPORTED)


def _fabric(name: str, prefix: str, manager: int | None, ports: Sequence[_Port]) -> Iterator[Network]:
    facts = f"same subnet prefix {prefix or 'unknown'} and subnet manager LID {manager}"
    if prefix == _DEFAULT_PREFIX:
        facts += "; the prefix is the default one, so this may be several fabrics"
    twice = _lid_twice(ports)
    if not twice:
        yield _network(name, ports, facts)
        return
    rails: dict[str, list[_Port]] = {}
    for one in ports:
        rails.setdefault(one.name, []).append(one)
    for rail, members in sorted(rails.items()):
        again = _lid_twice(members)
        reason = f"{twice}: several fabrics, taken as one for each rail, by the device's name"
        for group in [[one] for one in members] if again else [members]:
            where = f"@{rail}" + (f"@{group[0].node}" if again else "")
            yield _network(name + where, group, f"{again or reason}")


def _lid_twice(ports: Iterable[_Port]) -> str:
    """Return which LID stands on two ports. Virtual functions share that of their card and prove nothing."""
    seen: dict[int, _Port] = {}
    for one in ports:
        if not one.port.lid or one.hca.virtual_function:
            continue
        other = seen.setdefault(one.port.lid, one)
        if other is not one:
            return f"LID {one.port.lid} is at {other.node}/{other.name} and at {one.node}/{one.name}"
    return ""


def roce_networks(nodes: Mapping[str, Snapshot], ethernet: Sequence[Network]) -> list[Network]:
    """Return RoCE networks: one for each IP network whose interfaces are RDMA devices' own."""
    if not ethernet:
        return []
    ports = [one for one in _ports(nodes, "ethernet") if one.port.state == "active"]
    by_interface: dict[tuple[str, str], list[_Port]] = {}
    for one in ports:
        if one.hca.kind in ("roce", "soft-roce", "mana"):
            for interface in interfaces_of(nodes[one.node], one.hca, one.port):
                by_interface.setdefault((one.node, interface), []).append(one)
    networks = []
    for network in ethernet:
        members = [
            one.as_network_port(port.address)
            for port in network.ports
            for one in by_interface.get((port.node, port.interface), [])
        ]
        if members:
            networks.append(
                Network(
                    name=f"roce:{network.name}",
                    transport=Transport.ROCE,
                    ports=tuple(members),
                    role=network.role,
                    configured=network.configured,
                    reason=network.reason,
                )
            )
    return networks


def _network(name: str, ports: Sequence[_Port], reason: str) -> Network:
    members = tuple(one.as_network_port() for one in ports)
    return Network(name=name, transport=Transport.INFINIBAND, ports=members, reason=reason)
