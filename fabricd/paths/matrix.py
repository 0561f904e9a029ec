"""The matrix of ``nvidia-smi topo -m``: how each GPU and RDMA adapter reaches each other one.

The words are those of NVIDIA's tool. They say which bridges lie between two devices, not how fast the way is:

====  =========================================================================
X     the device itself
NV#   # NVLinks, straight or through NVSwitches
PIX   at most one PCIe switch
PXB   several PCIe switches, no host bridge
PHB   one host bridge
NODE  two host bridges of one NUMA node
SYS   two NUMA nodes, or the kernel does not know the node of one of them
====  =========================================================================
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fabricd.model.device import Gpu, Hca, PciDevice
from fabricd.model.snapshot import Snapshot
from fabricd.smallfile import escaped
from fabricd.units import format_ranges, natural_order

_SELF = "X"
_UNKNOWN = "?"
_NOT_APPLICABLE = "N/A"
_SHOWN_RANGES = 6
# nvmlGpuTopologyLevel_t in the tool's words. Source: NVIDIA's NVML API reference.
_BY_DRIVER = {
    "internal": "PIX", "single": "PIX", "multiple": "PXB", "hostbridge": "PHB", "node": "NODE", "system": "SYS",
}  # fmt: skip
_LEGEND = (
    ("X", "Self"),
    ("SYS", "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)"),
    ("NODE", "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node"),
    ("PHB", "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)"),
    ("PXB", "Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)"),
    ("PIX", "Connection traversing at most a single PCIe bridge"),
    ("NV#", "Connection traversing a bonded set of # NVLinks"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """A device and its way to every device, in order of the rows."""

    label: str  #: "GPU0", "NIC0"
    name: str  #: "mlx5_0"; of a GPU the product
    cells: tuple[str, ...]
    cpu_affinity: str = ""  #: GPUs only: "0-55,112-167"
    numa_affinity: str = ""  #: GPUs only: "0", "0,2-17"; "N/A" when unknown
    gpu_numa_id: str = ""  #: GPUs only: NUMA node of the GPU's own memory, "N/A" where it is none


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyMatrix:
    """GPUs in NVML's order, then RDMA adapters as the kernel numbers them."""

    rows: tuple[MatrixRow, ...]
    nvlink: bool  #: whether NVLinks are looked at


def topology_matrix(snapshot: Snapshot, *, nvlink: bool = True, cpuset: frozenset[int] | None = None) -> TopologyMatrix:
    """Return a node's matrix.

    Args:
        snapshot: of the node.
        nvlink: False for PCIe alone, as ``nvidia-smi topo -mp``.
        cpuset: the CPUs that a container or job may use. With it, CPU affinities are cut down to it; and where it
            lies in one NUMA node, NUMA nodes are not told apart: both as NVIDIA's tool does inside the container.
    """
    nodes = _Nodes(snapshot, cpuset)
    ends: list[Gpu | Hca] = [*snapshot.gpus, *sorted(filter(_is_listed, snapshot.hcas), key=_order)]
    gpus = len(snapshot.gpus)
    counts = _nvlinks(snapshot.gpus) if nvlink else {}
    rows = []
    for index, end in enumerate(ends):
        cells = tuple(_SELF if other is end else _cell(end, other, counts, nodes) for other in ends)
        if isinstance(end, Gpu):
            rows.append(_gpu_row(end, cells, cpuset))
        else:
            rows.append(MatrixRow(label=f"NIC{index - gpus}", name=end.name, cells=cells))
    return TopologyMatrix(rows=tuple(rows), nvlink=nvlink)


