"""The paths found on each machine agree with its matrix, which is computed by other code."""

import itertools

import pytest

from fabricd.model.path import PathType, Transport
from fabricd.paths.matrix import topology_matrix
from fabricd.paths.query import find_paths
from tests.support import machine
from tests.support.machine_run import probed

SEVERAL = [name for name in machine.names() if len(machine.load(name).of_kind("gpu")) > 1]
#: Without those whose NUMA nodes the kernel does not name: there the matrix says SYS, as NVIDIA's tool does, while
#: paths rest on what NVML says.
WITHOUT_NVLINK = [
    name for name in SEVERAL if not machine.load(name).facts.keys() & {"nvlink", "mig"} and name != "rtx4090-pair"
]
TYPES = {
    "PIX": PathType.PIX, "PXB": PathType.PXB, "PHB": PathType.PHB, "NODE": PathType.PHB, "SYS": PathType.SYS,
}  # fmt: skip


@pytest.mark.parametrize("name", SEVERAL)
def test_where_the_matrix_says_nvlink_the_best_path_is_nvlink(name: str) -> None:
    """Not always the straight one: in a cube mesh, a way of two links over a third GPU carries more than one link."""
    snapshot = probed(name)[0]
    rows = topology_matrix(snapshot).rows
    for a, b in itertools.permutations([gpu.index for gpu in snapshot.gpus if gpu.pci_address], 2):
        answer = find_paths({snapshot.node.node_id: snapshot}, f"gpu{a}", f"gpu{b}")
        straight = [path for path in answer.paths if path.type is PathType.NVL]
        if rows[a].cells[b].startswith("NV"):
            assert answer.paths[0].transport is Transport.NVLINK
            assert straight[0].hops[0].count >= int(rows[a].cells[b].removeprefix("NV"))
        else:
            assert not straight


@pytest.mark.parametrize("name", WITHOUT_NVLINK)
def test_words_of_the_matrix_are_the_types_of_paths(name: str) -> None:
    snapshot = probed(name)[0]
    rows = topology_matrix(snapshot).rows
    for a, b in itertools.permutations([gpu.index for gpu in snapshot.gpus if gpu.pci_address], 2):
        best = find_paths({snapshot.node.node_id: snapshot}, f"gpu{a}", f"gpu{b}").paths[0]
        assert best.type is TYPES[rows[a].cells[b]], f"gpu{a} - gpu{b}"


def test_two_hosts_of_one_nvlink_domain_are_joined_by_nvlink() -> None:
    here, there = (probed(f"gb200-nvl72-host{number}")[0] for number in (0, 1))
    nodes = {snapshot.node.node_id: snapshot for snapshot in (here, there)}
    best = find_paths(nodes, f"{here.node.name}/gpu0", f"{there.node.name}/gpu3").paths[0]
    assert best.transport is Transport.NVLINK
    assert best.bandwidth_bytes_per_second == 18 * 53_125_000_000


def test_hgx_nodes_are_no_nvlink_domain() -> None:
    """Two nodes whose fabric is completed with a cluster of zeros have nothing in common."""
    here, there = probed("hgx-h100")[0], probed("gcp-a4")[0]
    nodes = {snapshot.node.node_id: snapshot for snapshot in (here, there)}
    answer = find_paths(nodes, f"{here.node.name}/gpu0", f"{there.node.name}/gpu0")
    assert all(path.transport is not Transport.NVLINK for path in answer.paths)
