"""A typed graph of devices and the links between them. Data only: who reads it decides.

Edges are ``fabricd.model.path.Hop``: a path's hops are the graph's own edges, so nothing is translated and
nothing can drift apart. Every link is two edges, one for each direction. ``None`` is "not known", never zero or
endless.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fabricd.errors import InputError, UnknownNameError
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop
from fabricd.units import format_bandwidth

#: NUMA nodes of a host are joined all to all, so their number is bounded; the largest machines known have 64.
MAX_NUMA_NODES = 128


class VertexKind(StrEnum):
    """What a vertex stands for."""

    GPU = "gpu"
    NVSWITCH = "nvswitch"  #: all NVSwitches of one NVLink domain: links stripe over them
    PCI_SWITCH = "pci-switch"
    HOST_BRIDGE = "host-bridge"
    NUMA = "numa"
    MACHINE = "machine"  #: stands for "some NUMA node, not known which"
    MEMORY = "memory"  #: stands for "any memory of the node", as an end of paths
    ADAPTER = "adapter"  #: a network card: its functions and ports share one PCIe link
    NIC = "nic"  #: a network interface
    HCA_PORT = "hca-port"
    NETWORK = "network"


_ASKED_FIRST = (VertexKind.GPU, VertexKind.HCA_PORT, VertexKind.NIC, VertexKind.NUMA)


class LinkKind(StrEnum):
    """What a link is made of; the values of ``Hop.link``."""

    NVLINK = "nvlink"
    C2C = "c2c"
    PCIE = "pcie"
    MEMORY = "memory"  #: a host bridge, or a device without a bus, to the memory of its NUMA node
    INTERCONNECT = "interconnect"  #: between NUMA nodes
    PORT = "port"  #: an adapter to one of its ports, at the port's rate
    LOCAL = "local"  #: within one device: partitions of a GPU
    NETWORK = "network"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vertex:
    """A device, or a place where links meet."""

    name: str  #: unique in the graph, "node/eth0"
    kind: VertexKind
    node: str = ""  #: display name of the node; "" in a file of one machine, and for networks
    aliases: tuple[str, ...] = ()  #: other names within the node: PCI address, UUID
    numa: int | None = None
    virtual: bool = False  #: no hardware backs it
    gdr: bool | None = None  #: of GPUs and ports: can take part in GPUDirect; None is not known
    detail: str = ""

    @property
    def local_name(self) -> str:
        """The name without its node: ``"eth0"``."""
        return self.name.removeprefix(f"{self.node}/") if self.node else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Two sources that do not agree, or a figure that cannot be. Reported, never averaged."""

    where: str
    problem: str  #: what each source says
    taken: str = ""  #: which one the graph uses, and why


