"""A host as NCCL's topology XML, and cloud templates completed with a host's facts."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.errors import InputError
from fabricd.graph.nccl_xml import Element, parse, render
from fabricd.graph.nccl_xml_host import cpu_mask
from fabricd.graph.nccl_xml_merge import document_of, merge_template, topology_of
from fabricd.graph.nccl_xml_read import read
from fabricd.model.device import (
    Gpu,
    Hca,
    HcaPort,
    InterfaceKind,
    IpAddress,
    NetInterface,
    NumaNode,
    NvLink,
    PciDevice,
    PcieLink,
)
from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.model.snapshot import Snapshot
from fabricd.paths.nccl.view import NcclView

GEN4 = PcieLink(max_speed_gts=16.0, max_width=16, speed_gts=2.5, width=8)


def pci(
    address: str, parent: str = "", *, numa: int | None = 0, kind: int = 0x060400, link: PcieLink = GEN4
) -> PciDevice:
    return PciDevice(
        address=address, parent=parent, root="pci0000:00", class_code=kind, vendor_id=0x10DE, numa_node=numa, link=link
    )


def host() -> Snapshot:
    """Two GPUs and a dual-port card below one switch; a second NUMA node without devices."""
    links = [NvLink(index=i, active=i < 3, peer_to_peer=True, remote_type="gpu") for i in range(4)]
    gpus = tuple(
        Gpu(
            index=index,
            pci_address=own,
            compute_capability=(8, 0),
            links=tuple(replace(link, remote_pci_address=other) for link in links),
        )
        for index, (own, other) in enumerate((("0000:13:00.0", "0000:14:00.0"), ("0000:14:00.0", "0000:13:00.0")))
    )
    devices = (
        pci("0000:10:00.0"),
        pci("0000:11:00.0", "0000:10:00.0"),
        *(pci(f"0000:12:0{i}.0", "0000:11:00.0") for i in range(3)),
        pci("0000:13:00.0", "0000:12:00.0", kind=0x030200),
        pci("0000:14:00.0", "0000:12:01.0", kind=0x030200, link=PcieLink(max_speed_gts=32.0, max_width=16)),
        pci("0000:15:00.0", "0000:12:02.0", kind=0x020000),
        pci("0000:15:00.1", "0000:12:02.0", kind=0x020000),
    )
    hcas = tuple(
        Hca(
            name=f"mlx5_{port}",
            kind="roce",
            node_guid=f"0000:0000:0000:002{port}",
            pci_address=f"0000:15:00.{port}",
            ports=(HcaPort(port=1, state="active", rate_bytes_per_second=25_000_000_000),),
            peer_memory=True,
            max_qp=128,
        )
        for port in range(2)
    )
    return Snapshot(
        node=NodeIdentity(
            node_id="n", name="n", cpu=Cpu(vendor="AuthenticAMD", family=25, model=1, architecture="x86_64")
        ),
        numa=(NumaNode(index=0, cpus=tuple(range(24))), NumaNode(index=1, cpus=tuple(range(24, 48)))),
        pci=devices,
        gpus=gpus,
        hcas=hcas,
    )


HOST_TEXT = """\
<system version="1">
  <cpu numaid="0" affinity="0000,00ffffff" arch="x86_64" vendor="AuthenticAMD" familyid="175" modelid="1">
    <pci busid="0000:11:00.0" class="0x060400" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:13:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0">
          <nvlink target="0000:14:00.0" count="3" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:14:00.0" class="0x030200" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="1" sm="80" rank="1">
          <nvlink target="0000:13:00.0" count="3" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:15:00.0" class="0x020000" vendor="0x10de" link_speed="16.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="0" latency="0" speed="200000" port="1" guid="0x20" maxconn="128" gdr="1"/>
          <net name="mlx5_1" dev="1" latency="0" speed="200000" port="1" guid="0x21" maxconn="128" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
