"""What differs between nodes of one kind: one node of many is the story that users tell most."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fabricd.graph.networks_node import NodePorts
from fabricd.model.finding import Finding, Severity
from fabricd.units import format_bandwidth, format_count

#: Of the nodes alike, so many agree: then those that differ are told of. Else the cluster has several kinds of nodes.
MAJORITY = 2 / 3
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class _Trait:
    """Something that should be the same on all nodes of a kind."""

    code: str
    severity: Severity
    what: str  #: "NVIDIA drivers"; {subject} stands for what it is asked of
    of: Callable[[NodePorts], Mapping[str, str]]  #: values by subject, but for what is not known
    fix: str


def alike_findings(ports: Mapping[str, NodePorts], names: Mapping[str, str]) -> Iterator[Finding]:
    """Yield what differs between nodes of one product with the same GPUs.

    Args:
        ports: of the nodes, by node_id.
        names: display names, by node_id.
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
        if count < len(by_node) * MAJORITY:  # of two, nobody can tell which is right
            yield _no_majority(trait, subject, by_node)
            continue
        for name in others:
            port = _port_of(subject, nodes[name])
            yield Finding(
                code=trait.code,
                severity=trait.severity,
                node=name,
                subject=port or subject,
                what=f"{trait.what.format(subject=subject)} differ from the other nodes'",
                evidence=(
                    f"here {by_node[name]}" + (f" ({port})" if port else ""),
                    f"{usual} on {count} of {len(by_node)} nodes with these GPUs",
                ),
                fix=trait.fix,
            )


def _port_of(subject: str, one: NodePorts) -> str:
    """Return the name of a rail's port, for who is to look at its cable; "" for other subjects."""
    return next((port.name for port in one.rails if f"rail {port.rail}" == subject), "")


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
