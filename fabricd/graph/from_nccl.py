"""A topology file in NCCL's XML as a graph: what the hardware that it describes can do, not what NCCL makes of it.

Structure is the file's. Figures are the line rates of its links; what the file does not say stays unknown, where
NCCL takes a default. Names are the file's: ``gpu3`` by rank, ``net0`` by index with the card's name as alias, NUMA
nodes and PCI devices by number and address; those of a second host begin with ``host1/``, but for GPUs, and ports
whose index is the only one of the file.
"""

from collections import Counter
from collections.abc import Sequence

from fabricd.errors import ParseError
from fabricd.graph import nominal
from fabricd.graph.from_nccl_links import Places, add_interconnect, add_nvlinks, add_side_links, partitions, place_of
from fabricd.graph.graph import Conflict, Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.nccl_xml_types import NcclCpu, NcclNic, NcclPci, NcclTopology
from fabricd.graph.pci_switches import PciIds, is_one_crossbar
from fabricd.model.observation import Evidence
from fabricd.units import parse_transfer_rate, pcie_bandwidth

_GPU_CLASSES = ("0x03", "0x12")  #: display, and accelerator as AMD's


def graph_from_nccl(topology: NcclTopology) -> Graph:
    """Return the graph of a topology file; ``Graph.conflicts`` holds what contradicts itself in it.

    Raises:
        InputError: more NUMA nodes on a host than any machine has.
    """
    builder = _Builder(topology)
    for cpu in topology.cpus:
        builder.add_cpu(cpu)
    builder.add_loose_cards()
    places = Places(builder.graph, builder.at, builder.prefix)
    add_side_links(places, topology)
    add_nvlinks(places, topology)
    add_interconnect(places, topology)
    builder.graph.conflicts.extend(builder.graph.faults())
    builder.graph.notes.extend(topology.notes)
    return builder.graph