</system>
"""


def test_a_host_as_nccl_writes_it() -> None:
    """The highest speeds count, of a device and the port above; a switch counts once; ports share their card."""
    assert render(document_of(host())) == HOST_TEXT


def test_nccl_computes_paths_from_it() -> None:
    view = NcclView(topology_of(host()))
    found = {(path.src, path.dst): path for path in view.paths()}
    assert found["gpu0", "gpu1"].type.value == "NVL"
    assert found["gpu0", "gpu1"].bandwidth_bytes_per_second == 60e9
    assert (found["gpu0", "net1"].type.value, found["gpu0", "net1"].gdr) == ("PIX", True)


def test_a_template_gives_structure_and_the_host_facts() -> None:
    """As on cloud machines: the guest shows every device below a CPU; the template knows the switch."""
    flat = replace(
        host(), pci=tuple(replace(d, parent="", numa_node=None) for d in host().pci if d.class_code != 0x060400)
    )
    bare = NcclView(read(render(document_of(flat))))
    assert bare.path(bare.find("gpu0"), bare.find("net0")).type.value == "PHB"
    template = parse("""
        <system version="1">
          <cpu numaid="1" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
            <pci busid="ffff:ff:01.0" class="0x060400" link_speed="8 GT/s" link_width="16">
              <pci busid="0000:13:00.0" link_speed="8 GT/s" link_width="16"/>
              <pci busid="0000:15:00.0"/>
              <pci busid="0000:99:00.0" class="0x030200"/>
            </pci>
          </cpu>
        </system>""").root
    merged = merge_template(template, flat)
    assert merged.matched == ("0000:13:00.0", "0000:15:00.0")
    assert merged.added == ("0000:14:00.0",)
    assert merged.absent == ("0000:99:00.0",)
    topology = read(render(merged.root))
    placed = {device.busid: device for device in topology.cpus[0].devices()}
    assert placed["0000:13:00.0"].link_speed == "8 GT/s"
    assert placed["0000:15:00.0"].link_speed == "16.0 GT/s PCIe"
    assert [(cpu.numaid, cpu.vendor, cpu.affinity) for cpu in topology.cpus] == [
        (1, "GenuineIntel", "ffff,ff000000"),
        (0, "AuthenticAMD", "0000,00ffffff"),
    ]
    view = NcclView(topology)
    assert view.path(view.find("gpu0"), view.find("net0")).type.value == "PIX"


def test_what_a_complete_file_says_stays() -> None:
    root = parse(HOST_TEXT.replace('speed="200000"', 'speed="100000"').replace('count="3"', 'count="2"')).root
    merged = merge_template(root, host())
    assert merged.root == root
    assert merged.added == ()


def test_ranks_may_be_given() -> None:
    topology = read(render(document_of(host(), ranks={0: 5, 1: 4})))
    assert [gpu.rank for device in topology.cpus[0].devices() for gpu in device.gpus] == [5, 4]


def test_sockets_where_no_rdma_port_is_up() -> None:
    def interface(name: str, kind: InterfaceKind, **rest) -> NetInterface:
        address = (IpAddress(address="10.0.0.1", prefix_length=24, family=4),)
        return NetInterface(name=name, index=1, kind=kind, admin_up=True, carrier=True, addresses=address, **rest)

    down = tuple(replace(hca, ports=(replace(hca.ports[0], state="down"),)) for hca in host().hcas)
    interfaces = (
        interface("lo", InterfaceKind.LOOPBACK),
        interface("docker0", InterfaceKind.BRIDGE),
        interface("ens1", InterfaceKind.PHYSICAL, pci_address="0000:15:00.0", speed_bytes_per_second=3_125_000_000),
        interface("veth1", InterfaceKind.VETH),
    )
    topology = read(render(document_of(replace(host(), hcas=down, interfaces=interfaces))))
    nets = {
        net.name: (device.busid if device else None, net) for nic, device in topology.cpus[0].nics() for net in nic.nets
    }
    assert {name: place for name, (place, _) in nets.items()} == {"ens1": "0000:15:00.0", "veth1": None}
    assert nets["ens1"][1].megabits_per_second == 25_000
    assert nets["veth1"][1].megabits_per_second == 10_000


def test_nvlinks_without_a_way_back_are_left_out() -> None:
    """NCCL fails on them; a GPU in MIG mode has no links in use."""
    one, other = host().gpus
    snapshot = replace(host(), gpus=(one, replace(other, links=())))
    assert "nvlink" not in render(document_of(snapshot))
    NcclView(read(render(document_of(snapshot))))


def test_unknown_speed_is_written_as_nccl_finds_it() -> None:
    bare = replace(host(), pci=tuple(replace(device, link=PcieLink()) for device in host().pci))
    assert 'link_speed="" link_width="0"' in render(document_of(bare))


def test_rings_and_endless_chains_of_bridges_do_no_harm() -> None:
    """A peer's snapshot may claim anything."""
    ring = (
        pci("0000:13:00.0", "0000:20:00.0"),
        pci("0000:20:00.0", "0000:13:00.0"),
        pci("0000:14:00.0", "0000:14:00.0"),
    )
    assert {d.busid for d in read(render(document_of(replace(host(), pci=ring)))).cpus[0].devices()} >= {"0000:13:00.0"}
    chain = [
        pci("0000:13:00.0", "0000:20:00.0"),
        *(pci(f"{i:04x}:20:00.0", f"{i + 1:04x}:20:00.0") for i in range(500)),
    ]
    read(render(document_of(replace(host(), pci=tuple(chain)))))


