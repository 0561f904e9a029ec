"""Probe ``netlink`` and the local view against a real kernel, in network namespaces of their own."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from demo.namespaces import Kind, Namespaces
from fabricd.localview import collect
from fabricd.model.device import InterfaceKind, NetInterface
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeContext
from fabricd.probe.ethtool import Speed, read_drivers, read_speeds
from fabricd.probe.files import FieldReader
from fabricd.probe.netlink import NetlinkProbe
from fabricd.probe.runner import take_snapshot

pytestmark = pytest.mark.root

#: What a namespace needs to see its own interfaces in /sys, as a container does.
OWN_SYSFS = "mount --make-rprivate / && mount -t sysfs sysfs /sys && ip link set lo up"


class Network:
    """A network namespace, by default with a /sys of its own."""

    def __init__(self, kind: Kind = Kind.NET | Kind.MOUNT, setup: str = OWN_SYSFS) -> None:
        self.spaces = Namespaces(kind, setup)

    def ip(self, *commands: str) -> None:
        """Run commands of ``ip``, or raise with what it said."""
        self.spaces.run(["ip", "-batch", "-"], stdin_text="\n".join(commands))

    def snapshot(self) -> Snapshot:
        """Return what the probe finds inside."""
        snapshot = self.spaces.inside(lambda: take_snapshot(ProbeContext(), probes=(NetlinkProbe(),)))
        assert snapshot.probes[0].outcome is Outcome.OK, snapshot.probes
        assert snapshot.probes[0].notes == ()
        return snapshot

    def interfaces(self) -> dict[str, NetInterface]:
        """Return the interfaces inside."""
        return {nic.name: nic for nic in self.snapshot().interfaces}


@pytest.fixture
def namespace() -> Iterator[Network]:
    network = Network()
    yield network
    network.spaces.close()


def test_veth_bridge_addresses_and_routes(namespace: Network) -> None:
    namespace.ip(
        "link add v0 type veth peer name v1",
        "link add br0 type bridge",
        "link set v1 master br0",
        "link set v0 mtu 9000 up",
        "link set v1 up",
        "link set br0 up",
        "addr add 10.77.0.1/24 dev v0",
        "addr add fd77::1/64 dev v0 nodad",
        "route add 10.78.0.0/16 via 10.77.0.254 metric 7",
        "route add default nexthop via 10.77.0.253 nexthop via 10.77.0.252",
        "route add 10.79.0.0/16 dev v0 table 99",
        "route add blackhole 10.80.0.0/16",
    )
    snapshot = namespace.snapshot()
    found = {nic.name: nic for nic in snapshot.interfaces}
    assert set(found) >= {"lo", "v0", "v1", "br0"}
    v0 = found["v0"]
    assert (v0.kind, v0.link_kind, v0.mtu, v0.admin_up, v0.carrier) == (InterfaceKind.VETH, "veth", 9000, True, True)
    assert (v0.pci_address, v0.driver, v0.parent, v0.oper_state) == ("", "", "", "up")
    assert v0.speed_bytes_per_second == 1_250_000_000
    texts = {f"{address.address}/{address.prefix_length} {address.scope}" for address in v0.addresses}
    assert texts >= {"10.77.0.1/24 global", "fd77::1/64 global"}
    assert any(address.scope == "link" and address.family == 6 for address in v0.addresses)
    assert (found["br0"].kind, found["br0"].members) == (InterfaceKind.BRIDGE, ("v1",))
    assert found["v1"].controller == "br0"
    assert (found["lo"].kind, found["lo"].speed_bytes_per_second) == (InterfaceKind.LOOPBACK, None)
    assert [address.address for address in found["lo"].addresses] == ["127.0.0.1", "::1"]

    routes = {(route.destination, route.gateway, route.interface, route.metric) for route in snapshot.routes}
    assert routes >= {
        ("10.77.0.0/24", "", "v0", None),
        ("10.78.0.0/16", "10.77.0.254", "v0", 7),
        ("default", "10.77.0.253", "v0", None),
        ("default", "10.77.0.252", "v0", None),
    }
    assert not [route for route in routes if route[0] in ("10.79.0.0/16", "10.80.0.0/16", "127.0.0.0/8")]


def test_a_rail_with_a_routing_table_of_its_own(namespace: Network) -> None:
    namespace.ip(
        "link add rail0 type veth peer name leaf0",
        "link set rail0 up",
        "link set leaf0 up",
        "addr add 10.77.0.1/24 dev rail0",
        "addr add fd77::1/64 dev rail0 nodad",
        "route add default via 10.77.0.254 table 1001",
        "route add 10.77.0.0/24 dev rail0 table 1001",
        "route add 10.99.0.0/16 dev rail0 table 77",
        "rule add from 10.77.0.1 table 1001 priority 100",
        "rule add from 10.77.0.1 fwmark 5 table 77",
        "rule add iif leaf0 table 77",
        "rule add from 10.77.0.0/24 to 10.99.0.0/16 table 77",
        "rule add not from 10.77.0.1 table 77",
        "rule add from 10.77.0.1 prohibit",
    )
    namespace.spaces.run(["ip", "-6", "route", "add", "default", "via", "fd77::ff", "dev", "rail0", "table", "1001"])
    namespace.spaces.run(["ip", "-6", "rule", "add", "from", "fd77::1", "table", "1001", "priority", "101"])
    snapshot = namespace.snapshot()
    four, six = snapshot.routing_rules
    assert (four.source, four.table, four.priority) == ("10.77.0.1/32", 1001, 100)
    assert {(route.destination, route.gateway, route.interface) for route in four.routes} == {
        ("default", "10.77.0.254", "rail0"),
        ("10.77.0.0/24", "", "rail0"),
    }
    assert (six.source, six.family) == ("fd77::1/128", 6)
    assert [(route.destination, route.gateway) for route in six.routes] == [("default", "fd77::ff")]
    assert not [route for route in snapshot.routes if route.gateway in ("10.77.0.254", "fd77::ff")]


@pytest.mark.parametrize(
    ("command", "kind", "parent"),
    [
        ("tuntap add mode tap x0", InterfaceKind.TUN, ""),
        ("tuntap add mode tun x0", InterfaceKind.TUN, ""),
        ("link add x0 type dummy", InterfaceKind.DUMMY, ""),
        ("link add x0 type ifb", InterfaceKind.IFB, ""),
        ("link add x0 type bond mode active-backup", InterfaceKind.BOND, ""),
        ("link add x0 link p0 type vlan id 5", InterfaceKind.VLAN, "p0"),
        ("link add x0 link p0 type macvlan mode bridge", InterfaceKind.MACVLAN, "p0"),
        ("link add x0 link p0 type macvtap", InterfaceKind.MACVLAN, "p0"),
        ("link add x0 link p0 type ipvlan mode l2", InterfaceKind.IPVLAN, "p0"),
        ("link add x0 type vxlan id 4 dev p0 dstport 4789", InterfaceKind.TUNNEL, "p0"),
    ],
)
def test_kinds_that_this_kernel_has(namespace: Network, command: str, kind: InterfaceKind, parent: str) -> None:
    namespace.ip("link add p0 type veth peer name p1")
    try:
        namespace.ip(command)
    except subprocess.CalledProcessError as error:
        if "Unknown device type" not in error.stderr:
            raise
        pytest.skip(f"this kernel cannot: {command}")
    nic = namespace.interfaces()["x0"]
    assert (nic.kind, nic.parent) == (kind, parent)
    assert (nic.vlan_id == 5) is (kind is InterfaceKind.VLAN)
    assert (nic.bond_mode == "active-backup") is (kind is InterfaceKind.BOND)


def test_odd_names_and_renames(namespace: Network) -> None:
    odd = ['a"b\\$*', "-rf", "{x}'", "ünï", "\udcff\udcfex"]
    namespace.ip("link add before type veth peer name peer", "link set before name after")
    for number, name in enumerate(odd):
        namespace.spaces.run(["ip", "tuntap", "add", "mode", "tun", f"t{number}"])
        namespace.spaces.run(["ip", "link", "set", f"t{number}", "name", name])
    shown = {*odd[:-1], "\\xff\\xfex", "after"}
    found = namespace.interfaces()
    assert set(found) >= shown
    assert "before" not in found
    assert {found[name].kind for name in shown - {"after"}} == {InterfaceKind.TUN}
    view = namespace.spaces.inside(collect)
    assert {nic.name for nic in view.interfaces} >= shown


def test_the_sysfs_of_another_namespace_is_not_believed() -> None:
    """Without a /sys of its own, the namespace's interfaces are not those that /sys shows."""
    network = Network(Kind.NET, "")
    try:
        network.ip("link add eth0 type veth peer name eth1")
        nic = network.interfaces()["eth0"]
    finally:
        network.spaces.close()
    assert (nic.kind, nic.pci_address, nic.driver) == (InterfaceKind.VETH, "", "")


