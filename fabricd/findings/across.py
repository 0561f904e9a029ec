"""What differs between nodes that are to work together: one node of many is the story that users tell most."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fabricd.graph.networks_node import NodePorts
from fabricd.model.finding import Finding, Severity
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot
from fabricd.paths.port_facts import PortTables
from fabricd.units import format_bandwidth, format_count

#: Of the nodes alike, so many agree: then those that differ are told of. Else the cluster has several kinds of nodes.
_MAJORITY = 2 / 3
#: A switch is a rail's when so many ports of it are on that rail.
_OF_A_RAIL = 3
_SHOWN = 8
_Tables = Mapping[str, PortTables]


@dataclass(frozen=True, slots=True)
class _Trait:
    """Something that should be the same on all nodes of a kind."""

    code: str
    severity: Severity
    what: str  #: "NVIDIA drivers"; {subject} stands for what it is asked of
    of: Callable[[NodePorts], Mapping[str, str]]  #: values by subject, but for what is not known
    fix: str


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
    kinds: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node_id, one in ports.items():
        if one.snapshot.gpus:
            gpus = sorted({gpu.name for gpu in one.snapshot.gpus})
            kinds[one.snapshot.node.product, *gpus].append(node_id)
    for members in kinds.values():
        if len(members) > 1:
            alike = {names[node_id]: ports[node_id] for node_id in members}
            for trait in _TRAITS:
                yield from _differing(trait, alike)
    tables = {node_id: PortTables(one) for node_id, one in ports.items()}
    yield from _mtu(names, tables, networks)
    yield from _addresses(names, networks)
    yield from _rails(ports, names, tables, networks)
    yield from _domains(ports, names)
    yield from _unreachable(names, measurements)


def _differing(trait: _Trait, nodes: Mapping[str, NodePorts]) -> Iterator[Finding]:
    """Yield each node that differs from most, by subject."""
    values: dict[str, dict[str, str]] = defaultdict(dict)
    for name, one in nodes.items():
        for subject, value in trait.of(one).items():
            values[subject][name] = value
    for subject, by_node in values.items():
        usual, count = Counter(by_node.values()).most_common(1)[0]
        others = [name for name, value in by_node.items() if value != usual]
        if not others:
            continue
        if count < len(by_node) * _MAJORITY:  # of two, nobody can tell which is right
            yield _no_majority(trait, subject, by_node)
            continue
        for name in others:
            yield Finding(
                code=trait.code,
                severity=trait.severity,
                node=name,
                subject=subject,
                what=f"{trait.what.format(subject=subject)} differ from the other nodes'",
                evidence=(
                    f"here {by_node[name]}{_port_of(subject, nodes[name])}",
                    f"{usual} on {count} of {len(by_node)} nodes with these GPUs",
                ),
                fix=trait.fix,
            )


def _port_of(subject: str, one: NodePorts) -> str:
    """Return the name of a rail's port, for who is to look at its cable; "" for other subjects."""
    return next((f" ({port.name})" for port in one.rails if f"rail {port.rail}" == subject), "")


def _no_majority(trait: _Trait, subject: str, by_node: Mapping[str, str]) -> Finding:
    told = Counter(by_node.values()).most_common(_SHOWN)
    first = {value: next(name for name, one in by_node.items() if one == value) for value, _ in told}
    return Finding(
        code=trait.code,
        severity=trait.severity,
        subject=subject,
        what=f"{trait.what.format(subject=subject)} differ between nodes",
        evidence=tuple(f"{value} on {format_count(count, 'node')}, {first[value]} for one" for value, count in told),
        fix=trait.fix,
    )


def _adapters(one: NodePorts) -> Mapping[str, str]:
    return {"adapters": ", ".join(port.name for port in one.rails) or "none"}


def _rates(one: NodePorts) -> Mapping[str, str]:
    rates = {nic.name: _rate(nic.carrier, nic.speed_bytes_per_second) for nic in one.snapshot.interfaces}
    for name, _, port in one.snapshot.hca_ports():
        rates[name] = _rate(port.state in ("active", ""), port.rate_bytes_per_second)
    return {f"rail {port.rail}": rate for port in one.rails if (rate := rates.get(port.name))}


