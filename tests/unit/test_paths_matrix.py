"""The matrix of nvidia-smi topo -m from hand-made snapshots; whole machines are in tests/machines."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.model.device import Gpu, GpuPeer, Hca, NumaNode, NvLink, PciDevice
from fabricd.model.identity import NodeIdentity
from fabricd.model.snapshot import Snapshot
from fabricd.paths.matrix import TopologyMatrix, format_matrix, is_cut, topology_matrix

NODE = NodeIdentity(node_id="n", name="n")
#: How far: below a host bridge, through one, through two, between NUMA nodes.
FAR = {"X": 0, "PIX": 1, "PXB": 1, "PHB": 2, "NODE": 3, "SYS": 4}


def tree(chains: list[str], numa: list[int | None]) -> Snapshot:
    """GPUs from chains such as ``"pci0000:00/b1/g"``: host bridge, bridges, function."""
    devices: dict[str, PciDevice] = {}
    gpus = []
    for index, (chain, node) in enumerate(zip(chains, numa, strict=True)):
        root, *rest = chain.split("/")
        for parent, name in itertools.pairwise(["", *rest]):
            devices.setdefault(name, PciDevice(address=name, parent=parent, root=root, numa_node=node))
        gpus.append(Gpu(index=index, pci_address=rest[-1], numa_node=node))
    return Snapshot(node=NODE, pci=tuple(devices.values()), gpus=tuple(gpus))


def word(*chains: str, numa: tuple[int | None, int | None] = (0, 0)) -> str:
    return topology_matrix(tree(list(chains), list(numa))).rows[0].cells[1]


@pytest.mark.parametrize(("a", "b", "expected"), [
    ("pci:0/port/dev.0", "pci:0/port/dev.1", "PIX"),                    # two functions of a card
    ("pci:0/port/up/down1/a", "pci:0/port/up/down2/b", "PIX"),          # one switch
    ("pci:0/port/up/d1/up1/e1/a", "pci:0/port/up/d2/up2/f1/b", "PXB"),  # switches under a switch
    ("pci:0/port/up/d1/up1/e1/a", "pci:0/port/up/d2/b", "PXB"),         # one of them nearer
    ("pci:0/port1/a", "pci:0/port2/b", "PHB"),
    ("pci:0/a", "pci:0/b", "PHB"),                                      # a virtual machine's flat bus
    ("pci:0/port/a", "pci:1/port2/b", "NODE"),
])  # fmt: skip
def test_words(a: str, b: str, expected: str) -> None:
    assert word(a, b) == word(b, a) == expected


@pytest.mark.parametrize(
    ("numa", "expected"), [((0, 1), "SYS"), ((None, None), "SYS"), ((0, None), "SYS"), ((3, 3), "NODE")]
)
def test_two_host_bridges_are_one_node_only_if_the_kernel_says_so(
    numa: tuple[int | None, int | None], expected: str
) -> None:
    assert word("pci:0/a", "pci:1/b", numa=numa) == expected


def test_without_pci_the_driver_is_believed() -> None:
    gpus = tuple(
        Gpu(index=index, peers=(GpuPeer(gpu=1 - index, topology=said),)) for index, said in enumerate(("multiple", ""))
    )
    rows = topology_matrix(Snapshot(node=NODE, gpus=gpus)).rows
    assert [row.cells for row in rows] == [("X", "PXB"), ("?", "X")]


def test_nvlinks_are_counted_straight_and_through_switches() -> None:
    def link(index: int, kind: str, to: str, *, active: bool = True) -> NvLink:
        return NvLink(index=index, active=active, remote_type=kind, remote_pci_address=to)

    gpus = (
        Gpu(
            index=0,
            pci_address="a",
            links=(link(0, "gpu", "b"), link(1, "gpu", "b"), link(2, "gpu", "c", active=False)),
        ),
        Gpu(index=1, pci_address="b", links=(link(0, "gpu", "a"), link(1, "gpu", "a"))),
        Gpu(index=2, pci_address="c", links=tuple(link(n, "switch", "") for n in range(12))),
        Gpu(index=3, pci_address="d", links=tuple(link(n, "switch", "", active=n > 0) for n in range(12))),
    )
    rows = topology_matrix(Snapshot(node=NODE, gpus=gpus)).rows
    assert rows[0].cells == ("X", "NV2", "?", "?")
    assert rows[2].cells[3] == rows[3].cells[2] == "NV11", "the weaker end counts"
    assert topology_matrix(Snapshot(node=NODE, gpus=gpus), nvlink=False).rows[0].cells[1] == "?"


def test_adapters_come_in_order_of_names_where_their_numbers_are_not_known() -> None:
    """mlx5_bond_0 takes the address of a port that it replaces, and stands behind all others."""
    names = {"mlx5_bond_0": "0000:05:00.0", "mlx5_10": "0000:0a:00.0", "mlx5_9": "10000:09:00.0", "rxe0": ""}
    hcas = tuple(Hca(name=name, pci_address=address) for name, address in names.items())
    rows = topology_matrix(Snapshot(node=NODE, hcas=(*hcas, Hca(name="cxi0", kind="slingshot", pci_address="x")))).rows
    assert [(row.label, row.name) for row in rows] == [("NIC0", "mlx5_9"), ("NIC1", "mlx5_10"), ("NIC2", "mlx5_bond_0")]
    assert {(row.cpu_affinity, row.numa_affinity, row.gpu_numa_id) for row in rows} == {("", "", "")}


def test_adapters_come_in_order_of_registration() -> None:
    indices = {"mlx5_eth0": 2, "mlx5_ib0": 0, "mlx5_ib1": 1, "hotplugged": None}
    hcas = tuple(Hca(name=name, index=index, pci_address=name) for name, index in indices.items())
    rows = topology_matrix(Snapshot(node=NODE, hcas=hcas)).rows
    assert [row.name for row in rows] == ["mlx5_ib0", "mlx5_ib1", "mlx5_eth0", "hotplugged"]


@pytest.mark.parametrize(("near", "node", "shown"), [
    (None, None, "N/A"),        # the driver does not tell
    (None, 1, "1"),             # an older driver: what the kernel says
    ((), 0, ""),                # a container without memory of that node
    ((0, 1), None, "0-1"),      # firmware names no node: all
    ((0, *range(2, 18)), 0, "0,2-17"),  # memory of GPUs counts
])  # fmt: skip
def test_numa_affinity_is_what_the_driver_calls_near(
    near: tuple[int, ...] | None, node: int | None, shown: str
) -> None:
    gpu = Gpu(index=0, numa_node=node, numa_affinity=near)
    assert topology_matrix(Snapshot(node=NODE, gpus=(gpu,))).rows[0].numa_affinity == shown


def test_cpus_numbered_alternately_are_cut_as_the_tool_cuts_them() -> None:
    matrix = topology_matrix(Snapshot(node=NODE, gpus=(Gpu(index=0, cpu_affinity=tuple(range(0, 48, 2))),)))
    assert matrix.rows[0].cpu_affinity.endswith(",44,46")
    assert format_matrix(matrix).splitlines()[1] == "GPU0\t X \t0,2,4,6,8,10\tN/A\t\tN/A"
    assert is_cut(matrix)
    assert not is_cut(topology_matrix(Snapshot(node=NODE, gpus=(Gpu(index=0, cpu_affinity=(0, 1, 2, 8)),))))


def test_cpuset_of_a_job() -> None:
    """Inside a cpuset of one NUMA node, the tool knows no other node."""
    snapshot = Snapshot(
        node=NODE,
        numa=(NumaNode(index=0, cpus=(0, 1)), NumaNode(index=1, cpus=(2, 3))),
        pci=(PciDevice(address="a", root="r0", numa_node=0), PciDevice(address="b", root="r1", numa_node=1)),
        gpus=(
            Gpu(index=0, pci_address="a", numa_node=0, cpu_affinity=(0, 1)),
            Gpu(index=1, pci_address="b", numa_node=1, cpu_affinity=(2, 3)),
        ),
    )
    outside, inside = topology_matrix(snapshot), topology_matrix(snapshot, cpuset=frozenset({3}))
    assert (outside.rows[0].cells[1], inside.rows[0].cells[1]) == ("SYS", "NODE")
    assert [row.cpu_affinity for row in inside.rows] == ["", "3"]
    assert topology_matrix(snapshot, cpuset=frozenset({1, 3})).rows[0].cells[1] == "SYS"


def test_layout() -> None:
    snapshot = Snapshot(
        node=NODE,
        gpus=(Gpu(index=0, cpu_affinity=(0, 1, 2, 8), numa_node=0), Gpu(index=1, memory_numa_node=9)),
        hcas=(Hca(name="mlx5_0", pci_address="a"),),
    )
    lines = format_matrix(topology_matrix(snapshot)).splitlines()
    assert lines[0] == "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"
    assert lines[1] == "GPU0\t X \t?\t?\t0-2,8\t0\t\tN/A"
    assert lines[2] == "GPU1\t?\t X \t?\t\tN/A\t\t9"
    assert lines[3] == "NIC0\t?\t?\t X \t\t\t\t"
    assert lines[-3:] == ["NIC Legend:", "", "  NIC0: mlx5_0"]
    assert "NV#" not in format_matrix(topology_matrix(snapshot, nvlink=False))


def test_empty_machine() -> None:
    assert topology_matrix(Snapshot(node=NODE)) == TopologyMatrix(rows=(), nvlink=True)


def test_circle_of_bridges_ends() -> None:
    pci = (PciDevice(address="a", parent="b"), PciDevice(address="b", parent="a"))
    gpus = (Gpu(index=0, pci_address="a"), Gpu(index=1, pci_address="b"))
    assert topology_matrix(Snapshot(node=NODE, pci=pci, gpus=gpus)).rows[0].cells[1] in FAR


CHAIN = st.lists(st.sampled_from("wxyz"), max_size=4)


@given(
    st.lists(
        st.tuples(st.sampled_from(["pci:0", "pci:1", "pci:2"]), CHAIN, st.sampled_from([None, 0, 1])),
        min_size=2,
        max_size=6,
    )
)
def test_words_are_symmetric_and_as_far_as_a_tree_is(machine: list[tuple[str, list[str], int | None]]) -> None:
    """Between a and c lies nothing farther than the farther of a-b and b-c: the distances of a tree's leaves."""
    chains = [
        "/".join([root, *(f"{root}.{'.'.join(bridges[: n + 1])}" for n in range(len(bridges))), f"g{index}"])
        for index, (root, bridges, _) in enumerate(machine)
    ]
    known = {root: node for root, _, node in machine}
    rows = topology_matrix(tree(chains, [known[root] for root, _, _ in machine])).rows
    far = [[FAR[cell] for cell in row.cells] for row in rows]
    for a, b, c in itertools.product(range(len(far)), repeat=3):
        assert far[a][b] == far[b][a]
        assert far[a][c] <= max(far[a][b], far[b][c])
