"""The NVLink and C2C part of a node's graph, as NVML reports it for each GPU."""

from collections.abc import Iterator
from dataclasses import dataclass

from fabricd.graph import nominal
from fabricd.graph.graph import Conflict, Graph, LinkKind, Vertex, VertexKind
from fabricd.model.device import Gpu, NvLink
from fabricd.model.observation import Evidence
from fabricd.model.snapshot import Snapshot

#: Links of one GPU to one remote end are striped, so they are one edge.
_SWITCH = "nvswitch"


@dataclass(frozen=True, slots=True)
class _Bundle:
    """The active NVLinks from one GPU to one remote end."""

    remote: str  #: local vertex name
    active: int
    listed: int
    bandwidth: float
    reported: bool  #: every link told its speed

    @property
    def detail(self) -> str:
        count = f"{self.active}" if self.active == self.listed else f"{self.active} of {self.listed}"
        return f"{count} NVLink{'s' if self.listed != 1 else ''}"


def add_gpu_links(graph: Graph, snapshot: Snapshot, prefix: str) -> None:
    """Add NVLinks between GPUs, to the NVSwitches and to processors, and C2C.

    All NVSwitches that a node's GPUs see become one vertex: a GPU has links to each of them and stripes over all.
    Between two GPUs both ends are asked; where they differ, the smaller figure stands and the conflict is reported.
    """
    by_address = {gpu.pci_address: gpu for gpu in snapshot.gpus if gpu.pci_address}
    bundles = {
        gpu.index: {one.remote: one for one in _bundles(gpu, by_address, graph, prefix)} for gpu in snapshot.gpus
    }
    for gpu in snapshot.gpus:
        name = f"{prefix}gpu{gpu.index}"
        _add_c2c(graph, gpu, prefix)
        for bundle in bundles[gpu.index].values():
            other = bundle.remote.removeprefix("gpu")
            if other.isdigit() and int(other) in bundles:
                back = bundles[int(other)].get(f"gpu{gpu.index}")
                _add_pair(graph, prefix, gpu.index, int(other), bundle, back)
                continue
            if bundle.remote == _SWITCH:
                graph.add(Vertex(name=prefix + _SWITCH, kind=VertexKind.NVSWITCH, node=prefix[:-1]))
            _connect(graph, name, prefix + bundle.remote, bundle)


def _bundles(gpu: Gpu, by_address: dict[str, Gpu], graph: Graph, prefix: str) -> Iterator[_Bundle]:
    remotes: dict[str, list[NvLink]] = {}
    for link in gpu.links:
        remote = _remote(gpu, link, by_address)
        if remote and (remote == _SWITCH or prefix + remote in graph):
            remotes.setdefault(remote, []).append(link)
        elif link.active:
            problem = f"NVLink {link.index} leads to {link.remote_type or 'unknown'} {link.remote_pci_address}"
            taken = "left out: that device is not known here"
            graph.conflicts.append(Conflict(where=f"{prefix}gpu{gpu.index}", problem=problem, taken=taken))
    for remote, links in remotes.items():
        active = [link for link in links if link.active]
        if active:
            yield _Bundle(
                remote=remote,
                active=len(active),
                listed=len(links),
                bandwidth=sum(
                    nominal.known(link.speed_bytes_per_second) or nominal.nvlink_bandwidth(link) for link in active
                ),
                reported=all(nominal.known(link.speed_bytes_per_second) for link in active),
            )


def _remote(gpu: Gpu, link: NvLink, by_address: dict[str, Gpu]) -> str:
    """Return the vertex at a link's far end, ``""`` where it is not known. A link to itself leads nowhere."""
    other = by_address.get(link.remote_pci_address)
    if other is not None:
        return f"gpu{other.index}" if other.index != gpu.index else ""
    if link.remote_type == "switch":
        return _SWITCH
    if link.remote_type == "cpu" and gpu.numa_node is not None:
        return f"numa{gpu.numa_node}"
    return ""


def _add_pair(graph: Graph, prefix: str, index: int, other: int, there: _Bundle, back: _Bundle | None) -> None:
    """Link two GPUs once, when the lower index comes by, or when only the higher one knows of the links."""
    name, far = f"{prefix}gpu{index}", f"{prefix}gpu{other}"
    if back is None:
        problem = f"{there.detail} to {far}, which reports none back"
        graph.conflicts.append(Conflict(where=name, problem=problem, taken="left out"))
    elif index < other:
        if there.bandwidth != back.bandwidth:
            problem = (
                f"{there.detail} to {far} ({there.bandwidth:g} bytes/s), but {back.detail} back ({back.bandwidth:g})"
            )
            graph.conflicts.append(Conflict(where=name, problem=problem, taken="the smaller"))
        _connect(graph, name, far, min(there, back, key=lambda bundle: bundle.bandwidth))


def _connect(graph: Graph, name: str, far: str, bundle: _Bundle) -> None:
    graph.connect(
        name,
        far,
        LinkKind.NVLINK,
        bandwidth=bundle.bandwidth,
        latency=nominal.NVLINK_LATENCY,
        evidence=Evidence.REPORTED if bundle.reported else Evidence.ASSUMED,
        detail=bundle.detail,
        count=bundle.active,
    )


def _add_c2c(graph: Graph, gpu: Gpu, prefix: str) -> None:
    bandwidth = nominal.known(gpu.c2c_bytes_per_second)
    if bandwidth is None:
        return
    numa = f"{prefix}numa{gpu.numa_node}"
    name = f"{prefix}gpu{gpu.index}"
    if numa not in graph:
        problem = f"C2C, but its NUMA node ({gpu.numa_node}) is not known here"
        graph.conflicts.append(Conflict(where=name, problem=problem, taken="left out"))
        return
    graph.connect(
        name,
        numa,
        LinkKind.C2C,
        bandwidth=bandwidth,
        latency=nominal.C2C_LATENCY,
        evidence=Evidence.REPORTED,
        detail=f"{gpu.c2c_links} C2C links" if gpu.c2c_links else "C2C",
    )
