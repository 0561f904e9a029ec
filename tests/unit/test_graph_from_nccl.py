"""A topology file as a graph: its structure, line rates, and what it contradicts itself in."""

import pytest

from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.graph import LinkKind, VertexKind
from fabricd.graph.nccl_xml_read import read
from fabricd.model.observation import Evidence
from fabricd.model.path import PathType
from fabricd.paths.ends import ends_of
from fabricd.paths.graph_matrix import affinities_of, graph_matrix
from fabricd.paths.matrix import format_matrix
from fabricd.paths.query import all_paths, paths_in

CPU = 'numaid="{0}" affinity="ff,000000ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="85"'
G4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'


def graph_of_xml(body):
    return graph_from_nccl(read(f'<system version="1">{body}</system>'))


def cpu(number, body, extra=""):
    return f"<cpu {CPU.format(number)} {extra}>{body}</cpu>"


def gpu(bus, rank, links="", *, pcie=G4, sm=80, extra=""):
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x030200" {pcie}>'
        f'<gpu dev="{rank}" sm="{sm}" rank="{rank}" gdr="1" {extra}>{links}</gpu></pci>'
    )


def nic(bus, dev, *, speed=100000, pcie=G4, gdr=1):
    return f'<pci busid="0000:{bus}:00.0" class="0x020700" {pcie}>{port(dev, speed=speed, gdr=gdr)}</pci>'


def port(dev, *, speed=100000, gdr=1):
    return f'<nic><net name="mlx5_{dev}" dev="{dev}" speed="{speed}" port="1" gdr="{gdr}"/></nic>'


def switch(bus, body, ids=""):
    return f'<pci busid="0000:{bus}:00.0" class="0x060400" {G4} {ids}>{body}</pci>'


def nvlink(bus, count=1, kind="0x030200"):
    return f'<nvlink target="0000:{bus}:00.0" count="{count}" tclass="{kind}"/>'


def links(graph, name):
    return {hop.dst: hop for hop in graph.edges_from(name)}


def problems(graph):
    return [f"{conflict.where}: {conflict.problem}" for conflict in graph.conflicts]


def test_gpus_by_rank_ports_by_index_and_line_rates():
    graph = graph_of_xml(cpu(0, switch("10", gpu("11", 0) + nic("12", 3))))
    assert [vertex.name for vertex in graph] == [
        "numa0", "0000:10:00.0", "gpu0", "0000:12:00.0", "net3"
    ]  # fmt: skip
    assert graph.find("MLX5_3").name == "net3"
    assert graph.find("0000:11:00.0").name == "gpu0"
    up = links(graph, "gpu0")["0000:10:00.0"]
    assert (up.bandwidth_bytes_per_second, up.evidence) == (31507692304.0, Evidence.REPORTED)
    assert links(graph, "net3")["0000:12:00.0"].bandwidth_bytes_per_second == 12.5e9
    (best, *_) = paths_in(graph, "gpu0", "net3").paths
    assert (best.type, best.gdr) == (PathType.PIX, True)


@pytest.mark.parametrize(
    ("speed", "width", "bandwidth"),
    [
        ("16.0 GT/s PCIe", "16", 31507692304.0),
        ("16 GT/s", "8", 15753846152.0),
        ("64.0 GT/s PCIe", "16", 121000000000.0),
        ("Unknown", "16", None),
        ("", "16", None),
        ("16.0 GT/s PCIe", "0", None),
        ("16.0 GT/s PCIe", "255", None),
    ],
)
def test_what_the_file_does_not_say_stays_unknown(speed, width, bandwidth):
    pcie = f'link_speed="{speed}" link_width="{width}"'
    graph = graph_of_xml(cpu(0, gpu("11", 0, pcie=pcie) + nic("12", 0, speed=0)))
    assert links(graph, "gpu0")["numa0"].bandwidth_bytes_per_second == bandwidth
    assert links(graph, "net0")["0000:12:00.0"].bandwidth_bytes_per_second is None


def test_nvlinks_between_gpus_to_switches_and_to_hidden_ones():
    hidden = '<nvlink target="fffffff:ffff:ff" count="6" tclass="0x068000"/>'
    graph = graph_of_xml(
        cpu(0, gpu("11", 0, nvlink("12", 2) + hidden) + gpu("12", 1, nvlink("11", 2) + nvlink("c0", 6, "0x068000")))
    )
    assert links(graph, "gpu0")["gpu1"].bandwidth_bytes_per_second == 50e9
    assert links(graph, "gpu0")["nvswitch"].bandwidth_bytes_per_second == 150e9
    assert links(graph, "nvswitch")["gpu1"].count == 6
    assert graph.conflicts == []


