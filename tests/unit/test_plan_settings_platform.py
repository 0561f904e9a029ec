"""What some platforms need: host bridges that redirect, virtual machines, the clouds' cards and their plugins."""

from dataclasses import replace

from fabricd.model.device import Gpu, HcaPort
from fabricd.model.identity import Cpu, NodeIdentity
from fabricd.model.topology_file import TopologyFile
from fabricd.plan.settings import settings_for
from tests.support.composed import member
from tests.support.nodes import BRIDGE, GEN4, hca, ib_port, nic, node, nvlinks, pci
from tests.support.settings_told import nccl, told, with_nics


def test_gpudirect_through_an_amd_host_bridge_is_allowed():
    """GPUs and adapters below ports of one root each: NCCL's limit is a switch, and these processors pass it on."""
    zen = Cpu(vendor="AuthenticAMD", family=0x19, model=1, architecture="x86_64")

    def machine(name, host, cpu):
        devices = (
            pci("0000:01:00.0", root="pci0000:00", numa_node=0, link=GEN4, class_code=0x030200),
            pci("0000:02:00.0", root="pci0000:00", numa_node=0, link=GEN4, class_code=0x020700),
        )
        gpus = (Gpu(index=0, pci_address="0000:01:00.0", compute_capability=(8, 0), numa_node=0),)
        cards = (hca("mlx5_0", ib_port(lid=host), pci_address="0000:02:00.0", numa_node=0, dmabuf=True),)
        identity = NodeIdentity(node_id=f"id-{name}", name=name, cpu=cpu)
        made = node(name, node=identity, pci=devices, gpus=gpus, hcas=cards)
        return with_nics(made, nic("eth0", f"10.0.0.{host}/24"))

    found = settings_for({"a": machine("a", 1, zen), "b": machine("b", 2, zen)}, engines=["nccl"])
    level = next(one for one in found if one.name == "NCCL_NET_GDR_LEVEL")
    assert level.value == "PHB"
    assert "GPU:0 is PHB from NET:0, beyond P2C (the default)" in level.because
    old = replace(zen, vendor="GenuineIntel", family=6, model=0x4F)
    assert "NCCL_NET_GDR_LEVEL" not in nccl(machine("a", 1, zen), machine("b", 2, old))


def test_bridges_that_redirect_take_gpus_off_pcie():
    def below_a_switch(redirects):
        common = {"root": "pci0000:00", "numa_node": 0, "link": GEN4}
        devices = [
            pci("0000:00:01.0", class_code=BRIDGE, **common),
            pci("0000:01:00.0", parent="0000:00:01.0", class_code=BRIDGE, **common),
        ]
        gpus = []
        for index in range(2):
            port, own = f"0000:02:0{index}.0", f"0000:0{index + 3}:00.0"
            devices += [
                pci(port, parent="0000:01:00.0", class_code=BRIDGE, acs_redirects=redirects, **common),
                pci(own, parent=port, class_code=0x030200, **common),
            ]
            gpus.append(Gpu(index=index, pci_address=own))
        return node("a", pci=tuple(devices), gpus=tuple(gpus))

    found = settings_for({"a": below_a_switch(True)}, engines=["nccl"])
    assert [(one.name, one.value) for one in found] == [("NCCL_P2P_LEVEL", "NVL")]
    assert "0000:02:00.0 redirects" in found[0].because
    assert nccl(below_a_switch(False)) == {}
    linked = below_a_switch(True)
    assert nccl(replace(linked, gpus=tuple(replace(gpu, links=nvlinks(4)) for gpu in linked.gpus))) == {}, "by NVLink"
    guest = below_a_switch(True)
    assert nccl(replace(guest, node=replace(guest.node, virtualization="kvm"))) == {}, "a hypervisor needs it"


def test_a_virtual_machine_is_told_the_file_that_describes_it():
    xml = (
        '<system version="1"><cpu numaid="0"><pci busid="0000:10:00.0" class="0x060400">'
        '<pci busid="0001:00:00.0" class="0x030200"/><pci busid="0002:00:00.0" class="0x020700"/></pci></cpu></system>'
    )
    devices = (
        pci("0001:00:00.0", root="pci0001:00", class_code=0x030200),
        pci("0002:00:00.0", root="pci0002:00", class_code=0x020700),
    )
    made = node(
        "a",
        pci=devices,
        gpus=(Gpu(index=0, pci_address="0001:00:00.0"),),
        hcas=(hca("mlx5_0", ib_port(), pci_address="0002:00:00.0"),),
        topology_file=TopologyFile(path="/opt/topo.xml", text=xml),
    )
    guest = replace(made, node=replace(made.node, virtualization="microsoft"))
    assert nccl(guest) == {"NCCL_TOPO_FILE": "/opt/topo.xml"}
    assert nccl(made) == {}, "bare metal hides nothing"


def test_two_machines_of_azure_get_what_their_maker_recommends():
    """The image's topology file, and the InfiniBand adapters without the one that is the virtual machine's Ethernet."""
    found = nccl(*(member("azure-nd-h100-v5", name, number) for number, name in enumerate("ab")))
    assert found == {
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=" + ",".join(f"mlx5_ib{index}:1" for index in range(8)),
        "NCCL_TOPO_FILE": "/opt/microsoft/ndv5/topo.xml",
    }


def test_efa_and_slingshot_are_told_their_provider():
    def efa(name, host):
        port = HcaPort(port=1, state="active", link_layer="unspecified", rate_bytes_per_second=12_500_000_000)
        made = node(name, hcas=(hca("rdmap0", port, kind="efa"),))
        return with_nics(made, nic("ens32", f"10.0.0.{host}/24"))

    found = told(efa("a", 1), efa("b", 2))
    assert found == {"NCCL_NET": "AWS Libfabric", "GLOO_SOCKET_IFNAME": "ens32", "FI_PROVIDER": "efa"}

    def cray(name, host):
        return with_nics(
            node(name), nic("hsn0", f"10.0.0.{host}/16", driver="cxi_ss1", speed_bytes_per_second=25 * 10**9)
        )

    found = told(cray("a", 1), cray("b", 2))
    assert found["NCCL_NET"] == "AWS Libfabric"
    assert found["FI_PROVIDER"] == "cxi"


def test_googles_cards_beside_gpus_are_named_for_its_plugin():
    def a3(name, host):
        common = {"root": "pci0000:00", "numa_node": 0, "link": GEN4}
        devices = [pci("0000:00:01.0", class_code=BRIDGE, **common)]
        nics = [nic("eth0", f"10.0.0.{host}/24", driver="gve")]
        gpus = []
        for index in range(2):
            up, gpu, card = f"0000:{index + 1}0:00.0", f"0000:{index + 1}3:00.0", f"0000:{index + 1}4:00.0"
            devices += [
                pci(up, parent="0000:00:01.0", class_code=BRIDGE, **common),
                pci(gpu, parent=up, class_code=0x030200, **common),
                pci(card, parent=up, class_code=0x020000, **common),
            ]
            gpus.append(Gpu(index=index, pci_address=gpu))
            nics.append(nic(f"eth{index + 1}", f"10.{index + 1}.0.{host}/24", driver="gve", pci_address=card))
        return replace(with_nics(node(name), *nics), pci=tuple(devices), gpus=tuple(gpus))

    found = nccl(a3("a", 1), a3("b", 2))
    assert found["NCCL_FASTRAK_IFNAME"] == "eth1,eth2"
    assert found["NCCL_FASTRAK_CTRL_DEV"] == "eth0"
    assert found["NCCL_CROSS_NIC"] == "0"
