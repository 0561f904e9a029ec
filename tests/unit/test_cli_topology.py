"""fabricctl topo and paths on files: tables, JSON, exit statuses, and names that are not obeyed."""

import json
from dataclasses import replace

import pytest

from fabric_client.cli.clean import clean
from fabricd.model.codec import from_json, to_json
from fabricd.model.device import Gpu, InterfaceKind
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.path import PathAnswer
from tests.support.nodes import hca, hgx, ib_port, nic, node, pci

XML = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85">
    <pci busid="0000:11:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:12:00.0" count="1" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:12:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1"><nvlink target="0000:11:00.0" count="1" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:13:00.0" class="0x020700" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="100000" port="1" gdr="1"/></nic>
    </pci>
  </cpu>
</system>
"""


@pytest.fixture
def xml(tmp_path):
    file = tmp_path / "topo.xml"
    file.write_text(XML)
    return file


@pytest.fixture
def saved(tmp_path):
    def save(snapshot):
        file = tmp_path / f"{snapshot.node.node_id}.json"
        file.write_bytes(to_json(snapshot))
        return file

    return save


def virtual_machine(**fields):
    interfaces = (
        nic("lo", "127.0.0.1/8", kind=InterfaceKind.LOOPBACK),
        nic("eth0", "10.0.0.1/24", pci_address="0000:00:03.0", driver="virtio_net"),
        nic("veth1", "10.1.0.1/24", kind=InterfaceKind.VETH, speed_bytes_per_second=1_250_000_000),
        nic("ifb0", kind=InterfaceKind.IFB),
    )
    return node("vm", pci=(pci("0000:00:03.0"),), interfaces=interfaces, **fields)


def test_topo_of_a_machine_without_gpus_is_a_tree(fabricctl, saved):
    status, out, _ = fabricctl("topo", "--from", saved(virtual_machine()))
    assert status == 0
    lines = [line.strip("│├└─ ") for line in out.splitlines()]
    assert "numa0  CPUs 0-1" in lines
    assert "pci0000:00  host bridge" in lines
    assert "eth0  physical, virtio_net, speed ?, up, 10.0.0.1/24, on 10.0.0.0/24" in lines
    assert "veth1  veth, virtual, up, 10.1.0.1/24, on 10.1.0.0/24" in lines
    assert "ifb0  ifb, virtual, on no network: an ifb shapes traffic and joins nothing" in lines


def test_topo_of_gpus_is_nvidias_matrix_and_the_nic_of_each(fabricctl, saved):
    status, out, _ = fabricctl("topo", "--from", saved(hgx()))
    assert status == 0
    assert "\tGPU0\tGPU1" in out
    assert "GPU0\t X \tNV18" in out
    assert "NIC0: mlx5_0" in out
    row = next(line for line in out.splitlines() if line.startswith("gpu3"))
    assert row.split()[:5] == ["gpu3", "mlx5_3:1", "PIX", "50", "GB/s"]
    _, tree, _ = fabricctl("topo", "--tree", "--from", saved(hgx()))
    assert "mlx5_3:1  infiniband, 50 GB/s, active, on ib:fe80:0000:0000:0000" in tree


def test_topo_as_json_holds_the_whole_graph(fabricctl, saved):
    _, out, _ = fabricctl("topo", "--json", "--from", saved(hgx()))
    told = json.loads(out)
    assert {vertex["kind"] for vertex in told["vertices"]} >= {"gpu", "nvswitch", "pci-switch", "numa", "hca-port"}
    assert {link["link"] for link in told["links"]} == {"nvlink", "pcie", "memory", "interconnect", "port"}
    assert told["affinity"]["ports"][2] == {"port": "mlx5_2:1", "gpus": ["gpu2"], "rail": 2}
    assert told["networks"][0]["transport"] == "infiniband"


def test_topo_shows_the_infiniband_switches_around_the_node(fabricctl, saved):
    ndr = {"width": 4, "speed": "NDR", "rate_bytes_per_second": 50_000_000_000}
    leaf = IbSwitch(
        guid="a1", name="leaf-1", lid=7, hca_links=17, switch_links=2,
        links=(
            IbLink(port=1, peer="c1", peer_port=1, local_port="mlx5_0:1", **ndr),
            IbLink(port=33, peer="b1", peer_port=4, **ndr),
            IbLink(port=34, peer="b1", peer_port=5, **ndr),
            IbLink(port=35, peer="b2", peer_port=5),
        ),
    )  # fmt: skip
    spine = IbSwitch(guid="b1", name="spine-1", hops=2, switch_links=40)
    fabric = IbFabric(guid="a0", switch_count=40, hca_count=542, link_count=1114, switches=(leaf, spine))
    file = saved(replace(node("n1"), ib_fabrics=(fabric,)))
    status, out, _ = fabricctl("topo", "--from", file)
    assert status == 0
    assert "fabric a0: 40 switches, 542 adapters" in out
    row = next(line for line in out.splitlines() if line.startswith("leaf-1"))
    assert " ".join(row.split()) == "leaf-1 7 mlx5_0:1 (4x NDR) 17 2 of 4x NDR, 1 of unknown speed to 2 switches"
    assert not any(line.startswith("spine-1") for line in out.splitlines())
    _, out, _ = fabricctl("topo", "--from", file, "--json")
    assert json.loads(out)["ib_fabrics"][0]["switches"][0]["links"][0]["local_port"] == "mlx5_0:1"


def test_topo_of_a_topology_file(fabricctl, xml):
    status, out, _ = fabricctl("topo", "--tree", "--from", xml)
    assert status == 0
    assert "GPU0\t X \tNV1\tPHB\t0-7\t0\t\tN/A" in out
    assert "0000:13:00.0  adapter, 16 GT/s x16" in out
    assert fabricctl("topo", "--from", xml, "--node", "b")[0] == 2


def test_paths_of_a_pair_are_ranked(fabricctl, xml):
    status, out, _ = fabricctl("paths", "gpu0", "gpu1", "--from", xml)
    assert status == 0
    rows = [line.split() for line in out.splitlines()]
    assert rows[0][:5] == ["RANK", "SRC", "DST", "TYPE", "TRANSPORT"]
    assert [row[:7] for row in rows[1:3]] == [
        ["1", "gpu0", "gpu1", "PHB", "pcie", "31.5", "GB/s"],
        ["2", "gpu0", "gpu1", "NVL", "nvlink", "25", "GB/s"],
    ]


def test_paths_explained_name_hops_and_what_nccl_gives_away(fabricctl, xml):
    _, out, _ = fabricctl("paths", "gpu0", "gpu1", "--explain", "--from", xml)
    assert "gpu0 - numa0  pcie, 31.5 GB/s, reported, 16 GT/s x16" in out
    assert "NCCL takes NVL, as it ranks types of path before bandwidth" in out
    assert "narrower: gpu0 - gpu1 (nvlink, 1 NVLink) 25 GB/s, assumed against 31.5 GB/s of the best (reported)" in out


def test_paths_as_json_in_both_views(fabricctl, xml):
    _, out, _ = fabricctl("paths", "--json", "--from", xml)
    answer = from_json(out, PathAnswer)
    assert answer.view == "physical"
    assert len(answer.paths) == 6
    _, out, _ = fabricctl("paths", "--json", "--view", "nccl", "--from", xml)
    told = json.loads(out)
    assert told["view"] == "nccl"
    first = told["paths"][0]
    assert (first["src"], first["dst"], first["type"]) == ("gpu0", "gpu1", "NVL")
    assert first["bandwidth_bytes_per_second"] == pytest.approx(20e9)
    assert {"transport", "latency_seconds", "hops", "evidence", "gdr"} <= first.keys()


def test_paths_of_one_end_and_of_all(fabricctl, xml, saved):
    _, out, _ = fabricctl("paths", "gpu0", "--from", xml)
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["gpu1", "net0"]
    _, out, _ = fabricctl("paths", "mlx5_0", "--view", "nccl", "--from", xml)
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["net0", "gpu0"], ["net0", "gpu1"]]
    _, out, _ = fabricctl("paths", "--from", saved(virtual_machine()))
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["vm/eth0", "vm/veth1"]
    _, out, _ = fabricctl("paths", "eth0", "numa0", "--explain", "--from", saved(virtual_machine()))
    assert "no candidate: nvlink: vm/eth0 (nic) has no NVLink" in out


def test_settings_of_nccl_bear_on_its_view(fabricctl, xml):
    setting = ("--nccl-env", "NCCL_P2P_DISABLE=1")
    _, out, _ = fabricctl("paths", "gpu0", "gpu1", "--view", "nccl", "--json", *setting, "--from", xml)
    assert json.loads(out)["paths"][0]["transport"] == "shm"
    for wrong, why in (
        (("--nccl-env", "NCCL_P2P_DISABLE"), "is no setting"),
        (("--nccl-env", "NCCL_NONSENSE=1"), "NCCL_NONSENSE"),
        (("--nccl-env", "NCCL_P2P_LEVEL=FAR"), "means nothing"),
    ):
        status, _, err = fabricctl("paths", "--view", "nccl", *wrong, "--from", xml)
        assert (status, why in err) == (2, True)
    status, _, err = fabricctl("paths", *setting, "--from", xml)
    assert (status, "add --view nccl" in err) == (2, True)


def test_exit_statuses(fabricctl, xml, saved, tmp_path):
    vm = saved(virtual_machine())
    assert fabricctl("paths", "lo", "numa0", "--from", vm)[0] == 1
    status, _, err = fabricctl("paths", "gpu7", "gpu0", "--from", xml)
    assert (status, "no device called 'gpu7' (known: gpu0" in err) == (2, True)
    status, _, err = fabricctl("topo", "--from", tmp_path / "none.xml")
    assert (status, "No such file" in err) == (2, True)
    assert fabricctl("paths", "--view", "nccl", "--from", vm)[0] == 1
    for content in ("", "{", "<system", "[]", "\x00\xff", '{"nodes": 3}', '<?xml version="1.0"?><!DOCTYPE x><x/>'):
        (tmp_path / "odd").write_text(content)
        status, _, err = fabricctl("topo", "--from", tmp_path / "odd")
        assert (status, len(err.splitlines())) == (2, 1), content
    closed = "http://127.0.0.1:9"
    for command in ("topo", "paths", "nodes"):
        status, _, err = fabricctl(command, "--from", closed)
        assert (status, "no answer from the daemon" in err) == (3, True)


def test_names_are_shown_and_not_obeyed(fabricctl, saved):
    evil = "\x1b]0;pwned\x07[red]\u202e"
    snapshot = virtual_machine()
    interfaces = (*snapshot.interfaces, nic(evil, "10.2.0.1/24", kind=InterfaceKind.VETH, driver=evil))
    identity = replace(snapshot.node, name=evil, product=evil)
    file = saved(replace(snapshot, interfaces=interfaces, node=identity))
    for arguments in (("topo",), ("paths",), ("paths", evil, "numa0", "--explain"), ("paths", "x" + evil, "numa0")):
        _, out, err = fabricctl(*arguments, "--from", file)
        shown = out + err
        assert not {"\x1b", "\x07", "\u202e"} & set(shown)
        assert r"\x1b]0;pwned\x07[red]\u202e" in shown
    gpus = hgx()
    odd = replace(gpus, hcas=(replace(gpus.hcas[0], name=evil), *gpus.hcas[1:]))
    _, out, _ = fabricctl("topo", "--from", saved(odd))
    assert "\x1b" not in out


def test_clean_keeps_what_a_terminal_only_shows():
    assert clean("eth0 ünï 漢字 [b]") == "eth0 ünï 漢字 [b]"
    assert clean("a\tb\nc\u2028") == r"a\tb\nc\u2028"
    assert clean("a\tb\nc\x9b", keep="\t\n") == "a\tb\nc\\x9b"
    assert clean("\ud800") == r"\ud800"
    assert clean("x" * 1000) == "x" * 400 + "..."


def test_capacity_of_a_pair(fabricctl, xml):
    _, out, _ = fabricctl("paths", "gpu0", "gpu1", "--capacity", "--from", xml)
    assert "all paths at once: 56.5 GB/s, bounded by gpu0 - numa0, gpu0 - gpu1" in out
    _, out, _ = fabricctl("paths", "gpu0", "gpu1", "--capacity", "--json", "--from", xml)
    assert json.loads(out)["capacity"]["bandwidth_bytes_per_second"] == 56507692304
    for arguments in (("gpu0",), ("gpu0", "gpu1", "--view", "nccl")):
        assert fabricctl("paths", *arguments, "--capacity", "--from", xml)[0] == 2


FLAT_XML = """<system version="1"><cpu numaid="0"><pci busid="ffff:ff:01.0" class="0x060400">
  <pci busid="0001:00:00.0" link_speed="32.0 GT/s PCIe" link_width="16"/><pci busid="0002:00:00.0"/>
