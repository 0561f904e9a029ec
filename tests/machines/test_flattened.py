"""Virtual machines that hide how their devices hang together are told from all other machines, and repaired."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.graph.flattened import flattened
from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.snapshot import graph_of
from fabricd.graph.template import placement
from fabricd.model.observation import Evidence
from fabricd.model.path import PathType
from fabricd.model.snapshot import Snapshot
from fabricd.model.topology_file import TopologyFile
from fabricd.paths.affinity import affinity
from fabricd.paths.matrix import topology_matrix
from fabricd.paths.nccl.view import NcclView
from fabricd.paths.query import find_paths
from tests.support import machine
from tests.support.machine_run import probed

FLAT = {"vm-flat", "azure-nd-h100-v5", "aws-p4d", "aws-p5", "a100-pcie-bridges"}
AZURE = "azure-nd-h100-v5"


def given(snapshot: Snapshot, text: str) -> Snapshot:
    return replace(snapshot, topology_file=TopologyFile(path="given.xml", text=text, given=True))


def corpus(name: str) -> str:
    return (Path(os.environ["FABRICD_CORPUS"]) / f"topologies/public/nccl_xml/{name}.xml").read_text()


def test_flattened_machines_are_told_from_the_others() -> None:
    assert {name for name in machine.names() if flattened(probed(name)[0])} == FLAT


def test_a_machine_says_by_which_facts() -> None:
    assert flattened(probed("vm-flat")[0]) == (
        "GPUs 4, adapters 0, none below a switch; 4 directly on a root bus, 4 without a PCIe link speed, "
        "4 without a NUMA node"
    )
    (note,) = graph_of(probed("vm-flat")[0]).notes
    assert note.startswith("this virtual machine hides how its devices hang together: GPUs 4")
    assert "--topology" in note


def test_the_file_on_the_image_repairs_it() -> None:
    """Each GPU of this machine shares a switch with one adapter, which only the file tells."""
    snapshot = probed(AZURE)[0]
    assert snapshot.topology_file is not None
    assert snapshot.topology_file.path == "/opt/microsoft/ndv5/topo.xml"
    answer = find_paths({"n": snapshot}, "gpu3", "mlx5_ib3")
    best = answer.paths[0]
    assert best.type is PathType.PIX
    assert [hop.dst.partition("/")[2] for hop in best.hops] == ["ffff:ff:04.0", "0104:00:00.0", "mlx5_ib3:1"]
    assert best.hops[1].evidence is Evidence.ASSUMED
    assert best.hops[1].detail == "32 GT/s x16, as the topology file says"
    assert answer.notes[1] == "/opt/microsoft/ndv5/topo.xml says where 16 of its devices are; not 7870:00:02.0"
    found = affinity(graph_of(snapshot, node=""), [f"mlx5_ib{index}:1" for index in range(8)])
    assert [one.assigned for one in found.gpus] == [(f"mlx5_ib{index}:1",) for index in range(8)]
    rows = topology_matrix(placement(snapshot).snapshot).rows
    assert [rows[index].cells[8 + index] for index in range(8)] == ["PIX"] * 8
    assert rows[0].cells[9:17] == ("NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS", "NODE")


def test_no_candidate_passes_the_machine_between_two_numa_nodes() -> None:
    """It stands for a NUMA node that is not known; these are."""
    for path in find_paths({"n": probed(AZURE)[0]}, "gpu3", "mlx5_ib5", candidates=16).paths:
        assert not any(hop.dst.endswith("/machine") for hop in path.hops)


def test_nccl_sees_it_repaired_too() -> None:
    view = NcclView(topology_of(probed(AZURE)[0]))
    assert view.path(view.find("gpu3"), view.find("mlx5_ib3")).type is PathType.PIX
    bare = NcclView(topology_of(replace(probed(AZURE)[0], topology_file=None)))
    assert bare.path(bare.find("gpu3"), bare.find("mlx5_ib3")).type in (PathType.PHB, PathType.PXN)


@pytest.mark.parametrize("name", sorted(FLAT - {AZURE}))
def test_a_file_without_its_addresses_changes_nothing(name: str) -> None:
    snapshot = probed(name)[0]
    text = '<system version="1"><cpu numaid="0"><pci busid="00aa:00:00.0" class="0x030200"/></cpu></system>'
    placed = placement(given(snapshot, text))
    assert placed.snapshot.pci == snapshot.pci
    assert placed.template is None
    assert placed.notes[-1] == "given.xml names none of its devices, so it changes nothing; it names 00aa:00:00.0"


def test_a_broken_file_changes_nothing() -> None:
    placed = placement(given(probed("vm-flat")[0], '<system version="1"><cpu numaid="0">'))
    assert placed.snapshot.pci == probed("vm-flat")[0].pci
    assert placed.notes[-1].startswith("the topology file is not used: given.xml: line 1")


def test_what_a_machine_shows_is_not_overruled_unless_someone_says_so() -> None:
    snapshot = probed("hgx-h100")[0]
    text = f'<system version="1"><cpu numaid="1"><pci busid="{snapshot.gpus[0].pci_address}"/></cpu></system>'
    found = TopologyFile(path="found.xml", text=text)
    assert placement(replace(snapshot, topology_file=found)).snapshot.pci == snapshot.pci
    placed = placement(given(snapshot, text))
    assert placed.snapshot.pci != snapshot.pci
    (conflict,) = placed.conflicts
    assert conflict.problem == "NUMA node 0 by the kernel, 1 by given.xml"
    assert conflict.taken == "the file's"


@pytest.mark.corpus
def test_published_template_of_p4d() -> None:
    """Two GPUs and one adapter share a switch each; the machine shows a host bridge."""
    snapshot = given(probed("aws-p4d")[0], corpus("aws_p4d-24xl-topo"))
    (note,) = [note for note in graph_of(snapshot).notes if note.startswith("given.xml")]
    assert note == "given.xml says where 12 of its devices are; not 0000:00:05.0"
    for gpu in range(8):
        best = find_paths({"n": snapshot}, f"gpu{gpu}", f"rdmap{(16, 32, 144, 160)[gpu // 2]}s27").paths[0]
        assert best.type is PathType.PIX


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "template", "count"),
    [("a100-pcie-bridges", "azure_ncv4-topo", 4), (AZURE, "azure_ndv4-topo", 13), ("aws-p5", "aws_p4d-24xl-topo", 0)],
)
def test_published_templates_of_other_machines(name: str, template: str, count: int) -> None:
    """Addresses decide: a file of another machine of the same cloud may name some of them."""
    placed = placement(given(probed(name)[0], corpus(template)))
    said = f"says where {count} of its devices are" if count else "names none of its devices, so it changes nothing"
    assert said in placed.notes[-1]
    assert ("it names 0004:00:00.0, 000d:00:00.0, 000e:00:00.0 too" in placed.notes[-1]) == (count == 13)
