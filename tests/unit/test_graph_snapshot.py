"""A snapshot becomes a graph: what hangs where, at which speed, and what the sources do not agree on."""

from dataclasses import replace

import pytest

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.networks import find_networks
from fabricd.graph.snapshot import graph_of
from fabricd.graph.snapshot_pci import pcie_figure
from fabricd.model.device import Gpu, InterfaceKind, NumaNode, PcieLink
from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.model.observation import Evidence
from tests.support.nodes import BRIDGE, GEN4, GEN5, hca, hgx, ib_port, mapping, nic, node, nvl_tray, nvlinks, pci


def links(graph, name):
    return {hop.dst: hop for hop in graph.edges_from(name)}


def problems(graph):
    return [f"{conflict.where}: {conflict.problem}" for conflict in graph.conflicts]


def test_a_machine_of_eight_gpus_has_no_conflicts_and_every_link_both_ways():
    graph = graph_of(hgx())
    assert graph.conflicts == []
    assert len(graph.of_kind(VertexKind.GPU)) == 8
    assert len(graph.of_kind(VertexKind.PCI_SWITCH)) == 8
    assert len(graph.of_kind(VertexKind.NVSWITCH)) == 1
    there = {(hop.src, hop.dst, hop.link, hop.bandwidth_bytes_per_second) for hop in graph.edges()}
    assert there == {(dst, src, link, bandwidth) for src, dst, link, bandwidth in there}


def test_a_switch_is_its_upstream_port_and_the_root_port_is_none():
    graph = graph_of(hgx())
    assert links(graph, "a/gpu0").keys() == {"a/nvswitch", "a/0000:01:00.0"}
    up = links(graph, "a/0000:01:00.0")["a/pci0000:00"]
    assert up.detail == "32 GT/s x16"
    assert up.evidence is Evidence.REPORTED
    assert links(graph, "a/pci0000:00")["a/numa0"].link == LinkKind.MEMORY


def test_two_levels_of_switches_are_two_vertices():
    chain = ["01:00.0", "02:00.0", "03:00.0", "04:00.0", "05:00.0"]
    devices = [pci("0000:00:01.0", class_code=BRIDGE, link=GEN4)]
    for below in chain:
        devices.append(pci(f"0000:{below}", parent=devices[-1].address, class_code=BRIDGE, link=GEN4, numa_node=0))
    graph = graph_of(node(pci=tuple(devices), interfaces=(nic("eth0", pci_address="0000:05:00.0"),)))
    assert [vertex.local_name for vertex in graph.of_kind(VertexKind.PCI_SWITCH)] == ["0000:03:00.0", "0000:01:00.0"]
    assert "a/0000:03:00.0" in links(graph, "a/0000:05:00.0")


def test_functions_of_a_card_and_its_virtual_functions_share_one_link():
    devices = (
        pci("0000:17:00.0", link=GEN5, numa_node=0),
        pci("0000:17:00.1", link=GEN5, numa_node=0),
        pci("0000:17:02.3", physical_function="0000:17:00.1", numa_node=0),
    )
    interfaces = tuple(
        nic(f"eth{number}", pci_address=device.address, speed_bytes_per_second=25 * 10**9)
        for number, device in enumerate(devices)
    )
    graph = graph_of(node(pci=devices, interfaces=interfaces))
    assert [vertex.name for vertex in graph.of_kind(VertexKind.ADAPTER)] == ["a/0000:17:00.0"]
    assert {f"a/eth{number}" for number in range(3)} <= links(graph, "a/0000:17:00.0").keys()
    assert graph.find("0000:17:02.3", node="a").name == "a/0000:17:00.0"


@pytest.mark.parametrize(
    ("link", "port", "sleeps", "bandwidth", "text"),
    [
        (GEN4, GEN4, False, 31507692304.0, "16 GT/s x16"),
        (PcieLink(), GEN4, False, 31507692304.0, "16 GT/s x16"),  # the lower end says nothing
        (PcieLink(), PcieLink(), False, None, "no PCIe link reported"),  # virtio
        (replace(GEN5, width=8), GEN5, False, 31507692304.0, "32 GT/s x8, both ends could do 32 GT/s x16"),
        (replace(GEN5, speed_gts=2.5), GEN5, True, 63015384608.0, "32 GT/s x16 (2.5 GT/s while idle)"),
        (replace(GEN5, speed_gts=16.0), GEN5, False, 31507692304.0, "16 GT/s x16, both ends could do 32 GT/s x16"),
        (GEN5, replace(GEN4, width=16), True, 31507692304.0, "16 GT/s x16"),  # the port above is of Gen4
        (PcieLink(speed_gts=7.0, width=16), PcieLink(), False, None, "7 GT/s x16, which PCIe does not have"),
        (PcieLink(speed_gts=16.0, width=64), PcieLink(), False, None, "16 GT/s x64, which PCIe does not have"),
        (PcieLink(speed_gts=-1.0, width=-4), PcieLink(), False, None, "-1 GT/s x-4, which PCIe does not have"),
    ],
)
def test_a_pcie_link_carries_what_it_is_now(link, port, sleeps, bandwidth, text):
    assert pcie_figure(link, port, sleeps=sleeps) == (bandwidth, text)


