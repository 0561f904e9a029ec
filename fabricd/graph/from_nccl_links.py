"""The links of a topology file that do not follow its nesting: NVLink, C2C, between switches, between NUMA nodes."""

import string
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from fabricd.errors import InputError
from fabricd.graph import nominal
from fabricd.graph.graph import MAX_NUMA_NODES, Conflict, Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.nccl_xml_types import NcclCpu, NcclGpu, NcclNvLink, NcclPci, NcclTopology
from fabricd.model.identity import Cpu
from fabricd.model.observation import Evidence
from fabricd.model.path import Hop

#: What an NVLink leads to where the driver hides it: a virtual machine does not see its NVSwitches.
_HIDDEN_TARGET = "fffffff:ffff:ff"
_GPU_CLASS = "0x03"
_POWER_CPU_CLASS = "0x068001"
#: All NVSwitches of a file, on whatever host: one NVLink domain.
_NVSWITCH = "nvswitch"


@dataclass(frozen=True, slots=True)
class Places:
    """Where the devices of a file are in its graph."""

    graph: Graph
    at: Mapping[tuple[int, int], list[str]]  #: by host and PCI address
    prefix: Mapping[int, str]  #: by host

    def of(self, cpu: NcclCpu, busid: str) -> list[str]:
        """Return the vertices of a PCI device: none, one, or one for each partition of a GPU."""
        return self.at.get(place_of(cpu, busid), [])

    def numa(self, cpu: NcclCpu) -> str:
        """Return the vertex of a NUMA node."""
        return f"{self.prefix[cpu.host_hash]}numa{cpu.numaid}"


def place_of(cpu: NcclCpu, busid: str) -> tuple[int, int]:
    """Return host and PCI address as numbers; addresses are written in several ways."""
    return cpu.host_hash, int("".join(digit for digit in busid if digit in string.hexdigits) or "0", 16)


def partitions(device: NcclPci) -> dict[int | None, NcclGpu]:
    """Return the first rank's element of each partition of a GPU: that one's links count."""
    found: dict[int | None, NcclGpu] = {}
    for gpu in device.gpus:
        found.setdefault(gpu.mlopart, gpu)
    return found


def add_side_links(places: Places, topology: NcclTopology) -> None:
    """Add C2C, and links between switches beside the tree."""
    for cpu in topology.cpus:
        for device in cpu.devices():
            own = places.of(cpu, device.busid)
            for target in device.pcilinks:
                far = places.of(cpu, target)
                if own and far and own[0] != far[0]:
                    places.graph.connect(
                        own[0], far[0], LinkKind.PCIE, latency=nominal.PCIE_LATENCY, detail="between switches"
                    )
            for vertex, gpu in zip(own, partitions(device).values(), strict=False):
                _add_c2c(places, cpu, vertex, gpu)


def _add_c2c(places: Places, cpu: NcclCpu, vertex: str, gpu: NcclGpu) -> None:
    if gpu.c2c is not None and gpu.c2c.count * gpu.c2c.megabytes_per_second > 0:
        places.graph.connect(
            vertex,
            places.numa(cpu),
            LinkKind.C2C,
            bandwidth=gpu.c2c.count * gpu.c2c.megabytes_per_second * 1e6,
            latency=nominal.C2C_LATENCY,
            evidence=Evidence.REPORTED,
            detail=f"{gpu.c2c.count} C2C link{'s' if gpu.c2c.count > 1 else ''}",
            count=gpu.c2c.count,
        )