def test_ends_of_nvlinks_that_disagree_are_reported():
    graph = graph_of_xml(cpu(0, gpu("11", 0, nvlink("12", 2)) + gpu("12", 1, nvlink("11", 1)) + gpu("13", 2)))
    assert problems(graph) == [
        "gpu0: 2 NVLinks to gpu1 (5e+10 bytes/s), but 1 NVLink back (2.5e+10)",
        "gpu0 - gpu1: nvlink: 50000000000.0 bytes/s one way, 25000000000.0 back",
    ]
    assert paths_in(graph, "gpu1", "gpu0").paths[0].bandwidth_bytes_per_second == 31507692304.0  # PCIe is wider
    one_sided = graph_of_xml(cpu(0, gpu("11", 0, nvlink("12", 2)) + gpu("12", 1)))
    assert problems(one_sided) == ["gpu0: 2 NVLinks to gpu1, which has none back"]
    assert links(one_sided, "gpu1")["gpu0"].bandwidth_bytes_per_second == 50e9


def test_links_to_themselves_to_nothing_and_of_no_number_are_none():
    own, lost, none = nvlink("11"), nvlink("77"), nvlink("12", 0)
    graph = graph_of_xml(cpu(0, gpu("11", 0, own + lost + none) + gpu("12", 1)))
    assert links(graph, "gpu0").keys() == {"numa0"}


def test_ranks_that_share_a_gpu_and_partitions_of_one():
    two = '<gpu dev="0" sm="80" rank="0" gdr="1"/><gpu dev="0" sm="80" rank="1" gdr="1"/>'
    graph = graph_of_xml(cpu(0, f'<pci busid="0000:11:00.0" class="0x030200" {G4}>{two}</pci>'))
    assert graph.find("gpu1").name == "gpu0"
    parts = "".join(
        f'<gpu dev="0" sm="100" rank="{n}" gdr="1" mlopart="{n}"><c2c bw="50000" count="4"/></gpu>' for n in (0, 1)
    )
    graph = graph_of_xml(cpu(0, f'<pci busid="0000:11:00.0" class="0x030200" {G4}>{parts}</pci>'))
    assert links(graph, "gpu0")["gpu1"].link == LinkKind.LOCAL
    assert links(graph, "gpu1").keys() == {"gpu0", "numa0"}
    (best, *_) = paths_in(graph, "gpu0", "gpu1").paths
    assert best.type is PathType.LOC


def test_a_broadcom_switch_of_two_levels_is_one_crossbar():
    top = 'vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x0100"'
    sub = 'vendor="0x1000" device="0xc030" subsystem_vendor="0x1000" subsystem_device="0x1100"'
    body = switch("20", gpu("21", 0), sub) + switch("30", nic("31", 0), sub)
    graph = graph_of_xml(cpu(0, switch("10", body, top)))
    assert [vertex.name for vertex in graph.of_kind(VertexKind.PCI_SWITCH)] == ["0000:10:00.0"]
    assert paths_in(graph, "gpu0", "net0").paths[0].type is PathType.PIX
    upside_down = graph_of_xml(cpu(0, switch("10", gpu("21", 0) + switch("20", nic("31", 0), top), sub)))
    assert paths_in(upside_down, "gpu0", "net0").paths[0].type is PathType.PIX
    other = graph_of_xml(cpu(0, switch("10", body.replace("0xc030", "0xc040"), top)))
    assert paths_in(other, "gpu0", "net0").paths[0].type is PathType.PXB


def test_cards_without_a_pci_address_are_at_no_certain_numa_node():
    graph = graph_of_xml(cpu(0, gpu("11", 0) + port(0)) + cpu(1, port(1)))
    assert links(graph, "net1").keys() == links(graph, "net0").keys() == {"numa0", "numa1"}


def test_names_that_stand_twice():
    graph = graph_of_xml(cpu(0, nic("11", 0) + nic("12", 0)))
    assert {"net0", "net0#2"} <= {vertex.name for vertex in graph}
    assert problems(graph) == ["net0: two ports of one index"]


def test_two_hosts_in_a_file():
    hosts = "".join(
        cpu(0, gpu("11", rank, nvlink("c0", 18, "0x068000"), sm=90) + nic("12", 0), f'host_hash="0x{rank + 1}"')
        for rank in (0, 1)
    )
    graph = graph_of_xml(hosts)
    assert paths_in(graph, "gpu0", "gpu1").paths[0].type is PathType.NVL
    assert graph["host1/net0"].node == "host1"
    assert links(graph, "host1/numa0").keys() == {"gpu1", "host1/0000:12:00.0"}
    assert paths_in(graph, "numa0", "host1/numa0").paths == ()