def test_an_unknown_numa_node_stays_unknown():
    devices = (pci("0000:00:03.0"),)
    two = (NumaNode(index=0, cpus=(0,)), NumaNode(index=1, cpus=(1,)))
    graph = graph_of(node(numa=two, pci=devices, interfaces=(nic("eth0", pci_address="0000:00:03.0"),)))
    to_memory = links(graph, "a/pci0000:00")
    assert to_memory.keys() == {"a/0000:00:03.0", "a/machine"}
    assert to_memory["a/machine"].evidence is Evidence.ASSUMED
    # From there to a NUMA node it may cross the interconnect, so no more than that can be counted on.
    assert links(graph, "a/machine")["a/numa1"].bandwidth_bytes_per_second == 10e9


@pytest.mark.parametrize(
    ("cpu", "bandwidth"),
    [
        (Cpu(architecture="ppc64le", vendor="IBM"), 32e9),
        (Cpu(architecture="aarch64", vendor="ARM"), 6e9),
        (Cpu(architecture="x86_64", vendor="AuthenticAMD", family=25, model=17), 16e9),
        (Cpu(architecture="x86_64", vendor="GenuineIntel", family=6, model=0xCF), 40e9),
        (Cpu(architecture="x86_64", vendor="GenuineIntel", family=6, model=0x8F), 22e9),
        (Cpu(architecture="x86_64", vendor="GenuineIntel", family=6, model=0x6A), 10e9),
        (Cpu(architecture="x86_64", vendor="GenuineIntel", family=6, model=0x4F), 6e9),
        (Cpu(architecture="x86_64", vendor="CentaurHauls", family=7, model=0x5B), 9e9),
        (Cpu(), None),
    ],
)
def test_the_interconnect_is_nominal_for_the_processor_and_assumed(cpu, bandwidth):
    two = (NumaNode(index=0, cpus=(0,)), NumaNode(index=1, cpus=(1,)))
    graph = graph_of(node(numa=two, node=NodeIdentity(node_id="id-a", name="a", cpu=cpu)))
    hop = links(graph, "a/numa0")["a/numa1"]
    assert (hop.bandwidth_bytes_per_second, hop.evidence) == (bandwidth, Evidence.ASSUMED)


def test_nvlinks_between_two_gpus_are_one_edge_of_their_sum():
    addresses = ("0000:01:00.0", "0000:02:00.0")
    devices = tuple(pci(address, numa_node=0, link=GEN4) for address in addresses)
    gpus = tuple(
        Gpu(index=index, pci_address=addresses[index], links=nvlinks(4, to=addresses[1 - index])) for index in (0, 1)
    )
    graph = graph_of(node(pci=devices, gpus=gpus))
    hop = links(graph, "a/gpu0")["a/gpu1"]
    assert (hop.bandwidth_bytes_per_second, hop.detail) == (100e9, "4 NVLinks")
    assert graph.conflicts == []

    broken = replace(gpus[1], links=(*gpus[1].links[:3], replace(gpus[1].links[3], active=False)))
    graph = graph_of(node(pci=devices, gpus=(gpus[0], broken)))
    hop = links(graph, "a/gpu0")["a/gpu1"]
    assert (hop.bandwidth_bytes_per_second, hop.detail) == (75e9, "3 of 4 NVLinks")
    assert problems(graph) == ["a/gpu0: 4 NVLinks to a/gpu1 (1e+11 bytes/s), but 3 of 4 NVLinks back (7.5e+10)"]

    silent = replace(gpus[1], links=())
    graph = graph_of(node(pci=devices, gpus=(gpus[0], silent)))
    assert "a/gpu1" not in links(graph, "a/gpu0")
    assert problems(graph) == ["a/gpu0: 4 NVLinks to a/gpu1, which reports none back"]