def test_an_empty_host() -> None:
    empty = Snapshot(node=NodeIdentity(node_id="n", name="n"))
    assert render(document_of(empty)) == '<system version="1"/>\n'
    assert NcclView(read(render(document_of(empty)))).paths() == []


def test_no_topology_is_no_template() -> None:
    with pytest.raises(InputError, match="<graphs> is not a topology"):
        merge_template(Element("graphs"), host())


@pytest.mark.parametrize(
    ("cpus", "count", "mask"),
    [
        ((), 0, "0"),
        ((0,), 1, "1"),
        ((0, 1, 2, 3), 4, "f"),
        (range(32), 32, "ffffffff"),
        (range(32, 64), 64, "ffffffff,00000000"),
        ((0,), 48, "0000,00000001"),
        ((95,), 96, "80000000,00000000,00000000"),
        ((33,), 4, "2,00000000"),
    ],
)
def test_cpu_masks_as_the_kernel_prints_them(cpus, count: int, mask: str) -> None:
    assert cpu_mask(cpus, count) == mask


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["aws_p4d-24xl-topo", "azure_ndv4-topo", "azure_ndv2-topo", "aws_g5.48xl-topo"])
def test_published_templates_match_by_address(name: str) -> None:
    """A made-up guest with the addresses of a vendor's template: every GPU and card finds its place."""
    text = (Path(os.environ["FABRICD_CORPUS"]) / f"topologies/public/nccl_xml/{name}.xml").read_text()
    topology = read(text)
    devices = [device for cpu in topology.cpus for device in cpu.devices() if not device.children]
    cards = [device for device in devices if (device.device_class or "").startswith("0x02")]
    gpus = [device for device in devices if device not in cards]
    flat = Snapshot(
        node=host().node,
        pci=tuple(
            PciDevice(address=device.busid, class_code=0x020000 if device in cards else 0x030200) for device in devices
        ),
        gpus=tuple(
            Gpu(index=index, pci_address=device.busid, compute_capability=(8, 0)) for index, device in enumerate(gpus)
        ),
        hcas=tuple(replace(host().hcas[0], name=f"hca{i}", pci_address=device.busid) for i, device in enumerate(cards)),
    )
    merged = merge_template(parse(text).root, flat)
    assert set(merged.matched) == {device.busid for device in devices}
    assert (merged.added, merged.absent) == ((), ())
    view = NcclView(read(render(merged.root)))
    assert len(view.names()) == len(gpus) + len(cards)
