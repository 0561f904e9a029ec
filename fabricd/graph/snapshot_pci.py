"""The PCI part of a node's graph: host bridges, switches, GPUs and adapters, with their links as they are now."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from fabricd.errors import ParseError
from fabricd.graph import nominal
from fabricd.graph.graph import Conflict, Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.pci_switches import PciIds, is_one_crossbar
from fabricd.model.device import Gpu, Hca, NetInterface, PciDevice, PcieLink
from fabricd.model.observation import Evidence
from fabricd.model.snapshot import Snapshot
from fabricd.units import pcie_bandwidth


def add_pci(graph: Graph, snapshot: Snapshot, prefix: str) -> dict[str, str]:
    """Add what lies between the NUMA nodes and every GPU, interface and HCA of a snapshot.

    A PCIe switch is two bridges deep (its upstream port and a downstream port) and becomes one vertex, named by
    the upstream port. The functions of a card become one vertex: they share its link.

    Args:
        graph: holds the NUMA nodes and the machine.
        snapshot: of the node.
        prefix: of the vertices' names, ``"node/"``.

    Returns:
        PCI address of each function -> name of the vertex of its GPU or card.
    """
    tree = _Tree(graph, snapshot, prefix)
    tree.add_host_bridges()
    cards = tree.cards()
    for card in cards:
        tree.add_card(card)
    return {address: card.name for card in cards for address in card.addresses}


def pcie_figure(link: PcieLink, port: PcieLink, *, sleeps: bool = False) -> tuple[float | None, str]:
    """Return what a PCIe link carries now, bytes/s each direction, and how to say it.

    Args:
        link: as the lower end reports it.
        port: as the upper end does; fills in what the lower end leaves out.
        sleeps: the device lowers its speed while idle, as GPUs do: its speed now says nothing about its speed at
            work, which is what both ends can do. Its width is never lowered for that.

    Returns:
        ``None`` for the bandwidth where neither end reports a link (virtual devices) or the figures cannot be.
    """
    width, now = link.width or port.width, link.speed_gts or port.speed_gts
    most = min((end.max_speed_gts for end in (link, port) if end.max_speed_gts), default=None)
    speed = (most or now) if sleeps else now
    if not width or not speed:
        return None, "no PCIe link reported"
    most_width = min((end.max_width for end in (link, port) if end.max_width), default=width)
    text = f"{speed:g} GT/s x{width}"
    if now and now < speed:
        text += f" ({now:g} GT/s while idle)"
    if width < most_width or (most and speed < most):
        text += f", both ends could do {most or speed:g} GT/s x{most_width}"
    try:
        return float(pcie_bandwidth(speed, width)), text
    except ParseError:
        return None, f"{text}, which PCIe does not have"


#: Bridges on top of one another: a PCI domain has 256 buses.
_MAX_DEPTH = 256


@dataclass(slots=True)
class _Card:
    """A GPU, or a card with ports."""

    name: str  #: of its vertex
    device: PciDevice  #: its first physical function, whose link is the card's
    addresses: list[str]  #: of all functions that something uses, virtual ones too
    gpu: Gpu | None


class _Tree:
    """Walks from every endpoint up to its host bridge."""

    def __init__(self, graph: Graph, snapshot: Snapshot, prefix: str) -> None:
        self.graph = graph
        self.prefix = prefix
        self._pci: Mapping[str, PciDevice] = {device.address: device for device in snapshot.pci}
        self._gpus = {gpu.pci_address: gpu for gpu in snapshot.gpus}
        devices: tuple[Gpu | NetInterface | Hca, ...] = (*snapshot.gpus, *snapshot.interfaces, *snapshot.hcas)
        self._numa_said = {device.pci_address: device.numa_node for device in devices}
        self._ends = sorted({device.pci_address for device in devices} & self._pci.keys())
        self._linked: set[str] = set()

    def add_host_bridges(self) -> None:
        """Add each root that something hangs on, linked to its NUMA node."""
        numa_of: dict[str, dict[int, str]] = {}
        for address in self._ends:
            device = self._pci[address]
            nodes = numa_of.setdefault(self._root(device), {})
            if device.numa_node is not None:
                nodes.setdefault(device.numa_node, address)
            said = self._numa_said.get(address)
            if said is not None and device.numa_node is not None and said != device.numa_node:
                self._conflict(address, f"NUMA node {device.numa_node} by PCI, {said} by its driver", "PCI's")
        for root, nodes in numa_of.items():
            self._add_host_bridge(root, nodes)

    def _add_host_bridge(self, root: str, nodes: Mapping[int, str]) -> None:
        numa = min(nodes, default=None)
        if len(nodes) > 1:
            said = ", ".join(f"{index} ({address})" for index, address in sorted(nodes.items()))
            self._conflict(root, f"its devices say different NUMA nodes: {said}", f"{numa}, the lowest")
        name = self.prefix + root
        self.graph.add(Vertex(name=name, kind=VertexKind.HOST_BRIDGE, node=self.prefix[:-1], numa=numa))
        attach(self.graph, name, self.prefix, numa, LinkKind.MEMORY)

    def cards(self) -> list[_Card]:
        """Return the cards, each with its functions. A virtual function belongs to its physical one's card."""
        cards: dict[str, _Card] = {}
        for address in self._ends:
            gpu = self._gpus.get(address)
            physical = self._pci[address].physical_function
            device = self._pci[physical if physical in self._pci and gpu is None else address]
            key = address if gpu else device.address.rpartition(".")[0] or device.address
            name = self.prefix + (f"gpu{gpu.index}" if gpu else device.address)
            cards.setdefault(key, _Card(name, device, [], gpu)).addresses.append(address)
        return list(cards.values())

    def add_card(self, card: _Card) -> None:
        """Add a card and all that lies between it and its host bridge."""
        uuid = [card.gpu.uuid] if card.gpu and card.gpu.uuid else []
        self.graph.add(
            Vertex(
                name=card.name,
                kind=VertexKind.GPU if card.gpu else VertexKind.ADAPTER,
                node=self.prefix[:-1],
                aliases=tuple(alias.lower() for alias in (*card.addresses, *uuid)),
                numa=card.device.numa_node,
                detail=card.gpu.name if card.gpu else card.device.driver,
            )
        )
        lower, vertex = card.device, card.name
        switches = self._switches_above(card.device)
        for switch, above in zip_longest(switches, switches[1:]):
            if above is not None and is_one_crossbar(_ids(above), _ids(switch)):
                continue
            upper = self.prefix + switch.address
            kind = VertexKind.PCI_SWITCH
            self.graph.add(Vertex(name=upper, kind=kind, node=self.prefix[:-1], numa=switch.numa_node))
            self._link(vertex, upper, lower)
            lower, vertex = switch, upper
        self._link(vertex, self.prefix + self._root(card.device), lower)

    def _link(self, below: str, above: str, device: PciDevice) -> None:
        """Link a device's upper side; once, as many endpoints share the way up."""
        if below in self._linked:
            return
        self._linked.add(below)
        port = self._pci.get(device.parent)
        is_gpu = device.address in self._gpus
        link = device.link
        if is_gpu and link == PcieLink():
            link = self._gpus[device.address].pcie
        bandwidth, text = pcie_figure(link, port.link if port else PcieLink(), sleeps=is_gpu)
        evidence = Evidence.ASSUMED if bandwidth is None else link.evidence
        if bandwidth and evidence is Evidence.ASSUMED:
            text += ", as the topology file says"
        self._check_link(device, port)
        if port and port.acs_redirects:
            text += ", ACS sends what is for its neighbours up to the root"
        self.graph.connect(
            below,
            above,
            LinkKind.PCIE,
            bandwidth=bandwidth,
            latency=nominal.PCIE_LATENCY,
            evidence=evidence,
            detail=text,
        )

    def _check_link(self, device: PciDevice, port: PciDevice | None) -> None:
        link = device.link
        if port and link.width and port.link.width and link.width != port.link.width:
            problem = f"PCIe width x{link.width} by the device, x{port.link.width} by the port above ({port.address})"
            self._conflict(device.address, problem, "the device's")
        nvml = self._gpus[device.address].pcie if device.address in self._gpus else PcieLink()
        if nvml.width and link.width and nvml.width != link.width:
            self._conflict(device.address, f"PCIe width x{link.width} by the kernel, x{nvml.width} by NVML", "kernel's")
        if link.width and link.max_width and link.width > link.max_width:
            self._conflict(device.address, f"PCIe width x{link.width} now, but x{link.max_width} at most", "x now")

    def _switches_above(self, device: PciDevice) -> list[PciDevice]:
        """Return the upstream ports above a device, nearest first.

        Counted from the root, bridges are in turn a port (of the root or of a switch) and a switch's upstream side.
        """
        chain: list[PciDevice] = []
        walk = device
        while walk.parent in self._pci and len(chain) <= _MAX_DEPTH:
            walk = self._pci[walk.parent]
            chain.append(walk)
        if len(chain) > _MAX_DEPTH:
            self._conflict(device.address, "PCI: its parents form a ring, or are more than PCI has buses", "the root")
            return []
        if walk.parent:
            self._conflict(device.address, f"PCI: parent {walk.parent} of {walk.address} is not listed", "the root")
        return [bridge for depth, bridge in enumerate(reversed(chain)) if depth % 2][::-1]

    def _root(self, device: PciDevice) -> str:
        return device.root or f"pci{device.address.rpartition(':')[0].rpartition(':')[0] or '0000'}"

    def _conflict(self, local: str, problem: str, taken: str) -> None:
        self.graph.conflicts.append(Conflict(where=self.prefix + local, problem=problem, taken=taken))


def _ids(device: PciDevice) -> PciIds:
    return PciIds(
        device.vendor_id or 0, device.device_id or 0, device.subsystem_vendor_id or 0, device.subsystem_device_id or 0
    )


def attach(graph: Graph, name: str, prefix: str, numa: int | None, link: LinkKind, *, detail: str = "") -> None:
    """Link a vertex to the memory of its NUMA node, or to the machine where that is not known."""
    known = numa is not None and f"{prefix}numa{numa}" in graph
    graph.connect(
        name,
        f"{prefix}numa{numa}" if known else f"{prefix}machine",
        link,
        latency=nominal.MEMORY_LATENCY,
        evidence=Evidence.REPORTED if known else Evidence.ASSUMED,
        detail=detail or ("" if known else "NUMA node not known"),
    )