def test_a_link_without_a_speed_is_nominal_for_its_version_and_assumed():
    silent = tuple(replace(link, speed_bytes_per_second=None, version=5) for link in nvlinks(18))
    graph = graph_of(node(gpus=(Gpu(index=0, links=silent),)))
    hop = links(graph, "a/gpu0")["a/nvswitch"]
    assert (hop.bandwidth_bytes_per_second, hop.evidence) == (900e9, Evidence.ASSUMED)


def test_c2c_leads_to_the_gpus_own_numa_node_and_gpu_memory_is_no_way_through():
    tray = nvl_tray(0)
    own_memory = replace(tray.gpus[0], memory_numa_node=2)
    tray = replace(tray, gpus=(own_memory, *tray.gpus[1:]), numa=(*tray.numa, NumaNode(index=2)))
    graph = graph_of(tray)
    assert links(graph, "tray0/gpu3")["tray0/numa1"].bandwidth_bytes_per_second == 450e9
    assert "tray0/numa2" not in graph


def test_sources_that_disagree_are_reported_and_nothing_is_averaged():
    devices = (
        pci("0000:00:01.0", class_code=BRIDGE, link=replace(GEN4, width=8)),
        pci("0000:17:00.0", parent="0000:00:01.0", link=GEN4, numa_node=0),
        pci("0000:18:00.0", link=GEN4, numa_node=1),
    )
    gpu = Gpu(index=0, pci_address="0000:18:00.0", pcie=replace(GEN4, width=4), numa_node=1)
    interfaces = (
        nic("eth0", pci_address="0000:17:00.0", numa_node=1, speed_bytes_per_second=10**9),
        nic("vlan7", kind=InterfaceKind.VLAN, parent="eth0", vlan_id=7, speed_bytes_per_second=2 * 10**9),
    )
    two = (NumaNode(index=0, cpus=(0,)), NumaNode(index=1, cpus=(1,)))
    graph = graph_of(node(numa=two, pci=devices, gpus=(gpu,), interfaces=interfaces))
    assert problems(graph) == [
        "a/0000:17:00.0: NUMA node 0 by PCI, 1 by its driver",
        "a/pci0000:00: its devices say different NUMA nodes: 0 (0000:17:00.0), 1 (0000:18:00.0)",
        "a/0000:17:00.0: PCIe width x16 by the device, x8 by the port above (0000:00:01.0)",
        "a/0000:18:00.0: PCIe width x16 by the kernel, x4 by NVML",
        "a/vlan7: says 2000000000 bytes/s, but what it stands on has 1000000000",
    ]
    assert links(graph, "a/vlan7")["a/0000:17:00.0"].bandwidth_bytes_per_second == 10**9


def test_stacked_interfaces_hang_on_the_cards_that_carry_them():
    devices = (pci("0000:17:00.0", link=GEN4, numa_node=0), pci("0000:18:00.0", link=GEN4, numa_node=0))
    interfaces = (
        nic("eth0", pci_address="0000:17:00.0", controller="bond0", speed_bytes_per_second=10**9),
        nic("eth1", pci_address="0000:18:00.0", controller="bond0", speed_bytes_per_second=10**9),
        nic("bond0", kind=InterfaceKind.BOND, members=("eth0", "eth1"), speed_bytes_per_second=2 * 10**9),
        nic("bond0.5", kind=InterfaceKind.VLAN, parent="bond0", vlan_id=5),
    )
    graph = graph_of(node(pci=devices, interfaces=interfaces))
    assert links(graph, "a/bond0.5").keys() == {"a/0000:17:00.0", "a/0000:18:00.0"}
    assert links(graph, "a/bond0")["a/0000:18:00.0"].detail == "bond on eth1"
    assert graph.conflicts == []
    assert not graph["a/bond0.5"].virtual


def test_virtual_interfaces_hang_on_the_machine_and_are_marked():
    graph = graph_of(node(interfaces=(nic("v0", kind=InterfaceKind.VETH), nic("t0", kind=InterfaceKind.TUN))))
    assert graph["a/v0"].virtual
    assert links(graph, "a/t0").keys() == {"a/machine"}


