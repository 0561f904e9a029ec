"""Every source of a capture holds things that identify a machine; none of them is left, and all still fit together."""

import re

import pytest

from fabricd.capture import Capture, Recording, finished, redacted, to_text
from fabricd.model.codec import to_json
from fabricd.model.device import Gid, Gpu, Hca, HcaPort, LldpNeighbor, MigInstance, NvlinkFabric
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.network import NetworkRule
from fabricd.model.placement import Position
from fabricd.model.topology_file import TopologyFile
from fabricd.probe.host import HostAnswer
from fabricd.probe.ibfabric import IbFabricAnswer
from fabricd.probe.instance import InstanceAnswer
from fabricd.probe.lldp import LldpAnswer
from fabricd.probe.netlink_dump import AddressFacts, DriverFacts, LinkFacts, NetlinkDump
from fabricd.probe.netlink_routes import RouteFacts, RuleFacts
from fabricd.probe.nvml import NvmlAnswer
from fabricd.probe.placement import PlacementAnswer
from fabricd.probe.site import SiteAnswer
from fabricd.probe.topology_file import TopologyFileAnswer
from fabricd.probe.tree import Link
from fabricd.probe.verbs import VerbsAnswer
from fabricd.readable import lean
from tests.support.nodes import node

HOST, FQDN, USER = "payroll-17", "payroll-17.corp.example", "bsmith"
MACHINE_ID, BOOT, DMI = "0123456789abcdef0123456789abcdef", "11111111-2222-3333-4444-555555555555", "9b8a7c6d-0000-1111"
MAC, BARE_MAC, GUID = "b8:ce:f6:aa:bb:cc", "b8cef6aabbcc", "b8ce:f603:00aa:bbcc"
V4, V6, TUNNEL = "10.20.30.40", "2001:4860:1:2:3:4:5:6", "0a:14:1e:29"
GPU, MIG, DOMAIN = (
    f"{kind}{digit * 8}-bbbb-cccc-dddd-eeeeeeeeeeee" for kind, digit in (("GPU-", "a"), ("MIG-", "c"), ("", "d"))
)
LEAF, RACK, INSTANCE, SERIAL = "leaf-b12.corp", "row7-rack3", "i-0abc123def4567890", "1652923007715"
SECRETS = (
    HOST, "corp.example", USER, MACHINE_ID, BOOT, DMI[:8], MAC, BARE_MAC, GUID, "00aa:bbcc", V4, V6, TUNNEL,
    "10.20.30.41", GPU, MIG, DOMAIN, LEAF, RACK, INSTANCE, SERIAL, "room 4, payroll", "3ae6d94",
    "b8cef60300aabbcc", "pay-net",
)  # fmt: skip
NIC = "sys/devices/pci0000:16/0000:17:00.0"


def recording() -> Recording:
    """A machine with something to hide in every source."""
    entries = {
        "etc/machine-id": f"{MACHINE_ID}\n".encode(),
        "etc/hostname": f"{FQDN}\n".encode(),
        "proc/sys/kernel/hostname": f"{HOST}\n".encode(),
        "proc/sys/kernel/random/boot_id": f"{BOOT}\n".encode(),
        "proc/sys/kernel/osrelease": b"6.1.0.9\n",
        "proc/cpuinfo": f"processor\t: 0\nflags\t: fpu\nSerial\t\t: {SERIAL}\n".encode(),
        "sys/class/dmi/id/product_uuid": f"{DMI}\n".encode(),
        "sys/class/dmi/id/board_serial": f"{SERIAL}\n".encode(),
        f"sys/class/net/enx{BARE_MAC}": Link(f"../../../{NIC}/net/enx{BARE_MAC}"),
        "sys/bus/pci/devices/0000:17:00.0": Link(f"../../../../{NIC}"),
        f"{NIC}/class": b"0x020000\n",
        f"{NIC}/subsystem": Link("../../../bus/pci"),
        f"{NIC}/net/enx{BARE_MAC}/address": f"{MAC}\n".encode(),
        f"{NIC}/net/enx{BARE_MAC}/ifindex": b"2\n",
        f"{NIC}/net/enx{BARE_MAC}/device": Link("../../../0000:17:00.0"),
        f"{NIC}/net/enx{BARE_MAC}/bonding_slave/perm_hwaddr": f"{MAC}\n".encode(),
        "sys/class/infiniband/rocexb8cef60300aabbcc": Link(f"../../../{NIC}/infiniband/rocexb8cef60300aabbcc"),
        f"{NIC}/infiniband/rocexb8cef60300aabbcc/node_guid": f"{GUID}\n".encode(),
        f"{NIC}/infiniband/rocexb8cef60300aabbcc/device": Link("../../../0000:17:00.0"),
        f"{NIC}/infiniband/rocexb8cef60300aabbcc/fw_ver": b"28.39.10.02\n",
        f"{NIC}/infiniband/rocexb8cef60300aabbcc/ports/1/link_layer": b"InfiniBand\n",
        f"{NIC}/infiniband/rocexb8cef60300aabbcc/ports/1/gids/0": f"fe80:0000:0000:0000:{GUID}\n".encode(),
        f"{NIC}/infiniband/rocexb8cef60300aabbcc/ports/1/gids/1": b"0000:0000:0000:0000:0000:ffff:0a14:1e28\n",
    }
    return Recording(entries=entries, answers={name: to_json(lean(one)) for name, one in answers().items()})