class _Builder:
    """Adds the trees below the NUMA nodes."""

    def __init__(self, topology: NcclTopology) -> None:
        self.graph = Graph()
        hosts = enumerate(topology.host_hashes())
        #: Of the names of each host's vertices.
        self.prefix = {host: f"host{number}/" if number else "" for number, host in hosts}
        self._repeated_devs = topology.repeated_devs()
        self._repeats: Counter[str] = Counter()  #: how often a port's name came again
        #: Vertices of each PCI device; several for a GPU in partitions.
        self.at: dict[tuple[int, int], list[str]] = {}
        #: By host: cards without a PCI address, and the NUMA nodes under which the file has such cards.
        self._loose: dict[int, tuple[list[NcclNic], dict[str, NcclCpu]]] = {}

    def add_cpu(self, cpu: NcclCpu) -> None:
        """Add a NUMA node and the PCI trees below it."""
        name = self._add(cpu, f"numa{cpu.numaid}", VertexKind.NUMA)
        for child in cpu.children:
            if isinstance(child, NcclPci):
                self._add_device(cpu, child, name, None)
            else:
                cards, numas = self._loose.setdefault(cpu.host_hash, ([], {}))
                cards.append(child)
                numas[name] = cpu

    def add_loose_cards(self) -> None:
        """Add cards without a PCI address, linked to every NUMA node of their host that has such cards.

        The network plugin did not tell where they are, so under which of these the file has them says nothing.
        """
        for cards, numas in self._loose.values():
            for card in cards:
                self._add_ports(next(iter(numas.values())), card, list(numas))

    def _add_device(self, cpu: NcclCpu, device: NcclPci, parent: str, above: NcclPci | None) -> None:
        """Add a device, its link upwards, and all that is below it. Depth is bounded by the reader of the XML."""
        vertices = self._vertices_of(cpu, device, parent, above)
        place = place_of(cpu, device.busid)
        if vertices and place not in self.at:
            self.at[place] = vertices
            for vertex in vertices:
                if vertex != parent:
                    self._add_uplink(vertex, parent, device)
        for child in device.children:
            self._add_device(cpu, child, vertices[0] if vertices else parent, device)

    def _vertices_of(self, cpu: NcclCpu, device: NcclPci, parent: str, above: NcclPci | None) -> list[str]:
        """Add what a device is; return its vertices. A device without use has none."""
        kind = device.device_class or ""
        if device.gpus:
            return self._add_gpus(cpu, device)
        if device.nics or kind.startswith("0x02"):
            return [self._add_card(cpu, device)]
        if kind.startswith(_GPU_CLASSES):
            return [self._add(cpu, device.busid, VertexKind.GPU)]
        if not device.children:
            return []
        if above is not None and is_one_crossbar(_ids(above), _ids(device)):
            return [parent]
        return [self._add(cpu, device.busid, VertexKind.PCI_SWITCH)]

    def _add_gpus(self, cpu: NcclCpu, device: NcclPci) -> list[str]:
        """Add the GPU of a PCI device, or its partitions, which exchange data inside it."""
        names: list[str] = []
        for number, gpu in partitions(device).items():
            ranks = [f"gpu{one.rank}" for one in device.gpus if one.mlopart == number and one.rank is not None]
            aliases = (*ranks[1:], *(() if names else (device.busid.lower(),)))
            # Ranks are of the whole file, not of one host.
            name = ranks[0] if ranks else self.prefix[cpu.host_hash] + device.busid
            self.graph.add(Vertex(name=name, kind=VertexKind.GPU, aliases=aliases, numa=cpu.numaid, gdr=gpu.gdr))
            if names:
                self.graph.connect(name, names[0], LinkKind.LOCAL, detail="partitions of one GPU")
            names.append(name)
        return names

    def _add_card(self, cpu: NcclCpu, device: NcclPci) -> str:
        known = self.at.get(place_of(cpu, device.busid))
        if known is not None:
            problem = f"two cards at {device.busid}"
            self.graph.conflicts.append(Conflict(where=known[0], problem=problem, taken="the place of the first"))
        card = known[0] if known else self._add(cpu, device.busid, VertexKind.ADAPTER)
        for nic in device.nics:
            self._add_ports(cpu, nic, [card])
        return card

    def _add_ports(self, cpu: NcclCpu, nic: NcclNic, above: Sequence[str]) -> None:
        for net in nic.nets:
            prefix = "" if net.dev is not None and net.dev not in self._repeated_devs else self.prefix[cpu.host_hash]
            port = self._free_name(prefix, net.name if net.dev is None else f"net{net.dev}")
            self.graph.add(
                Vertex(
                    name=port,
                    kind=VertexKind.HCA_PORT,
                    node=prefix[:-1],
                    aliases=(net.name.lower(),) if net.name and net.name != port.removeprefix(prefix) else (),
                    numa=cpu.numaid,
                    gdr=net.gdr,
                    detail=net.name,
                )
            )
            megabits = net.megabits_per_second
            for place in above:
                self.graph.connect(
                    port,
                    place,
                    LinkKind.PORT,
                    bandwidth=megabits * 125_000.0 if megabits > 0 else None,
                    latency=nominal.PORT_LATENCY,
                    evidence=Evidence.REPORTED if megabits > 0 else Evidence.ASSUMED,
                    detail=net.name if megabits > 0 else f"{net.name}, speed not known",
                )

    def _free_name(self, prefix: str, wanted: str) -> str:
        """Return a port's full name; a second port of one name gets a number."""
        name = wanted = prefix + (wanted or "port")
        while name in self.graph:
            self._repeats[wanted] += 1
            name = f"{wanted}#{self._repeats[wanted] + 1}"
        if name != wanted:
            self.graph.conflicts.append(Conflict(where=wanted, problem="two ports of one index", taken=f"also {name}"))
        return name

    def _add_uplink(self, vertex: str, parent: str, device: NcclPci) -> None:
        bandwidth, text = _pcie_figure(device)
        self.graph.connect(
            vertex,
            parent,
            LinkKind.PCIE,
            bandwidth=bandwidth,
            latency=nominal.PCIE_LATENCY,
            evidence=Evidence.ASSUMED if bandwidth is None else Evidence.REPORTED,
            detail=text,
        )

    def _add(
        self,
        cpu: NcclCpu,
        local: str,
        kind: VertexKind,
        *,
        aliases: tuple[str, ...] = (),
        gdr: bool | None = None,
        detail: str = "",
    ) -> str:
        prefix = self.prefix[cpu.host_hash]
        name = prefix + local
        self.graph.add(
            Vertex(name=name, kind=kind, node=prefix[:-1], aliases=aliases, numa=cpu.numaid, gdr=gdr, detail=detail)
        )
        return name


def _ids(device: NcclPci) -> PciIds:
    return PciIds(device.vendor, device.device, device.subsystem_vendor, device.subsystem_device)


def _pcie_figure(device: NcclPci) -> tuple[float | None, str]:
    try:
        speed, width = parse_transfer_rate(device.link_speed or ""), device.link_width or 0
        return float(pcie_bandwidth(speed, width)), f"{speed:g} GT/s x{width}"
    except ParseError:
        return None, "PCIe link not known"