def test_hostile_snapshots_neither_hang_nor_vanish_silently():
    ring = (
        pci("0000:01:00.0", parent="0000:02:00.0", class_code=BRIDGE),
        pci("0000:02:00.0", parent="0000:01:00.0", class_code=BRIDGE),
        pci("0000:03:00.0", parent="0000:01:00.0"),
        pci("0000:04:00.0", parent="0000:99:00.0"),
    )
    interfaces = (
        nic("eth0", pci_address="0000:03:00.0"),
        nic("eth1", pci_address="0000:04:00.0"),
        nic("loop1", kind=InterfaceKind.VLAN, parent="loop2"),
        nic("loop2", kind=InterfaceKind.VLAN, parent="loop1"),
        nic("numa0"),
        nic("lost", pci_address="ffff:ff:ff.7"),
    )
    graph = graph_of(node(pci=ring, interfaces=interfaces))
    assert "a/0000:03:00.0: PCI: its parents form a ring, or are more than PCI has buses" in problems(graph)
    assert "a/0000:04:00.0: PCI: parent 0000:99:00.0 of 0000:04:00.0 is not listed" in problems(graph)
    assert "a/numa0: two devices of one name" in problems(graph)
    assert "a/pci0000:00" in links(graph, "a/0000:03:00.0")
    assert links(graph, "a/lost").keys() == {"a/machine"}
    with pytest.raises(InputError, match="129 NUMA nodes"):
        graph_of(node(numa=tuple(NumaNode(index=index) for index in range(129))))


def test_gpus_and_ports_without_a_pci_probe_are_there_all_the_same():
    graph = graph_of(
        node(gpus=(Gpu(index=3, uuid="GPU-X", pci_address="0000:01:00.0"),), hcas=(hca("mlx5_0", ib_port()),))
    )
    assert graph.find("gpu-x", node="a").name == "a/gpu3"
    assert graph.find("MLX5_0", node="a").name == "a/mlx5_0:1"
    with pytest.raises(UnknownNameError, match=r"no device on a called 'gpu9'.*known: gpu3, mlx5_0:1, numa0"):
        graph.find("gpu9", node="a")


def test_a_graph_takes_no_link_that_cannot_be():
    graph = Graph()
    for name in ("x", "y"):
        graph.add(Vertex(name=name, kind=VertexKind.GPU))
    with pytest.raises(InputError, match="no vertex 'z'"):
        graph.connect("x", "z", LinkKind.PCIE)
    with pytest.raises(InputError, match="to itself"):
        graph.connect("x", "x", LinkKind.PCIE)
    for bandwidth in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(InputError, match="cannot be"):
            graph.connect("x", "y", LinkKind.PCIE, bandwidth=bandwidth)
    assert [conflict.problem for conflict in graph.faults()] == ["linked to nothing"] * 2
    graph.connect("x", "y", LinkKind.NVLINK, bandwidth=1.0)
    graph.add_edge(replace(next(graph.edges()), bandwidth_bytes_per_second=2.0))
    assert [conflict.problem for conflict in graph.faults()] == ["nvlink: 3.0 bytes/s one way, 1.0 back"]


@pytest.mark.timeout(30)
def test_the_work_is_bounded_whatever_a_snapshot_claims():
    chain = [pci("0000:00:00.0")]
    for number in range(1, 5000):
        chain.append(pci(f"{number:04x}:00:00.0", parent=chain[-1].address))
    ends = tuple(nic(f"e{number}", pci_address=device.address) for number, device in enumerate(chain[-300:]))
    assert any(
        "more than PCI has buses" in problem for problem in problems(graph_of(node(pci=tuple(chain), interfaces=ends)))
    )

    names = tuple(f"b{number}" for number in range(400))
    maze = tuple(nic(name, kind=InterfaceKind.BOND, members=names, parent="b7") for name in names)
    assert len(graph_of(node(interfaces=maze))) == 403

    many = tuple(nic(f"e{number}", f"10.{number // 250}.{number % 250}.1/24") for number in range(4000))
    assert len(find_networks(mapping(node(interfaces=many))).networks) == 4000


def test_a_port_faster_than_its_cards_link_is_reported():
    """And its paths carry what the link does."""
    slow = PcieLink(speed_gts=8.0, width=4, max_speed_gts=32.0, max_width=16)
    card = hca("mlx5_0", ib_port(rate=50 * 10**9), pci_address="0000:05:00.0")
    graph = graph_of(node(pci=(pci("0000:05:00.0", link=slow),), hcas=(card,)))
    (fault,) = graph.faults()
    assert fault.where == "a/mlx5_0:1"
    assert fault.problem.startswith(
        "50 GB/s, but the card's PCIe link carries 3.94 GB/s (8 GT/s x4, both ends could do"
    )
    assert graph_of(hgx()).conflicts == []
