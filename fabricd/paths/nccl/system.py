"""NCCL's graph of a machine: nodes by type, and the links that leave each, in NCCL's order."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from fabricd.paths.nccl.kinds import LinkType, NodeType, single

#: A node's id: the host's index above, busid, NUMA node or plugin index below. Not unique where a file repeats itself.
HOST_SHIFT = 56

MAX_NOTES = 50


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    """One node. Order decides ties everywhere, so ``index`` is its place among those of its type.

    Attributes:
        type: what it is.
        key: NCCL's id.
        name: for people, e.g. "GPU:3" (rank), "CPU:1", "NET:0", "PCI:17000"; a further host's end in "@1".
        links: that leave it.
        index: place among the nodes of its type.
        position: place among all nodes.
    """

    type: NodeType
    key: int
    name: str
    links: list["Link"] = field(default_factory=list)
    index: int = -1
    position: int = -1

    @property
    def host(self) -> int:
        """Index of the host it belongs to."""
        return self.key >> HOST_SHIFT


@dataclass(slots=True, eq=False)
class Link:
    """One direction of a link; ``bandwidth`` in GB/s."""

    type: LinkType
    source: Node
    target: Node
    bandwidth: float


@dataclass(slots=True, eq=False, kw_only=True)
class Device(Node):
    """A physical GPU, or a partition of one."""

    dev: int  #: NVML index
    sm: int  #: compute capability times ten
    busid: str = ""
    partition: int | None = None
    siblings: int = 1  #: partitions of the same GPU in the graph, itself included


@dataclass(slots=True, eq=False, kw_only=True)
class Gpu(Node):
    """A rank on a GPU."""

    rank: int
    device: Device
    gdr: bool

    @property
    def dev(self) -> int:
        """NVML index."""
        return self.device.dev

    @property
    def sm(self) -> int:
        """Compute capability times ten."""
        return self.device.sm


@dataclass(slots=True, eq=False, kw_only=True)
class Cpu(Node):
    """A NUMA node; ``bandwidth`` of the interconnect to the others, GB/s."""

    arch: str
    vendor: str
    bandwidth: float


@dataclass(slots=True, eq=False, kw_only=True)
class Switch(Node):
    """A PCI switch; ``device_id`` is vendor, device and subsystem ids, 16 bits each."""

    device_id: int
    flattened: bool = False  #: took over what hung below its sub-switches


@dataclass(slots=True, eq=False, kw_only=True)
class Net(Node):
    """A port of a network card."""

    dev: int  #: the network plugin's index
    label: str  #: its name in the file, "mlx5_0"
    bandwidth: float  #: GB/s
    latency: float  #: microseconds
    port: int
    guid: int
    gdr: bool
    coll: bool
    rail: int | None
    plane: int | None


@dataclass(slots=True, eq=False)
class System:
    """All nodes.

    Attributes:
        gpus, switches, nvswitches, cpus, nics, nets, others, devices, bridges: by type, in NCCL's order.
        hosts: number of hosts.
        notes: what the file says that NCCL ignores or stumbles over, one sentence each.
    """

    gpus: list[Gpu] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    nvswitches: list[Node] = field(default_factory=list)
    cpus: list[Cpu] = field(default_factory=list)
    nics: list[Node] = field(default_factory=list)
    nets: list[Net] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)
    devices: list[Device] = field(default_factory=list)
    bridges: list[Node] = field(default_factory=list)
    hosts: int = 1
    notes: list[str] = field(default_factory=list)

    def nodes(self) -> Iterator[Node]:
        """Yield all nodes, in NCCL's order of types."""
        for group in self.groups():
            yield from group

    def groups(self) -> "tuple[list[Gpu] | list[Switch] | list[Node] | list[Cpu] | list[Net] | list[Device], ...]":
        """Return the lists of nodes, in NCCL's order of types."""
        return (
            self.gpus,
            self.switches,
            self.nvswitches,
            self.cpus,
            self.nics,
            self.nets,
            self.others,
            self.devices,
            self.bridges,
        )

    def note(self, text: str) -> None:
        """Add to ``notes``; a file of a thousand faults is told by the first of them."""
        if len(self.notes) < MAX_NOTES:
            self.notes.append(text)

    def number(self) -> None:
        """Set ``index`` and ``position`` of all nodes, once no more come or go."""
        position = 0
        for group in self.groups():
            for index, node in enumerate(group):
                node.index, node.position = index, position
                position += 1


def bus_number(busid: str) -> int:
    """Return a PCI address as NCCL numbers it: its hexadecimal digits in a row."""
    return int(busid.replace(":", "").replace(".", ""), 16)


def node_key(host: int, local: int) -> int:
    """Return a node's id."""
    return host << HOST_SHIFT | local & (1 << HOST_SHIFT) - 1


def node_name(kind: str, local: str, host: int) -> str:
    """Return a node's name for people."""
    return f"{kind}:{local}" + (f"@{host}" if host else "")


def connect(source: Node, target: Node, kind: LinkType, bandwidth: float) -> None:
    """Add a link in one direction, or widen the one there is. Links stay sorted, widest first."""
    links = source.links
    place = next((i for i, link in enumerate(links) if link.target is target and link.type == kind), len(links))
    if place == len(links):
        links.append(Link(kind, source, target, 0.0))
    link = links[place]
    link.bandwidth = single(link.bandwidth + bandwidth)
    while place and links[place - 1].bandwidth < link.bandwidth:
        links[place] = links[place - 1]
        place -= 1
    links[place] = link


def join(a: Node, b: Node, kind: LinkType, bandwidth: float) -> None:
    """Add a link in both directions."""
    connect(a, b, kind, bandwidth)
    connect(b, a, kind, bandwidth)
