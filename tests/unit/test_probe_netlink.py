"""Probe ``netlink`` on recorded answers and on sysfs alone; ``test_probe_namespaces`` asks the kernel."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.codec import to_json
from fabricd.model.device import InterfaceKind, IpAddress, NetInterface
from fabricd.model.observation import Outcome
from fabricd.model.routing import Route, RoutingRule
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed, Roots
from fabricd.probe.net_sysfs import Hardware
from fabricd.probe.netlink import NetlinkProbe, interface_kind
from fabricd.probe.netlink_dump import (
    AddressFacts,
    DriverFacts,
    LinkFacts,
    NetlinkDump,
    SpeedFacts,
)
from fabricd.probe.netlink_routes import RouteFacts, RuleFacts
from fabricd.probe.runner import take_snapshot
from tests.support.machine_run import FAST
from tests.support.netlink_probe import NIC, UP, interfaces, links, mlx5, probe
from tests.support.tree import Link, Pipe, Tree


def test_a_physical_nic_in_full(tmp_path: Path) -> None:
    tree = Tree()
    device = mlx5(tree)
    tree[f"{device}/infiniband/mlx5_0"] = None
    tree.net("eth0", index=4, device=device, mac="b8:ce:f6:00:00:01")
    dump = NetlinkDump(
        links=(
            LinkFacts(
                index=4,
                name="eth0",
                flags=UP,
                mac="b8:ce:f6:00:00:01",
                mtu=9000,
                oper_state="up",
                carrier=True,
                port_name="p0",
                rx_bytes=5,
                tx_bytes=7,
                carrier_down_count=2,
            ),
        ),
        addresses=(
            AddressFacts(index=4, address="10.1.0.1", prefix_length=24),
            AddressFacts(index=4, address="fe80::1", prefix_length=64, scope="link"),
            AddressFacts(index=99, address="10.9.0.1", prefix_length=24),
        ),
        routes=(
            RouteFacts(destination="default", family=4, index=4, gateway="10.1.0.254", metric=100),
            RouteFacts(destination="10.9.0.0/24", family=4, index=99),
        ),
        speeds=(SpeedFacts(index=4, megabits_per_second=400_000, duplex="full"),),
        drivers=(DriverFacts(interface="eth0", driver="mlx5_core", firmware="28.39.2048 (MT_0000000838)"),),
    )
    result = probe(tmp_path, tree, dump)
    assert result.facts["interfaces"] == (
        NetInterface(
            name="eth0",
            index=4,
            kind=InterfaceKind.PHYSICAL,
            driver="mlx5_core",
            firmware="28.39.2048 (MT_0000000838)",
            mac="b8:ce:f6:00:00:01",
            mtu=9000,
            speed_bytes_per_second=50_000_000_000,
            duplex="full",
            admin_up=True,
            oper_state="up",
            carrier=True,
            addresses=(
                IpAddress(address="10.1.0.1", prefix_length=24, family=4),
                IpAddress(address="fe80::1", prefix_length=64, family=6, scope="link"),
            ),
            pci_address="0000:17:00.0",
            numa_node=1,
            port_name="p0",
            rdma_device="mlx5_0",
            rx_bytes=5,
            tx_bytes=7,
            carrier_down_count=2,
        ),
    )
    # An address or route of a link that is gone by now names nothing.
    assert result.facts["routes"] == (
        Route(destination="default", family=4, interface="eth0", gateway="10.1.0.254", metric=100),
    )
    assert result.notes == ()


def test_bond_bridge_vlan_and_who_is_below_whom(tmp_path: Path) -> None:
    found = interfaces(
        tmp_path,
        Tree(),
        links(
            LinkFacts(index=2, name="eth0", controller=5, flags=UP),
            LinkFacts(index=3, name="eth1", controller=5, flags=UP),
            LinkFacts(index=5, name="bond0", kind="bond", bond_mode="802.3ad"),
            LinkFacts(index=6, name="bond0.7", kind="vlan", vlan_id=7, lower=5, controller=8),
            LinkFacts(index=7, name="veth0", kind="veth", lower=2),
            LinkFacts(index=8, name="br0", kind="bridge"),
            LinkFacts(index=9, name="mv0", kind="macvlan", lower=2),
            LinkFacts(index=10, name="vx0", kind="vxlan", lower=77),
        ),
    )
    assert found["bond0"].members == ("eth0", "eth1")
    assert found["bond0"].bond_mode == "802.3ad"
    assert found["eth0"].controller == "bond0"
    assert (found["bond0.7"].parent, found["bond0.7"].vlan_id, found["bond0.7"].controller) == ("bond0", 7, "br0")
    assert found["br0"].members == ("bond0.7",)
    assert found["veth0"].parent == ""  # its other end is no parent
    assert found["mv0"].parent == "eth0"
    assert found["vx0"].parent == ""  # in another namespace


@pytest.mark.parametrize(
    ("link", "hardware", "kind"),
    [
        (LinkFacts(index=1, name="lo", hardware_type=772), Hardware(), InterfaceKind.LOOPBACK),
        (LinkFacts(index=1, name="ib0", hardware_type=32), Hardware(present=True), InterfaceKind.IPOIB),
        (LinkFacts(index=1, name="ib0.8001", hardware_type=32, kind="ipoib"), Hardware(), InterfaceKind.IPOIB),
        (LinkFacts(index=1, name="bond0", hardware_type=32, kind="bond"), Hardware(), InterfaceKind.BOND),
        (LinkFacts(index=1, name="e"), Hardware(present=True), InterfaceKind.PHYSICAL),
        (LinkFacts(index=1, name="e"), Hardware(present=True, physical_function="x"), InterfaceKind.VIRTUAL_FUNCTION),
        (LinkFacts(index=1, name="e", port_name="p0"), Hardware(present=True), InterfaceKind.PHYSICAL),
        # A port of the card's own switch has the card's device, but carries no traffic of this host's.
        (LinkFacts(index=1, name="e", port_name="pf0vf3"), Hardware(present=True), InterfaceKind.OTHER),
        (LinkFacts(index=1, name="e", port_name="c1pf0sf88"), Hardware(present=True), InterfaceKind.OTHER),
        (LinkFacts(index=1, name="e"), Hardware(), InterfaceKind.OTHER),
        *(
            (LinkFacts(index=1, name="e", kind=told), Hardware(), kind)
            for told, kind in {
                "veth": InterfaceKind.VETH,
                "bridge": InterfaceKind.BRIDGE,
                "bond": InterfaceKind.BOND,
                "team": InterfaceKind.TEAM,
                "vlan": InterfaceKind.VLAN,
                "macvtap": InterfaceKind.MACVLAN,
                "ipvlan": InterfaceKind.IPVLAN,
                "tun": InterfaceKind.TUN,
                "vxlan": InterfaceKind.TUNNEL,
                "wireguard": InterfaceKind.TUNNEL,
                "ifb": InterfaceKind.IFB,
                "dummy": InterfaceKind.DUMMY,
                "openvswitch": InterfaceKind.OTHER,
                "something-new": InterfaceKind.OTHER,
            }.items()
        ),
    ],
)
def test_kinds(link: LinkFacts, hardware: Hardware, kind: InterfaceKind) -> None:
    assert interface_kind(link, hardware) is kind


def test_carrier_of_an_interface_that_is_down_is_not_known(tmp_path: Path) -> None:
    found = interfaces(tmp_path, Tree(), links(LinkFacts(index=2, name="eth0", flags=0x1002, carrier=True)))
    assert (found["eth0"].admin_up, found["eth0"].carrier) == (False, None)


@pytest.mark.parametrize("index", [4, 5])
def test_sysfs_of_another_namespace_is_not_believed(tmp_path: Path, index: int) -> None:
    """The same name with another index or MAC is another interface."""
    tree = Tree()
    tree.net("eth0", index=index, device=mlx5(tree), mac="b8:ce:f6:00:00:01")
    mac = "b8:ce:f6:00:00:01" if index == 5 else "02:00:00:00:00:09"
    nic = interfaces(tmp_path, tree, links(LinkFacts(index=4, name="eth0", mac=mac)))["eth0"]
    assert (nic.kind, nic.driver, nic.pci_address) == (InterfaceKind.OTHER, "", "")


def test_pci_address_of_devices_on_other_buses(tmp_path: Path) -> None:
    tree = Tree()
    function = tree.pci("pci0000:00/0000:00:03.0", class_code=NIC, numa_node="0\n")
    for name, bus, index in (("virtio2", "virtio", 2), ("mlx5_core.sf.2", "auxiliary", 3), ("1-1:1.0", "usb", 4)):
        tree.link(f"{function}/{name}/subsystem", f"sys/bus/{bus}")
        tree[f"{function}/{name}/driver"] = Link("../../../../bus/x/drivers/some_net")
        tree.net(f"eth{index}", index=index, device=f"{function}/{name}", mac="")
    found = interfaces(tmp_path, tree)
    assert {name: nic.pci_address for name, nic in found.items()} == {
        "eth2": "0000:00:03.0",
        "eth3": "0000:00:03.0",
        "eth4": "",  # the USB controller's place is not the card's
    }
    assert found["eth2"].numa_node == 0
    assert {nic.driver for nic in found.values()} == {"some_net"}


def test_rdma_device_of_a_bond_and_of_soft_roce(tmp_path: Path) -> None:
    tree = Tree(
        {
            "sys/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0": "bond0\n",
            "sys/class/infiniband/rxe0/parent": "eth1\n",
            "sys/class/infiniband/mlx5_9/ports/1/gid_attrs/ndevs/0": Pipe(),
        }
    )
    dump = links(LinkFacts(index=2, name="bond0", kind="bond"), LinkFacts(index=3, name="eth1"))
    found = interfaces(tmp_path, tree, dump)
    assert {name: nic.rdma_device for name, nic in found.items()} == {"bond0": "mlx5_bond_0", "eth1": "rxe0"}


def test_a_recorded_answer_that_is_none_fails_the_probe(tmp_path: Path) -> None:
    with pytest.raises(ProbeFailed, match=r"netlink\.json"):
        probe(tmp_path, Tree({"answers/netlink.json": '{"links": [{"index": "one"}]}'}))


def test_neither_netlink_nor_sysfs(tmp_path: Path) -> None:
    with pytest.raises(ProbeAbsent, match="no network interface"):
        probe(tmp_path, Tree())


def test_a_rule_has_the_routes_of_its_table(tmp_path: Path) -> None:
    dump = NetlinkDump(
        links=(LinkFacts(index=2, name="rail0", flags=UP),),
        routes=(
            RouteFacts(destination="default", family=4, index=2, gateway="10.1.0.254", table=101),
            RouteFacts(destination="default", family=6, index=2, table=101),
            RouteFacts(destination="10.1.0.0/24", family=4, index=2),
            *(RouteFacts(destination=f"10.{one}.0.0/16", family=4, index=2, table=102) for one in range(70)),
        ),
        rules=(
            RuleFacts(source="10.1.0.6/32", family=4, table=102, priority=9),
            RuleFacts(source="10.1.0.5/32", family=4, table=101, priority=8),
        ),
    )
    result = probe(tmp_path, Tree(), dump)
    assert result.facts["routes"] == (Route(destination="10.1.0.0/24", family=4, interface="rail0"),)
    first, second = result.facts["routing_rules"]
    assert first == RoutingRule(
        source="10.1.0.5/32",
        family=4,
        priority=8,
        table=101,
        routes=(Route(destination="default", family=4, interface="rail0", gateway="10.1.0.254"),),
    )
    assert (second.source, len(second.routes)) == ("10.1.0.6/32", 64)
    assert result.notes == ("table 102: it has more than 64 routes; the rest is left out",)


class TestSysfsAlone:
    """What is left where netlink is not to be had."""

    def test_fields(self, tmp_path: Path) -> None:
        tree = Tree()
        tree.net(
            "eth0",
            index=2,
            device=mlx5(tree),
            mac="b8:ce:f6:00:00:01",
            **{
                "speed": "100000\n",
                "duplex": "full\n",
                "carrier": "1\n",
                "carrier_down_count": "3\n",
                "phys_port_name": "p1\n",
                "statistics/rx_bytes": "18446744073709551615\n",
                "statistics/tx_bytes": "1\n",
                "master": Link("../../../../virtual/net/bond0"),
            },
        )
        bond = tree.net("bond0", index=3, **{"bonding/mode": "802.3ad 4\n", "speed": "-1\n", "duplex": "unknown\n"})
        tree.net("br0", index=4, **{"bridge/bridge_id": "8000.0\n", "flags": "0x1002\n", "carrier": Pipe()})
        tree.net("tap0", index=5, tun_flags="0x1002\n")
        tree.net("eth0.9", index=6, uevent="DEVTYPE=vlan\nINTERFACE=eth0.9\n", iflink="2\n")
        found = interfaces(tmp_path, tree)
        nic = found["eth0"]
        assert (nic.kind, nic.speed_bytes_per_second, nic.duplex) == (InterfaceKind.PHYSICAL, 12_500_000_000, "full")
        assert (nic.carrier, nic.carrier_down_count, nic.port_name) == (True, 3, "p1")
        assert (nic.rx_bytes, nic.tx_bytes, nic.controller) == (2**64 - 1, 1, "bond0")
        assert (found["bond0"].kind, found["bond0"].bond_mode) == (InterfaceKind.BOND, "802.3ad")
        assert found["bond0"].speed_bytes_per_second is None
        assert found["bond0"].members == ("eth0",)
        assert (found["br0"].kind, found["br0"].admin_up) == (InterfaceKind.BRIDGE, False)
        assert found["tap0"].kind is InterfaceKind.TUN
        assert (found["eth0.9"].kind, found["eth0.9"].parent) == (InterfaceKind.VLAN, "eth0")
        assert bond.endswith("bond0")

    def test_what_is_broken_costs_its_field_or_interface(self, tmp_path: Path) -> None:
        tree = Tree({"sys/class/net/bonding_masters": "bond0\n", "sys/class/net/loop": Link("loop")})
        tree.net("eth0", index=2, mtu="N/A\n", flags="0x" + "f" * 50, statistics="no folder", operstate=Pipe())
        tree.net("eth1", index=3, ifindex="-4\n")
        result = probe(tmp_path, tree)
        assert [nic.name for nic in result.facts["interfaces"]] == ["eth0"]
        assert result.facts["interfaces"][0].mtu is None
        assert {note.partition(": ")[0].rpartition("/")[2] for note in result.notes} >= {"mtu", "flags", "ifindex"}


def test_hundreds_of_functions_in_time() -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as folder:
        _look_at_hundreds(Path(folder))


def _look_at_hundreds(folder: Path) -> None:
    tree = Tree()
    physical = mlx5(tree)
    facts = []
    for number in range(500):
        address = f"0000:{0x20 + number // 256:02x}:{number // 8 % 32:02x}.{number % 8}"
        virtual = tree.pci(f"pci0000:16/{address}", class_code=NIC, numa_node="1\n")
        tree.link(f"{virtual}/physfn", physical)
        tree.net(f"vf{number}", index=number + 2, device=virtual)
        facts.append(LinkFacts(index=number + 2, name=f"vf{number}", mac="02:00:00:00:00:01", flags=UP))
    tree["answers/netlink.json"] = to_json(links(*facts))
    tree.write(folder)
    context = ProbeContext(roots=Roots.under(folder), this_host=False, answers=folder / "answers")
    snapshot = take_snapshot(context, probes=(NetlinkProbe(),))
    assert snapshot.probes[0].outcome is Outcome.OK  # within its deadline
    assert len(snapshot.interfaces) == 500
    assert {nic.kind for nic in snapshot.interfaces} == {InterfaceKind.VIRTUAL_FUNCTION}
    assert {nic.physical_function for nic in snapshot.interfaces} == {"0000:17:00.0"}
    assert replace(snapshot.interfaces[0], name="", index=0, pci_address="") == replace(
        snapshot.interfaces[-1], name="", index=0, pci_address=""
    )
