"""The matrix of ``nvidia-smi topo -m`` from a graph alone, where there is no snapshot: of a topology file."""

from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.path import PathType
from fabricd.paths.describe import path_type
from fabricd.paths.matrix import MatrixRow, TopologyMatrix
from fabricd.paths.search import PathSearch
from fabricd.units import format_ranges

_NOT_APPLICABLE = "N/A"
#: NVIDIA's tool counts NVLinks and, where there are none, says what lies between two devices on PCIe alone.
_BESIDE_PCIE = (LinkKind.NVLINK, LinkKind.C2C)


def graph_matrix(graph: Graph, affinities: dict[str, str]) -> TopologyMatrix:
    """Return the matrix of a graph's GPUs and ports.

    Args:
        graph: of one file.
        affinities: CPUs of each NUMA node, by its vertex name: "0-55,112-167".
    """
    ends = [*graph.of_kind(VertexKind.GPU), *graph.of_kind(VertexKind.HCA_PORT)]
    counts = _nvlinks(graph)
    search = PathSearch(graph.without(*_BESIDE_PCIE))
    cells = {(src, dst): path_type(graph, src, hops) for src, dst, hops in search.all_best([end.name for end in ends])}
    rows = []
    nics = 0
    for end in ends:
        words = tuple(_cell(end, other, counts, cells) for other in ends)
        if end.kind is VertexKind.GPU:
            node = f"{end.node}/" if end.node else ""
            numa = _NOT_APPLICABLE if end.numa is None else str(end.numa)
            rows.append(
                MatrixRow(
                    label=end.name.upper(),
                    name=end.detail,
                    cells=words,
                    cpu_affinity=affinities.get(f"{node}numa{end.numa}", ""),
                    numa_affinity=numa,
                    gpu_numa_id=_NOT_APPLICABLE,
                )
            )
        else:
            rows.append(MatrixRow(label=f"NIC{nics}", name=end.detail or end.name, cells=words))
            nics += 1
    return TopologyMatrix(rows=tuple(rows), nvlink=True)


def _cell(a: Vertex, b: Vertex, counts: dict[tuple[str, str], int], types: dict[tuple[str, str], PathType]) -> str:
    if a.name == b.name:
        return "X"
    if (a.name, b.name) in counts:
        return f"NV{counts[a.name, b.name]}"
    return types.get((a.name, b.name), PathType.DIS).value


def _nvlinks(graph: Graph) -> dict[tuple[str, str], int]:
    """Return the number of NVLinks between GPUs: straight ones, else those to the switches they share."""
    straight: dict[tuple[str, str], int] = {}
    to_switch: dict[str, int] = {}
    for hop in graph.edges():
        kinds = (graph[hop.src].kind, graph[hop.dst].kind)
        if hop.link == LinkKind.NVLINK and kinds == (VertexKind.GPU, VertexKind.GPU):
            straight[hop.src, hop.dst] = hop.count
        elif hop.link == LinkKind.NVLINK and kinds == (VertexKind.GPU, VertexKind.NVSWITCH):
            to_switch[hop.src] = hop.count
    switched = {(a, b): min(to_switch[a], to_switch[b]) for a in to_switch for b in to_switch if a != b}
    return switched | straight


def affinities_of(topology: NcclTopology) -> dict[str, str]:
    """Return the CPUs of each NUMA node of a topology file, as ``graph_matrix`` takes them."""
    hosts = {one: f"host{number}/" if number else "" for number, one in enumerate(topology.host_hashes())}
    return {f"{hosts[cpu.host_hash]}numa{cpu.numaid}": _ranges(cpu.affinity) for cpu in topology.cpus}


def _ranges(mask: str) -> str:
    """Return the CPUs of a mask as the kernel prints it (groups of 32 bits in hexadecimal), ``""`` for none."""
    try:
        bits = int(mask.replace(",", "") or "0", 16)
    except ValueError:
        return ""
    return format_ranges(number for number in range(bits.bit_length()) if bits >> number & 1)