def add_nvlinks(places: Places, topology: NcclTopology) -> None:
    """Add NVLinks, each direction as its own end says. Between GPUs both ends are asked.

    A link that one end alone reports is taken for one all the same: a wire has two ends. Figures that differ stand
    as they are. Both are reported.
    """
    sums: dict[tuple[str, str], tuple[float, int]] = {}
    for cpu in topology.cpus:
        for device in cpu.devices():
            own = places.of(cpu, device.busid)
            for vertex, gpu in zip(own, partitions(device).values(), strict=False):
                for nvlink in gpu.nvlinks:
                    _collect(sums, places, cpu, vertex, gpu, nvlink, len(own))
                if gpu.xgmi:
                    problem = "xgmi links, which are no NVLinks"
                    places.graph.conflicts.append(Conflict(where=vertex, problem=problem, taken="left out"))
    for (src, dst), (bandwidth, count) in sums.items():
        back = sums.get((dst, src))
        if back is None:
            problem = f"{_links(count)} to {dst}, which has none back"
            places.graph.conflicts.append(Conflict(where=src, problem=problem, taken="both ways"))
            _add_nvlink(places.graph, dst, src, bandwidth, count)
        elif src < dst and back != (bandwidth, count):
            problem = f"{_links(count)} to {dst} ({bandwidth:g} bytes/s), but {_links(back[1])} back ({back[0]:g})"
            places.graph.conflicts.append(Conflict(where=src, problem=problem, taken="each as its own end says"))
        _add_nvlink(places.graph, src, dst, bandwidth, count)


def _collect(
    sums: dict[tuple[str, str], tuple[float, int]],
    places: Places,
    cpu: NcclCpu,
    vertex: str,
    gpu: NcclGpu,
    nvlink: NcclNvLink,
    siblings: int,
) -> None:
    """Add some links to the sums. Partitions of a GPU share its links, on either side."""
    targets = _targets(places, cpu, vertex, nvlink)
    bandwidth = nvlink.count * nominal.nvlink_bandwidth_by_sm(gpu.sm or 0) / (siblings * max(1, len(targets)))
    for target in targets:
        one_way = [(vertex, target)]
        ways = one_way if places.graph[target].kind is VertexKind.GPU else [*one_way, (target, vertex)]
        for way in ways:
            known, count = sums.get(way, (0.0, 0))
            sums[way] = (known + bandwidth, count + nvlink.count)


def _targets(places: Places, cpu: NcclCpu, vertex: str, nvlink: NcclNvLink) -> list[str]:
    """Return the vertices at the far end of NVLinks; what is neither GPU nor processor counts as a switch."""
    if nvlink.count <= 0:
        return []
    if nvlink.target.lower() != _HIDDEN_TARGET and nvlink.target_class.startswith(_GPU_CLASS):
        far = places.of(cpu, nvlink.target)
        return [target for target in far if target != vertex and places.graph[target].kind is VertexKind.GPU]
    if nvlink.target_class.startswith(_POWER_CPU_CLASS):
        return [places.numa(cpu)]
    places.graph.add(Vertex(name=_NVSWITCH, kind=VertexKind.NVSWITCH))
    return [_NVSWITCH]


def _add_nvlink(graph: Graph, src: str, dst: str, bandwidth: float, count: int) -> None:
    graph.add_edge(
        Hop(
            src=src,
            dst=dst,
            link=LinkKind.NVLINK.value,
            bandwidth_bytes_per_second=bandwidth,
            latency_seconds=nominal.NVLINK_LATENCY,
            detail=_links(count),
            count=count,
        )
    )


def _links(count: int) -> str:
    return f"{count} NVLink{'s' if count != 1 else ''}"


def add_interconnect(places: Places, topology: NcclTopology) -> None:
    """Join the NUMA nodes of each host, all to all, at what is nominal for the processor that sends.

    Raises:
        InputError: more NUMA nodes on a host than any machine has.
    """
    nodes = {places.numa(cpu): cpu for cpu in topology.cpus}
    most = max(Counter(cpu.host_hash for cpu in nodes.values()).values(), default=0)
    if most > MAX_NUMA_NODES:
        raise InputError(f"{most} NUMA nodes on one host, more than any machine has ({MAX_NUMA_NODES})")
    for src, cpu in nodes.items():
        facts = Cpu(vendor=cpu.vendor, family=cpu.familyid, model=cpu.modelid, architecture=cpu.arch)
        bandwidth = nominal.interconnect_bandwidth(facts)
        for dst, other in nodes.items():
            if dst != src and other.host_hash == cpu.host_hash:
                places.graph.add_edge(
                    Hop(
                        src=src,
                        dst=dst,
                        link=LinkKind.INTERCONNECT.value,
                        bandwidth_bytes_per_second=bandwidth,
                        latency_seconds=nominal.INTERCONNECT_LATENCY,
                        detail="nominal for this processor",
                    )
                )