def _rate(up: bool | None, rate: int | None) -> str:
    return "down" if up is False else format_bandwidth(rate) if rate else ""


def _driver(one: NodePorts) -> Mapping[str, str]:
    driver = one.snapshot.gpu_driver
    return {"driver": driver.driver_version} if driver and driver.driver_version else {}


def _firmware(one: NodePorts) -> Mapping[str, str]:
    seen: dict[str, set[str]] = defaultdict(set)
    for hca in one.snapshot.hcas:
        if hca.board_id and hca.firmware:
            seen[f"board {hca.board_id}"].add(hca.firmware)
    return {board: ", ".join(sorted(versions)) for board, versions in seen.items()}


def _gpudirect(one: NodePorts) -> Mapping[str, str]:
    words = {True: "yes", False: "no"}
    seen = {
        f"dma-buf {words[hca.dmabuf]}, peer memory {words[hca.peer_memory]}"
        for hca in one.snapshot.hcas
        if hca.ports and hca.dmabuf is not None and hca.peer_memory is not None
    }
    return {"GPUDirect RDMA": "; ".join(sorted(seen))} if seen else {}


_TRAITS = (
    _Trait(
        "gpus-differ", Severity.ERROR, "numbers of GPUs",
        lambda one: {"GPUs": str(len(one.snapshot.gpus))},
        "lspci and nvidia-smi on the node that has fewer: a GPU fell off the bus, or is hidden from this container",
    ),
    _Trait(
        "driver-differs", Severity.WARNING, "NVIDIA drivers",
        _driver,
        "install one driver on all nodes: NCCL's features follow the oldest, and MNNVL wants equal ones",
    ),
    _Trait(
        "adapters-differ", Severity.WARNING, "names of the adapters for jobs' data",
        _adapters,
        "name them alike (udev, rdma-core's NAME_FALLBACK), or let fabricd set NCCL_IB_HCA by node: fabricctl env",
    ),
    _Trait(
        "rate-differs", Severity.ERROR, "rates of the ports of {subject}",
        _rates,
        "see the cable and its switch port: mlxlink -d DEVICE; one slow port holds the whole ring",
    ),
    _Trait(
        "firmware-differs", Severity.NOTE, "versions of the firmware of {subject}",
        _firmware,
        "flash one version on all nodes: mlxfwmanager",
    ),
    _Trait(
        "gpudirect-differs", Severity.WARNING, "ways to register memory of GPUs with adapters",
        _gpudirect,
        "lsmod | grep nvidia_peermem on each: where one side lacks it, transfers go through the host's memory",
    ),
)  # fmt: skip


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
        told = [
            f"{mtu}: {', '.join(members[:_SHOWN])}"
            + (f" and {len(members) - _SHOWN} more" if len(members) > _SHOWN else "")
            for mtu, members in sorted(seen.items())
            if mtu != usual
        ]
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
            usual = len(found) > 2 and len(found) >= len(names) * _MAJORITY
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
        if count < _OF_A_RAIL or count < len(found) * _MAJORITY:
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


def _unreachable(names: Mapping[str, str], measurements: Iterable[Measurement]) -> Iterator[Finding]:
    for one in measurements:
        if not one.reachable and one.src_node in names and one.dst_node in names:
            ends = f"{names[one.src_node]}/{one.src_interface} and {names[one.dst_node]}/{one.dst_interface}"
            yield Finding(
                code="unreachable",
                severity=Severity.ERROR,
                node=names[one.src_node],
                subject=one.network,
                what=f"{ends} do not reach each other, and should",
                evidence=(one.reason, f"measured {one.age_seconds:.0f} s ago, {one.src_address} to {one.dst_address}"),
                fix="see VLANs, routes and firewalls between the two: ping -I INTERFACE ADDRESS",
            )