def test_power_processors_have_nvlink_and_links_between_switches_are_there():
    body = switch("10", gpu("11", 0, nvlink("00", 3, "0x068001"), sm=70) + '<pcilink target="0000:20:00.0"/>')
    graph = graph_of_xml(cpu(0, body) + cpu(1, switch("20", nic("21", 0))))
    assert links(graph, "gpu0")["numa0"].link == LinkKind.NVLINK
    (best, *_) = paths_in(graph, "gpu0", "net0").paths
    assert (best.type, [hop.detail for hop in best.hops][1]) == (PathType.PXB, "between switches")


def test_a_bare_template_has_devices_by_address():
    body = '<pci busid="0000:11:00.0" class="0x030200"/><pci busid="0000:12:00.0" class="0x020000"/>'
    graph = graph_of_xml(cpu(0, switch("10", body + '<pci busid="0000:13:00.0"/>')))
    assert [vertex.name for vertex in graph.of_kind(VertexKind.GPU, VertexKind.ADAPTER)] == [
        "0000:11:00.0", "0000:12:00.0"
    ]  # fmt: skip


def test_all_paths_leave_out_ports_among_themselves():
    graph = graph_of_xml(cpu(0, gpu("11", 0) + gpu("12", 1) + nic("13", 0) + nic("14", 1)))
    found = all_paths(graph, ends_of(graph))
    assert sorted((path.src, path.dst) for path in found) == [
        (a, b) for a in ("gpu0", "gpu1", "net0", "net1") for b in ("gpu0", "gpu1", "net0", "net1")
        if a != b and not (a[:3] == b[:3] == "net")
    ]  # fmt: skip


def test_the_matrix_of_a_file():
    topology = read(
        f'<system version="1">{cpu(0, switch("10", gpu("11", 0, nvlink("12", 4)) + nic("13", 0)))}'
        f"{cpu(1, gpu('12', 1, nvlink('11', 4)))}</system>"
    )
    page = format_matrix(graph_matrix(graph_from_nccl(topology), affinities_of(topology)))
    assert page.splitlines()[:4] == [
        "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID",
        "GPU0\t X \tNV4\tPIX\t0-7,32-39\t0\t\tN/A",
        "GPU1\tNV4\t X \tSYS\t0-7,32-39\t1\t\tN/A",
        "NIC0\tPIX\tSYS\t X \t\t\t\t",
    ]
    assert "NIC0: mlx5_0" in page


SLOW = 'link_speed="2.5 GT/s PCIe" link_width="1"'
C2C = '<c2c bw="50000" count="4"/>'


@pytest.mark.parametrize(
    ("body", "src", "dst", "kind", "transport"),
    [
        (gpu("11", 0, nvlink("12", 4)) + gpu("12", 1, nvlink("11", 4)), "gpu0", "gpu1", "NVL", "nvlink"),
        (
            gpu("11", 0, nvlink("12"), pcie=SLOW)
            + gpu("12", 1, nvlink("11") + nvlink("13"))
            + gpu("13", 2, nvlink("12"), pcie=SLOW),
            "gpu0", "gpu2", "NVB", "nvlink",
        ),
        (
            gpu("11", 0, nvlink("12"), pcie=SLOW) + gpu("12", 1, nvlink("11")) + nic("13", 0),
            "gpu0", "net0", "PXN", "pcie",
        ),
        (gpu("11", 0, C2C, pcie=SLOW) + nic("13", 0), "gpu0", "net0", "P2C", "pcie"),
        (gpu("11", 0, C2C, pcie=SLOW), "gpu0", "numa0", "C2C", "c2c"),
        (gpu("11", 0, C2C, pcie=SLOW) + gpu("12", 1, C2C, pcie=SLOW), "gpu0", "gpu1", "C2C", "c2c"),
        (gpu("11", 0) + nic("13", 0), "gpu0", "net0", "PHB", "pcie"),
        (switch("10", gpu("11", 0) + nic("13", 0)), "gpu0", "net0", "PIX", "pcie"),
        (switch("10", gpu("11", 0) + switch("20", nic("13", 0))), "gpu0", "net0", "PXB", "pcie"),
    ],
)  # fmt: skip
def test_types_of_paths_in_nccls_words(body, src, dst, kind, transport):
    best = paths_in(graph_of_xml(cpu(0, body)), src, dst).paths[0]
    assert (best.type, best.transport) == (kind, transport)


def test_gpudirect_is_of_a_gpu_and_a_port_that_both_can():
    graph = graph_of_xml(cpu(0, gpu("11", 0) + gpu("12", 1) + nic("13", 0) + nic("14", 1, gdr=0)))
    ends = ("net0", True), ("net1", False), ("gpu1", None), ("numa0", None)
    assert [(dst, paths_in(graph, "gpu0", dst).paths[0].gdr) for dst, _ in ends] == list(ends)
