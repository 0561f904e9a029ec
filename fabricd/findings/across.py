"""What is wrong between nodes that are to work together: what differs, networks, rails, and NVLink domains."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fabricd.findings.alike import MAJORITY, alike_findings
from fabricd.findings.measured import measured_findings
from fabricd.graph.networks_node import NodePorts
from fabricd.model.finding import Finding, Severity
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot
from fabricd.paths.port_facts import PortTables
from fabricd.units import format_names

#: A switch is a rail's when so many ports of it are on that rail.
_OF_A_RAIL = 3
_SHOWN = 8
_Tables = Mapping[str, PortTables]


def across_findings(
    ports: Mapping[str, NodePorts],
    names: Mapping[str, str],
    networks: Sequence[Network],
    measurements: Iterable[Measurement] = (),
) -> Iterator[Finding]:
    """Yield what is wrong between nodes.

    Args:
        ports: of the nodes, by node_id.
        names: display names, by node_id.
        networks: that join them.
        measurements: what active probes between them found.
    """
    yield from alike_findings(ports, names)
    tables = {node_id: PortTables(one) for node_id, one in ports.items()}
    yield from _mtu(names, tables, networks)
    yield from _addresses(names, networks)
    yield from _rails(ports, names, tables, networks)
    yield from _domains(ports, names)
    yield from measured_findings(names, measurements, networks)


def _mtu(names: Mapping[str, str], tables: _Tables, networks: Sequence[Network]) -> Iterator[Finding]:
    for network in networks:
        if network.transport in (Transport.NVLINK, Transport.INTERNET):
            continue
        seen: dict[int, list[str]] = defaultdict(list)
        for port in network.ports:
            if mtu := tables[port.node].facts(port).mtu_bytes:
                seen[mtu].append(f"{names[port.node]}/{port.interface}")
        if len(seen) < 2:
            continue
        usual = max(seen, key=lambda mtu: (len(seen[mtu]), mtu))
        told = [f"{mtu}: {format_names(members, _SHOWN)}" for mtu, members in sorted(seen.items()) if mtu != usual]
        yield Finding(
            code="mtu-differs",
            severity=Severity.WARNING
            if network.transport is Transport.ETHERNET
            else Severity.ERROR,  # TCP's ends agree on a size, UDP's do not
            subject=network.name,
            what=f"ports of one network ({network.transport}) have different MTUs: large messages fail or hang",
            evidence=(f"{usual}: {len(seen[usual])} ports", *told[:_SHOWN]),
            fix="one MTU on all hosts, and at least that on every switch port: ip link set INTERFACE mtu N",
        )


def _addresses(names: Mapping[str, str], networks: Sequence[Network]) -> Iterator[Finding]:
    holders: dict[str, dict[str, str]] = defaultdict(dict)
    for network in networks:
        if network.role in ("compute", "data"):
            for port in network.ports:
                if port.address:
                    holders[port.address].setdefault(port.node, port.interface)
    for address, found in holders.items():
        if len(found) > 1:
            # On most nodes it is so by design: of links that end in the host, such as a BlueField's tmfifo_net0.
            usual = len(found) > 2 and len(found) >= len(names) * MAJORITY
            yield Finding(
                code="address-twice",
                severity=Severity.NOTE if usual else Severity.WARNING,
                subject=address,
                what=f"{address} is on several nodes: they cannot be on one network",
                evidence=tuple(f"{names[node]}/{name}" for node, name in list(found.items())[:_SHOWN]),
                fix="give each its own; addresses behind address translation are no way between nodes",
            )


def _rails(
    ports: Mapping[str, NodePorts], names: Mapping[str, str], tables: _Tables, networks: Sequence[Network]
) -> Iterator[Finding]:
    """A switch almost all of whose ports are on one rail, and a node whose other rail is plugged into it."""
    leaves = {
        (port.node, port.interface): leaf
        for network in networks
        for port in network.ports
        if (leaf := tables[port.node].facts(port).leaf)
    }
    plugged: dict[str, list[tuple[int, str, str]]] = defaultdict(list)
    usual_rails, _ = Counter(len(one.rails) for one in ports.values()).most_common(1)[0]
    for node_id, one in ports.items():
        if len(one.rails) != usual_rails:  # where an adapter is missing, those behind it have other places
            continue
        for rail in one.rails:
            names_of = (rail.name, *rail.interfaces)
            if leaf := next((leaves[node_id, name] for name in names_of if (node_id, name) in leaves), ""):
                plugged[leaf].append((rail.rail, names[node_id], rail.name))
    for leaf, found in plugged.items():
        usual, count = Counter(index for index, _, _ in found).most_common(1)[0]
        if count < _OF_A_RAIL or count < len(found) * MAJORITY:
            continue
        for index, name, adapter in found:
            if index != usual:
                yield Finding(
                    code="rail-crossed",
                    severity=Severity.WARNING,
                    node=name,
                    subject=adapter,
                    what=f"{adapter} is rail {index} of its node, and is plugged into the switch of rail {usual}",
                    evidence=(f"{leaf}: {count} of {len(found)} ports are rail {usual} of their nodes",),
                    fix="see the cabling; two cables of this node may be swapped",
                )


def _domains(ports: Mapping[str, NodePorts], names: Mapping[str, str]) -> Iterator[Finding]:
    """GPUs of several hosts in one NVLink domain reach each other only where each host has IMEX channels."""
    domains: dict[str, set[str]] = defaultdict(set)
    for node_id, one in ports.items():
        for gpu in one.snapshot.gpus:
            if gpu.fabric and gpu.fabric.cluster_uuid:
                domains[gpu.fabric.cluster_uuid].add(node_id)
    for domain, members in domains.items():
        without = [names[one] for one in sorted(members) if not _channels(ports[one].snapshot)]
        if len(members) > 1 and without:
            yield Finding(
                code="imex-missing",
                severity=Severity.WARNING,
                node=without[0] if len(without) == 1 else "",
                subject=domain,
                what="hosts of one NVLink domain have no IMEX channel: their GPUs do not reach other hosts' by NVLink",
                evidence=(f"{len(without)} of {len(members)} hosts: {', '.join(without[:_SHOWN])}",),
                fix="start nvidia-imex with all hosts in nodes_config.cfg, and make its channels: nvidia-modprobe -c "
                "0; nothing is wrong where ComputeDomains of Kubernetes make them for each job",
            )


def _channels(snapshot: Snapshot) -> Sequence[int]:
    return snapshot.gpu_driver.imex_channels if snapshot.gpu_driver else ()