def test_drivers_and_speeds_by_ethtool(namespace: Network) -> None:
    namespace.ip("tuntap add mode tap t0", "link add v0 type veth peer name v1", "link add b0 type bridge")
    read = FieldReader()
    drivers = namespace.spaces.inside(
        lambda: read_drivers(["t0", "v0", "b0", "lo", "none", "longer-than-a-name"], read)
    )
    assert {name: driver.name for name, driver in drivers.items()} == {"t0": "tun", "v0": "veth", "b0": "bridge"}
    speeds = namespace.spaces.inside(lambda: read_speeds(100, read))
    known = {nic.index: nic.name for nic in namespace.interfaces().values()}
    assert {known[index]: speed for index, speed in speeds.items() if known[index] in ("t0", "v0", "lo")} == {
        "t0": Speed(10_000, "full"),
        "v0": Speed(10_000, "full"),
    }
    assert read.notes == []


def test_a_limit_of_questions_is_kept_and_said(namespace: Network) -> None:
    read = FieldReader()
    assert namespace.spaces.inside(lambda: read_drivers([f"e{number}" for number in range(1000)], read)) == {}
    assert read.notes == ["ethtool: firmware is asked of the first 256 of 1000 interfaces only"]


def test_many_interfaces(namespace: Network) -> None:
    namespace.ip(*(f"link add v{number} type veth peer name w{number}" for number in range(300)))
    assert len(namespace.interfaces()) >= 601


def test_view_and_probe_agree_also_without_sysfs_and_proc(namespace: Network) -> None:
    namespace.ip(
        "link add v0 type veth peer name v1",
        "link set v0 up",
        "addr add 10.77.0.1/24 dev v0",
        "addr add 10.77.1.1 peer 10.77.1.2 dev v1",
        "addr add fd77::1/64 dev v0 nodad",
    )
    nowhere = Path("/nowhere")
    view = namespace.spaces.inside(lambda: collect(sys_root=nowhere, proc_root=nowhere, dev_root=nowhere))
    assert (view.boot_id, view.net_namespace, view.hcas) == ("", "", ())
    seen = {nic.name: nic for nic in view.interfaces}
    for name, nic in namespace.interfaces().items():
        assert seen[name].mac == nic.mac
        assert seen[name].up is nic.admin_up
        assert seen[name].loopback is (nic.kind is InterfaceKind.LOOPBACK)
        assert seen[name].addresses == tuple(f"{one.address}/{one.prefix_length}" for one in nic.addresses)
    assert "10.77.1.1/32" in seen["v1"].addresses