def answers() -> dict[str, object]:
    gpu = Gpu(
        index=0, uuid=GPU, pci_address="0000:65:00.0", mig=(MigInstance(uuid=MIG),), notes=(f"{GPU}: odd",),
        fabric=NvlinkFabric(cluster_uuid=DOMAIN),
    )  # fmt: skip
    switch = IbSwitch(guid=GUID, name=LEAF, system_guid=GUID, links=(IbLink(port=1, peer=GUID, peer_port=1),))
    place = Position(
        source="slurm", origin=f"/home/{USER}/topology.conf", switches=(LEAF, "sp"), rack=RACK, nvlink_domain=DOMAIN
    )
    port = HcaPort(port=1, gids=(Gid(index=0, gid=f"fe80:0000:0000:0000:{GUID}", type="ib"),))
    return {
        "host.json": HostAnswer(hostname=FQDN, architecture="x86_64"),
        "netlink.json": NetlinkDump(
            links=(
                LinkFacts(index=2, name=f"enx{BARE_MAC}", mac=MAC, oper_state="up"),
                LinkFacts(index=3, name="tun1", kind="ipip", mac=TUNNEL, port_name=f"enx{BARE_MAC}.7"),
            ),
            addresses=(
                AddressFacts(index=2, address=V4, prefix_length=24),
                AddressFacts(index=2, address=V6, prefix_length=64),
                AddressFacts(index=3, address="10.20.30.41", prefix_length=32),
            ),
            routes=(
                RouteFacts(destination="10.20.30.0/24", family=4, index=2, gateway=V4),
                RouteFacts(destination="10.20.30.0/24", family=4, index=2, gateway=V4, table=101),
            ),
            rules=(RuleFacts(source=f"{V4}/32", family=4, table=101, priority=9),),
            drivers=(DriverFacts(interface=f"enx{BARE_MAC}", firmware="28.39.10.02"),),
            notes=(f"enx{BARE_MAC}: {V6}: gone from {HOST}",),
        ),
        "nvml.json": NvmlAnswer(gpus=(gpu,), notes=(f"/home/{USER}/lib: {FQDN}",)),
        "verbs.json": VerbsAnswer(
            names=("rocexb8cef60300aabbcc",), hcas=(Hca(name="rocexb8cef60300aabbcc", ports=(port,)),),
            notes=(f"port {GUID}: odd",),
        ),
        "lldp.json": LldpAnswer(
            neighbors=(
                LldpNeighbor(
                    interface=f"enx{BARE_MAC}", chassis_id=MAC, system_name=LEAF, port_id="Ethernet1/1",
                    port_description="room 4, payroll",
                ),
            )
        ),
        "ibfabric.json": IbFabricAnswer(
            fabrics=(IbFabric(guid=GUID, switch_count=1, hca_count=1, link_count=1, switches=(switch,)),)
        ),
        "topology_file.json": TopologyFileAnswer(
            file=TopologyFile(
                path=f"/scratch/{USER}/topo.xml",
                text='<cpu host_hash="0x9a70500003ae6d94"><net guid="0xb8cef60300aabbcc"/></cpu>',
            )
        ),
        "placement.json": PlacementAnswer(positions=(place,), notes=(f"{RACK} is known to {LEAF}",)),
        "instance.json": InstanceAnswer(position=Position(source="aws", instance_id=INSTANCE, origin=f"http://{V4}/")),
        "site.json": SiteAnswer(
            networks=(NetworkRule(name="pay-net", subnet="10.20.30.0/24", prefix="fec0:0000:0000:0001"),)
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def both() -> tuple[Capture, str]:
    """The capture without its secrets, and its text."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("USER", USER)
        patched.setenv("HOME", f"/scratch/{USER}")
        whole = recording()
        made = redacted(finished(whole, node()), key=b"k")
        return made, to_text(made)


def test_the_machine_has_something_to_hide(both):
    text = to_text(finished(recording(), node()))
    assert [secret for secret in SECRETS if secret not in text] == []


@pytest.mark.parametrize("secret", SECRETS)
def test_it_is_gone_from_the_whole_file(both, secret):
    assert secret.lower() not in both[1].lower()


def test_joins_hold(both):
    made = both[0].snapshot
    nic, tunnel = made.interfaces
    (hca,), (neighbor,), (fabric,) = made.hcas, made.lldp, made.ib_fabrics
    assert nic.name == "enx" + nic.mac.replace(":", "") == neighbor.interface
    assert neighbor.chassis_id == nic.mac
    assert nic.pci_address == hca.pci_address == "0000:17:00.0"
    assert hca.node_guid == fabric.guid == fabric.switches[0].links[0].peer == fabric.switches[0].system_guid
    assert hca.ports[0].gids[0].gid.endswith(hca.node_guid)
    assert hca.name == "rocex" + hca.node_guid.replace(":", "")
    assert bytes.fromhex(tunnel.mac.replace(":", "")) == bytes(map(int, tunnel.addresses[0].address.split(".")))
    assert fabric.switches[0].name == neighbor.system_name == made.positions[0].switches[0]
    assert made.positions[0].nvlink_domain == made.gpus[0].fabric.cluster_uuid
    assert made.site_networks[0].subnet == made.routes[0].destination == made.routing_rules[0].routes[0].destination
    assert made.routing_rules[0].source == f"{nic.addresses[0].address}/32"
    assert made.node.name in made.probes[4].notes[0]
    assert made.node.hostname == made.node.name
    assert (hca.firmware, nic.firmware, made.node.kernel) == ("28.39.10.02", "28.39.10.02", "6.1.0.9")


def test_what_stands_instead_says_of_what_kind_it_is(both):
    text = both[1]
    assert re.search(r"host-[0-9a-f]{8}", text)
    assert re.search(r"/home/user-[0-9a-f]{8}/topo.xml", text)
    assert re.search(r"serial-[0-9a-f]{8}", text)
    assert '"port_id": "Ethernet1/1"' in text