def format_matrix(matrix: TopologyMatrix) -> str:
    """Return the matrix as NVIDIA's tool prints it from driver 535 on: columns set apart by tabs, legends below."""
    labels = [row.label for row in matrix.rows]
    lines = ["\t" + "\t".join([*labels, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for row in matrix.rows:
        cells = [f" {cell} " if cell == _SELF else cell for cell in row.cells]
        last = [_cut(row.cpu_affinity), _cut(row.numa_affinity), "", row.gpu_numa_id]
        lines.append("\t".join([row.label, *cells, *last]))
    lines += ["", "Legend:", ""]
    lines += [f"  {word:<4} = {meaning}" for word, meaning in _LEGEND if matrix.nvlink or word != "NV#"]
    adapters = [row for row in matrix.rows if row.label.startswith("NIC")]
    if adapters:
        lines += ["", "NIC Legend:", "", *(f"  {row.label}: {escaped(row.name)}" for row in adapters)]
    return "\n".join(lines) + "\n"


def is_cut(matrix: TopologyMatrix) -> bool:
    """Tell whether ``format_matrix`` leaves out CPUs, as NVIDIA's tool does where they are numbered alternately."""
    return any(_cut(row.cpu_affinity) != row.cpu_affinity for row in matrix.rows)


def _cut(ranges: str) -> str:
    """Return what NVIDIA's tool shows of a list: published outputs have six ranges at most."""
    return ",".join(ranges.split(",")[:_SHOWN_RANGES])


def _is_listed(hca: Hca) -> bool:
    """NVIDIA's tool lists verbs devices that hardware backs; Slingshot's cards are no verbs devices."""
    return bool(hca.pci_address) and hca.kind != "slingshot"


def _order(hca: Hca) -> tuple[bool, int, tuple[tuple[int, str], ...]]:
    """Order of registration, which is not that of PCI addresses: drivers start in parallel, and bonds come last.

    Where it is not known, that of names, into which drivers put a number that counts up.
    """
    return hca.index is None, hca.index or 0, natural_order(hca.name)


def _gpu_row(gpu: Gpu, cells: tuple[str, ...], cpuset: frozenset[int] | None) -> MatrixRow:
    cpus = gpu.cpu_affinity if cpuset is None else [cpu for cpu in gpu.cpu_affinity if cpu in cpuset]
    near = gpu.numa_affinity
    if near is None and gpu.numa_node is not None:
        near = (gpu.numa_node,)
    return MatrixRow(
        label=f"GPU{gpu.index}",
        name=gpu.name,
        cells=cells,
        cpu_affinity=format_ranges(cpus),
        numa_affinity=_NOT_APPLICABLE if near is None else format_ranges(near),
        gpu_numa_id=_NOT_APPLICABLE if gpu.memory_numa_node is None else str(gpu.memory_numa_node),
    )


def _nvlinks(gpus: Sequence[Gpu]) -> dict[tuple[int, int], int]:
    """Return the number of NVLinks between GPUs, by their indices: straight ones, else those to switches.

    A link counts where both of its ends are active; a GPU in MIG mode has none.
    """
    index_of = {gpu.pci_address: gpu.index for gpu in gpus if gpu.pci_address}
    straight: dict[tuple[int, int], int] = {}
    to_switches: dict[int, int] = {}
    for gpu in gpus:
        for link in gpu.links:
            if not link.active:
                continue
            if link.remote_type == "switch":
                to_switches[gpu.index] = to_switches.get(gpu.index, 0) + 1
            elif link.remote_pci_address in index_of:
                pair = (gpu.index, index_of[link.remote_pci_address])
                straight[pair] = straight.get(pair, 0) + 1
    both = {(a, b): min(count, straight.get((b, a), 0)) for (a, b), count in straight.items()}
    switched = {pair: min(to_switches[end] for end in pair) for pair in itertools.permutations(to_switches, 2)}
    return switched | both


def _cell(a: Gpu | Hca, b: Gpu | Hca, nvlinks: Mapping[tuple[int, int], int], nodes: "_Nodes") -> str:
    if isinstance(a, Gpu) and isinstance(b, Gpu):
        count = nvlinks.get((a.index, b.index))
        if count:
            return f"NV{count}"
    by_pci = nodes.between(a.pci_address, b.pci_address)
    if by_pci == _UNKNOWN and isinstance(a, Gpu) and isinstance(b, Gpu):
        said = next((peer.topology for peer in a.peers if peer.gpu == b.index), "")
        return _BY_DRIVER.get(said, _UNKNOWN)
    return by_pci


class _Nodes:
    """The PCI tree and what NUMA nodes its devices belong to."""

    def __init__(self, snapshot: Snapshot, cpuset: frozenset[int] | None) -> None:
        self._pci: Mapping[str, PciDevice] = {device.address: device for device in snapshot.pci}
        allowed = {node.index for node in snapshot.numa if cpuset is not None and not cpuset.isdisjoint(node.cpus)}
        self._one_node_only = cpuset is not None and len(allowed) == 1

    def between(self, a: str, b: str) -> str:
        """Return what lies between two functions, "?" where the tree does not hold both."""
        if a not in self._pci or b not in self._pci:
            return _UNKNOWN
        above_a, above_b = self._bridges(a), self._bridges(b)
        shared = next((bridge for bridge in above_a if bridge in above_b), None)
        if shared is not None:
            # Between a device and its switch's upstream port lies one downstream port.
            ports = max(above_a.index(shared), above_b.index(shared))
            return "PIX" if ports <= 1 else "PXB"
        first, second = self._pci[a], self._pci[b]
        if first.root and first.root == second.root:
            return "PHB"
        if self._one_node_only or (first.numa_node is not None and first.numa_node == second.numa_node):
            return "NODE"
        return "SYS"

    def _bridges(self, address: str) -> list[str]:
        """Return the bridges above a function, nearest first. A tree with a circle ends at its second turn."""
        bridges: list[str] = []
        while (parent := self._pci[address].parent) in self._pci and parent not in bridges:
            bridges.append(parent)
            address = parent
        return bridges