</pci></cpu></system>
"""


def flat_machine():
    """A GPU and an adapter that share a switch which the hypervisor does not show."""
    devices = (
        pci("0001:00:00.0", root="pci0001:00", class_code=0x030200),
        pci("0002:00:00.0", root="pci0002:00", class_code=0x020700),
    )
    gpu = Gpu(index=0, pci_address="0001:00:00.0", compute_capability=(9, 0))
    card = hca("mlx5_0", ib_port(), pci_address="0002:00:00.0", peer_memory=True)
    shown = node("vm", pci=devices, gpus=(gpu,), hcas=(card,))
    return replace(shown, node=replace(shown.node, virtualization="kvm"))


def test_a_flattened_machine_is_said_and_repaired_from_a_given_file(fabricctl, saved, tmp_path):
    file = tmp_path / "topo.xml"
    file.write_text(FLAT_XML)
    flat = saved(flat_machine())
    for command in (
        ("topo",),
        ("paths",),
        ("paths", "gpu0", "mlx5_0"),
        ("paths", "--explain"),
        ("paths", "--view=nccl"),
    ):
        status, out, error = fabricctl(*command, "--from", flat)
        assert (status, error) == (0, "")
        assert "hides how its devices hang together: GPUs 1, adapters 1, none below a switch" in out
        assert "PIX" not in out.partition("\nLegend")[0]
        _, out, _ = fabricctl(*command, "--from", flat, "--topology", file)
        assert f"{file} says where 2 of its devices are" in out
        assert "PIX" in out.partition("\nLegend")[0]
    _, out, _ = fabricctl("paths", "gpu0", "mlx5_0", "--json", "--from", flat, "--topology", file)
    told = json.loads(out)
    assert told["notes"][1] == f"{file} says where 2 of its devices are"
    assert told["paths"][0]["type"] == "PIX"


def test_a_given_file_that_does_not_fit(fabricctl, saved, xml, tmp_path):
    status, out, _ = fabricctl("topo", "--from", saved(flat_machine()), "--topology", xml)
    assert status == 0
    assert f"{xml} names none of its devices, so it changes nothing; it names 0000:11:00.0" in out
    broken = tmp_path / "broken.xml"
    broken.write_text(FLAT_XML[:60])
    status, _, error = fabricctl("topo", "--from", saved(flat_machine()), "--topology", broken)
    assert status == 2
    assert "line 1" in error
    assert fabricctl("topo", "--from", xml, "--topology", xml)[0] == 2
    assert fabricctl("paths", "--from", saved(flat_machine()), "--topology", tmp_path / "none")[0] == 2


def test_paths_as_json_have_the_keys_that_programs_rely_on(fabricctl, xml):
    keys = {"src", "dst", "type", "transport", "latency_seconds", "hops", "evidence", "gdr"}
    for view in ("physical", "nccl"):
        _, out, _ = fabricctl("paths", "--json", "--view", view, "--from", xml)
        told = json.loads(out)
        assert told["view"] == view
        assert all(keys | {"bandwidth_bytes_per_second"} <= set(path) for path in told["paths"])