class Graph:
    """Vertices by name, and the edges that leave each of them, in order of insertion."""

    def __init__(self) -> None:
        self._vertices: dict[str, Vertex] = {}
        self._out: dict[str, list[Hop]] = {}
        self.conflicts: list[Conflict] = []
        self.notes: list[str] = []  #: what to know of the machine or file that this is the graph of

    def __contains__(self, name: str) -> bool:
        return name in self._vertices

    def __iter__(self) -> Iterator[Vertex]:
        return iter(self._vertices.values())

    def __len__(self) -> int:
        return len(self._vertices)

    def __getitem__(self, name: str) -> Vertex:
        return self._vertices[name]

    def of_kind(self, *kinds: VertexKind) -> list[Vertex]:
        """Return the vertices of these kinds, in order of insertion."""
        return [vertex for vertex in self if vertex.kind in kinds]

    def edges_from(self, name: str) -> Sequence[Hop]:
        """Return the edges that leave a vertex."""
        return self._out[name]

    def edges(self) -> Iterator[Hop]:
        """Yield every edge, both directions of each link."""
        for edges in self._out.values():
            yield from edges

    def add(self, vertex: Vertex) -> Vertex:
        """Add a vertex; one that is there already stays as it is."""
        known = self._vertices.setdefault(vertex.name, vertex)
        self._out.setdefault(vertex.name, [])
        return known

    def connect(
        self,
        a: str,
        b: str,
        link: LinkKind,
        *,
        bandwidth: float | None = None,
        latency: float | None = None,
        evidence: Evidence = Evidence.ASSUMED,
        detail: str = "",
        count: int = 1,
    ) -> None:
        """Join two vertices by a link that carries ``bandwidth`` in each direction at once.

        Raises:
            InputError: an end that is not in the graph, a link to itself, or a bandwidth that is not positive.
        """
        for src, dst in ((a, b), (b, a)):
            self.add_edge(
                Hop(
                    src=src,
                    dst=dst,
                    link=link.value,
                    bandwidth_bytes_per_second=bandwidth,
                    latency_seconds=latency,
                    evidence=evidence,
                    detail=detail,
                    count=count,
                )
            )

    def add_edge(self, edge: Hop) -> None:
        """Add one direction of a link. Use ``connect`` unless both directions really differ.

        Raises:
            InputError: as ``connect``.
        """
        for end in (edge.src, edge.dst):
            if end not in self._vertices:
                raise InputError(f"{edge.link} link {edge.src} - {edge.dst} ends in nothing: no vertex {end!r}")
        if edge.src == edge.dst:
            raise InputError(f"{edge.link} link from {edge.src} to itself")
        bandwidth = edge.bandwidth_bytes_per_second
        if bandwidth is not None and not 0 < bandwidth < float("inf"):
            raise InputError(f"{edge.link} link {edge.src} - {edge.dst}: bandwidth {bandwidth} bytes/s cannot be")
        self._out[edge.src].append(edge)

    def without(self, *links: LinkKind) -> "Graph":
        """Return the same graph without some kinds of links."""
        left = Graph()
        for vertex in self:
            left.add(vertex)
        for edge in self.edges():
            if edge.link not in links:
                left.add_edge(edge)
        return left

    def find(self, name: str, *, node: str = "") -> Vertex:
        """Return the vertex that bears a name: its own, or an alias within ``node``.

        Raises:
            UnknownNameError: no vertex of the node is called so; lists those that are.
        """
        full = f"{node}/{name}" if node else name
        if full in self._vertices:
            return self._vertices[full]
        wanted = name.lower()
        for vertex in self:
            if vertex.node == node and wanted in vertex.aliases:
                return vertex
        raise UnknownNameError(f"device on {node}" if node else "device", name, self.names(node))

    def names(self, node: str = "") -> list[str]:
        """Return what the devices of a node are called: first those that people ask for."""
        there = [vertex for vertex in self if vertex.node == node]
        order = {kind: number for number, kind in enumerate(_ASKED_FIRST)}
        there.sort(key=lambda vertex: order.get(vertex.kind, len(order)))
        return [vertex.local_name for vertex in there]

    def faults(self) -> list[Conflict]:
        """Return what breaks the graph's invariants.

        Links are symmetric, every device hangs on something, and no port carries more than the link of its card.
        """
        return [*self._asymmetric(), *self._dangling(), *self._wider_than_their_cards()]

    def _asymmetric(self) -> Iterable[Conflict]:
        totals: dict[tuple[str, str, str], float | None] = {}
        for edge in self.edges():
            key = (edge.src, edge.dst, edge.link)
            known, more = totals.get(key, 0.0), edge.bandwidth_bytes_per_second
            totals[key] = None if known is None or more is None else known + more
        for (src, dst, link), there in totals.items():
            back = totals.get((dst, src, link), 0.0)
            if (dst, src, link) not in totals:
                yield Conflict(where=f"{src} - {dst}", problem=f"{link} link in one direction only")
            elif src < dst and there != back:
                yield Conflict(where=f"{src} - {dst}", problem=f"{link}: {there} bytes/s one way, {back} back")

    def _dangling(self) -> Iterable[Conflict]:
        if len(self) > 1:
            for name, edges in self._out.items():
                if not edges:
                    yield Conflict(where=name, problem="linked to nothing")

    def _wider_than_their_cards(self) -> Iterable[Conflict]:
        for port in self.of_kind(VertexKind.NIC, VertexKind.HCA_PORT):
            for edge in self._out[port.name]:
                if edge.link != LinkKind.PORT:
                    continue
                links = [one for one in self._out[edge.dst] if one.link == LinkKind.PCIE]
                own, card = edge.bandwidth_bytes_per_second, links[0].bandwidth_bytes_per_second if links else None
                if own is not None and card is not None and own > card:
                    problem = f"{format_bandwidth(own)}, but the card's PCIe link carries {format_bandwidth(card)}"
                    more = f" ({links[0].detail})" if links[0].detail else ""
                    yield Conflict(where=port.name, problem=problem + more, taken="the link bounds its paths")
