"""The map in other programs' forms: each is read back by what reads it."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import InputError
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.nccl_xml_read import read
from fabricd.graph.placement import placement
from fabricd.model.device import Gpu, PcieLink
from fabricd.model.placement import Place
from fabricd.model.topology_file import TopologyFile
from fabricd.paths.nccl.view import NcclView
from fabricd.placement.hostlist import expand
from fabricd.placement.read import read_placement
from fabricd.plan.export import NODE_FORMATS, export_cluster, export_node
from fabricd.plan.export.dot import dot
from fabricd.plan.export.slurm import hostlist, slurm_topology
from tests.support.machine_run import probed
from tests.support.nodes import GEN5, hca, hgx, ib_port, mapping, node, pci

LINK = "0003:04:00.0"


def with_link(snapshot, address, link):
    devices = tuple(replace(device, link=link) if device.address == address else device for device in snapshot.pci)
    return replace(snapshot, pci=devices)


def capable(snapshot):
    gpus = tuple(replace(gpu, compute_capability=(9, 0)) for gpu in snapshot.gpus)
    return replace(snapshot, gpus=gpus)


class TestNcclTopology:
    def test_a_healthy_machine_needs_no_file(self):
        found = export_node("nccl-topo", capable(hgx()))
        assert found.notes == ("NCCL finds the same by itself: this machine needs no NCCL_TOPO_FILE",)

    def test_a_narrow_link_is_what_nccl_then_sees(self):
        """One adapter came up at x4 of x16: NCCL alone counts it as healthy, with our file it does not."""
        narrow = replace(GEN5, width=4)
        sick = with_link(capable(hgx()), LINK, narrow)
        found = export_node("nccl-topo", sick)
        assert found.notes == (f"the PCIe link of {LINK} runs at 32 GT/s x4, and NCCL would take it for 32 GT/s x16",)
        theirs, ours = NcclView(read(export_node("nccl-topo", capable(hgx())).text)), NcclView(read(found.text))
        before, after = (view.path(view.find("gpu3"), view.find("mlx5_3")) for view in (theirs, ours))
        assert before.bandwidth_bytes_per_second == 48e9
        assert after.bandwidth_bytes_per_second == 12e9

    def test_a_machine_of_the_suite_with_a_narrow_link(self):
        found = export_node("nccl-topo", probed("l40s-8x")[0])
        told = "the PCIe link of 0000:9c:00.0 runs at 16 GT/s x8, and NCCL would take it for 16 GT/s x16"
        assert found.notes == (told,)
        view = NcclView(read(found.text))
        narrow, healthy = (
            view.path(view.find(gpu), view.find("gpu7")).bandwidth_bytes_per_second for gpu in ("gpu6", "gpu5")
        )
        assert narrow < healthy

    def test_a_slow_link_counts_but_for_gpus_that_idle(self):
        slow = PcieLink(speed_gts=8.0, width=16, max_speed_gts=32.0, max_width=16)
        assert "runs at 8 GT/s x16" in export_node("nccl-topo", with_link(hgx(), LINK, slow)).notes[0]
        idle = with_link(hgx(), "0003:03:00.0", replace(slow, speed_gts=2.5))
        assert export_node("nccl-topo", idle).text == export_node("nccl-topo", hgx()).text

    def test_a_virtual_machine_gets_the_switches_that_it_hides(self):
        below = '<pci busid="0001:00:00.0" class="0x030200"/><pci busid="0002:00:00.0" class="0x020700"/>'
        switch = f'<pci busid="0000:10:00.0" class="0x060400">{below}</pci>'
        xml = f'<system version="1"><cpu numaid="0">{switch}</cpu></system>'
        devices = (
            pci("0001:00:00.0", root="pci0001:00", class_code=0x030200),
            pci("0002:00:00.0", root="pci0002:00", class_code=0x020700),
        )
        made = node(
            pci=devices,
            gpus=(Gpu(index=0, pci_address="0001:00:00.0", compute_capability=(9, 0)),),
            hcas=(hca("mlx5_0", ib_port(), pci_address="0002:00:00.0", dmabuf=True),),
            topology_file=TopologyFile(path="/opt/topo.xml", text=xml),
        )
        guest = replace(made, node=replace(made.node, virtualization="microsoft"))
        found = export_node("nccl-topo", guest)
        assert "/opt/topo.xml says where 2 of its devices are" in found.notes[0]
        view = NcclView(read(found.text))
        assert view.path(view.find("gpu0"), view.find("mlx5_0")).type == "PIX"


NAMES = st.lists(st.from_regex(r"[a-z][a-z-]{0,4}[0-9]{0,4}", fullmatch=True), min_size=1, max_size=30, unique=True)


@given(NAMES)
def test_a_hostlist_stands_for_the_names_it_was_made_of(names):
    assert sorted(expand(hostlist(names))) == sorted(names)


def test_hostlists_are_short():
    assert hostlist(["gpu003", "gpu001", "gpu002", "gpu9", "login"]) == "gpu9,gpu[001-003],login"


def test_slurm_reads_where_nodes_stand():
    places = {
        f"n{number}": Place(node=f"n{number}", switches=(f"leaf{number // 2}", f"spine{number // 4}", "core"))
        for number in range(8)
    }
    places["n8"] = Place(node="n8")
    text = slurm_topology({name: name for name in places}, places)
    assert text.startswith("# not known which switch they go into: n8\nSwitchName=leaf0 Nodes=n[0-1]\n")
    assert text.splitlines()[-3:] == [
        "SwitchName=spine0 Switches=leaf[0-1]",
        "SwitchName=spine1 Switches=leaf[2-3]",
        "SwitchName=core Switches=spine[0-1]",
    ]
    snapshots = mapping(*(node(f"n{number}") for number in range(8)))
    back = placement(snapshots, [read_placement(text.encode(), "topology.conf")])
    assert {place.node.removeprefix("id-"): place.switches for place in back.values()} == {
        name: place.switches for name, place in places.items() if place.switches
    }


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ({"a": Place(node="a")}, "which switch it goes into"),
        (
            {"a": Place(node="a", switches=("l", "s")), "b": Place(node="b", switches=("l", "t"))},
            "below 's' and below 't'",
        ),
        ({"a": Place(node="a", switches=("l 1",)), "b": Place(node="b", switches=("l,1",))}, "one name in Slurm's"),
    ],
)
def test_what_slurm_cannot_hold_is_refused(places, told):
    with pytest.raises(InputError, match=told):
        slurm_topology({name: name for name in places}, places)


@pytest.mark.parametrize("name", ["", "a,login[1-9]", "a LinkSpeed=1", "a\nSwitchName=s Nodes=b", "a#", "a\u202e"])
def test_a_nodes_name_says_no_more_to_slurm(name):
    with pytest.raises(InputError, match=r"cannot stand in topology\.conf"):
        slurm_topology({"a": name}, {"a": Place(node="a", switches=("leaf",))})


def test_mpirun_gets_slots_and_ranks_beside_their_gpus():
    nodes = {"a": hgx("a", gpus=4), "b": node("b")}
    assert export_cluster("hostfile", nodes, places={}).text == "a slots=4\nb slots=1\n"
    text = export_cluster("rankfile", nodes, places={}, order=[4, 3, 2, 1, 0]).text
    assert text.splitlines() == [
        "rank 0=b slot=*",
        "rank 1=a slot=2-3",
        "rank 2=a slot=2-3",
        "rank 3=a slot=0-1",
        "rank 4=a slot=0-1",
    ]
    with pytest.raises(InputError, match="order of 1 ranks, and the nodes have 5"):
        export_cluster("rankfile", nodes, places={}, order=[0])
    with pytest.raises(InputError, match="cannot stand in a host file"):
        export_cluster("hostfile", {"a b": node("a")}, places={})


@given(st.text(max_size=20), st.text(max_size=20))
def test_a_drawing_holds_any_name(name, detail):
    graph = Graph()
    graph.add(Vertex(name="x", kind=VertexKind.GPU))
    if name in ("", "x"):
        return
    graph.add(Vertex(name=name, kind=VertexKind.NIC, detail=detail))
    graph.connect("x", name, LinkKind.PCIE, bandwidth=1e9)
    lines = dot(graph).splitlines()
    assert len(lines) == 6, "every vertex and link stays on its line"
    quoted = r'"(?:[^"\\]|\\.)*"'
    assert re.fullmatch(rf"  {quoted} \[shape=\w+, label={quoted}\];", lines[3])
    assert re.fullmatch(rf'  {quoted} -- {quoted} \[label="pcie 1 GB/s"\];', lines[4])


def test_a_matrix_holds_any_name_on_its_line():
    made = node(hcas=(hca("mlx5_0\n  NIC1: \x1b[2J", ib_port(), pci_address="0000:01:00.0"),))
    assert export_node("matrix", made).text.splitlines()[-1] == r"  NIC0: mlx5_0\n  NIC1: \x1b[2J"


def test_each_form_of_a_node_is_written():
    for form in NODE_FORMATS:
        assert export_node(form, hgx()).text
