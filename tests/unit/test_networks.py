"""Which ports can talk to which: the rules, and the facts that overrule them."""

from dataclasses import replace
from ipaddress import ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.graph.networks import find_networks
from fabricd.model.device import Gid, InterfaceKind, IpAddress, LldpNeighbor
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.measurement import Measurement
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.placement import Position
from tests.support.nodes import hca, hgx, ib_port, mapping, nic, node, nvl_tray

VETH = InterfaceKind.VETH
ADDRESSES = st.builds(
    lambda address, length: IpAddress(address=str(address), prefix_length=length, family=address.version),
    st.ip_addresses(),
    st.integers(-1, 129),
)


def ports(network):
    return [f"{port.node.removeprefix('id-')}/{port.interface}" for port in network.ports]


def networks(*snapshots, measurements=()):
    found = find_networks(mapping(*snapshots), measurements)
    return {network.name: ports(network) for network in found.networks}


def rejected(*snapshots):
    return {one.name.removeprefix("id-"): one.reason for one in find_networks(mapping(*snapshots)).rejected}


@given(ADDRESSES)
def test_a_port_is_on_the_subnet_of_its_address_unless_nobody_else_reaches_that(address):
    text = f"{address.address}/{address.prefix_length}"
    found = list(networks(node(interfaces=(replace(nic("eth0"), addresses=(address,)),))))
    if 0 <= address.prefix_length <= (32 if address.family == 4 else 128):
        parsed = ip_interface(text)
        useless = parsed.ip.is_link_local or parsed.ip.is_loopback or parsed.ip.is_multicast or parsed.ip.is_unspecified
        assert found == ([] if useless else [str(parsed.network)])
    else:
        assert found == []


def test_a_subnet_is_a_network_and_which_facts_say_so_is_told():
    a = node("a", interfaces=(nic("fast", "10.1.0.1/24", kind=VETH), nic("slow", "10.2.0.1/24")))
    b = node("b", interfaces=(nic("x", "10.1.0.2/24"), nic("y", "10.2.0.2/24")))
    found = find_networks(mapping(a, b))
    assert [(net.name, ports(net)) for net in found.networks] == [
        ("10.1.0.0/24", ["a/fast", "b/x"]),
        ("10.2.0.0/24", ["a/slow", "b/y"]),
    ]
    first = found.networks[0]
    assert (first.verified, first.reason, first.transport) == (
        Evidence.ASSUMED,
        "same subnet 10.1.0.0/24",
        Transport.ETHERNET,
    )
    assert [port.virtual for port in first.ports] == [True, False]


@pytest.mark.parametrize(
    ("interface", "reason"),
    [
        (nic("lo", "127.0.0.1/8", kind=InterfaceKind.LOOPBACK), "a loopback leads nowhere but back"),
        (nic("ifb0", "10.0.0.1/8", kind=InterfaceKind.IFB), "an ifb shapes traffic and joins nothing"),
        (nic("d0", "10.0.0.1/8", kind=InterfaceKind.DUMMY), "a dummy interface discards what it is given"),
        (nic("eth0", "10.0.0.1/8", admin_up=False), "it is switched off"),
        (nic("eth0", "10.0.0.1/8", oper_state="lowerlayerdown"), "it is down (lowerlayerdown)"),
        (nic("eth0", "10.0.0.1/8", oper_state="", carrier=False), "it is down (no carrier)"),
        (nic("eth0"), "it has no IP address"),
        (nic("eth0", "fe80::1/64"), "none of its addresses reaches beyond its own link"),
        (nic("eth0", "169.254.3.4/16"), "none of its addresses reaches beyond its own link"),
        (nic("eth0", "no address/33"), "none of its addresses reaches beyond its own link"),
        (nic("eth0", controller="bond0"), "it carries bond0, which has the address"),
        (
            nic("docker0", "172.17.0.1/16", kind=InterfaceKind.BRIDGE),
            "a bridge with no card of this host in it joins only what is on this host",
        ),
    ],
)
def test_what_can_be_on_no_network_and_why(interface, reason):
    assert rejected(node(interfaces=(interface,))) == {f"a/{interface.name}": reason}
    assert networks(node(interfaces=(interface,))) == {}


def test_a_bridge_counts_only_with_a_card_in_it():
    members = (nic("eth0", pci_address="0000:01:00.0", controller="br0"), nic("v0", kind=VETH, controller="br0"))
    bridge = nic("br0", "10.0.0.1/24", kind=InterfaceKind.BRIDGE, members=("eth0", "v0"))
    assert networks(node(interfaces=(*members, bridge))) == {"10.0.0.0/24": ["a/br0"]}
    alone = replace(bridge, members=("v0",))
    assert networks(node(interfaces=(*members, alone))) == {}


def test_different_vlan_tags_are_different_networks_and_a_tag_seen_on_one_side_only_is_the_same():
    a = node("a", interfaces=(nic("eth0.7", "10.0.0.1/24", kind=InterfaceKind.VLAN, vlan_id=7),))
    b = node("b", interfaces=(nic("eth0.8", "10.0.0.2/24", kind=InterfaceKind.VLAN, vlan_id=8),))
    assert networks(a, b) == {"10.0.0.0/24@vlan7": ["a/eth0.7"], "10.0.0.0/24@vlan8": ["b/eth0.8"]}
    untagged = node("b", interfaces=(nic("eth0", "10.0.0.2/24"),))
    assert networks(a, untagged) == {"10.0.0.0/24": ["a/eth0.7", "b/eth0"]}
    # The switch tells by LLDP which VLAN untagged frames of that port belong to.
    told = replace(untagged, lldp=(LldpNeighbor(interface="eth0", vlan_id=8),))
    assert networks(a, told) == {"10.0.0.0/24@vlan7": ["a/eth0.7"], "10.0.0.0/24@vlan8": ["b/eth0"]}


def test_one_address_on_two_nodes_proves_two_networks():
    a = node("a", interfaces=(nic("eth0", "10.0.2.15/24"),))
    b = node("b", interfaces=(nic("eth0", "10.0.2.15/24"),))
    assert networks(a, b) == {"10.0.2.0/24@id-a": ["a/eth0"], "10.0.2.0/24@id-b": ["b/eth0"]}


def test_ipv6_beside_ipv4_is_no_second_network():
    both = nic("eth0", "10.0.0.1/24")
    six = nic("eth0", "fd00::1/64").addresses
    a = node("a", interfaces=(replace(both, addresses=both.addresses + six),))
    b = node("b", interfaces=(nic("eth0", "fd00::2/64"),))
    assert networks(a) == {"10.0.0.0/24": ["a/eth0"]}
    assert networks(a, b) == {"10.0.0.0/24": ["a/eth0"], "fd00::/64": ["a/eth0", "b/eth0"]}


@pytest.mark.parametrize(
    ("interface", "role"),
    [
        (nic("wg0", "10.9.0.1/24", kind=InterfaceKind.TUNNEL, link_kind="wireguard"), "vpn"),
        (nic("tun0", "10.9.0.1/24", kind=InterfaceKind.TUN, mac=""), "vpn"),
        (nic("tap0", "10.9.0.1/24", kind=InterfaceKind.TUN), "data"),
        (nic("flannel.1", "10.9.0.1/24", kind=InterfaceKind.TUNNEL, link_kind="vxlan"), "container"),
        (nic("cilium_host", "10.9.0.7/32", kind=VETH), "container"),
        (nic("veth0", "10.9.0.7/24", kind=VETH), "data"),
        (nic("ens5", "10.9.0.7/32", speed_bytes_per_second=12_500_000_000), "data"),
        (nic("usb0", "10.9.0.1/24", driver="cdc_ether"), "management"),
        (nic("eno1", "10.9.0.1/24", speed_bytes_per_second=125_000_000), "management"),
        (nic("eno1", "10.9.0.1/24", speed_bytes_per_second=12_500_000_000), "data"),
    ],
)
def test_roles_are_told_by_facts(interface, role):
    fast = nic("ens1", pci_address="0000:01:00.0", speed_bytes_per_second=12_500_000_000)
    (network,) = find_networks(mapping(node(interfaces=(interface, fast)))).networks
    assert network.role == role
    assert (interface.name in network.reason) == (role != "data")


def test_infiniband_with_a_prefix_of_its_own_is_one_fabric():
    a = node("a", hcas=(hca("mlx5_0", ib_port(lid=1, prefix="fec0:0000:0000:0001")),))
    b = node("b", hcas=(hca("mlx5_3", ib_port(lid=2, prefix="fec0:0000:0000:0001")),))
    assert networks(a, b) == {"ib:fec0:0000:0000:0001": ["a/mlx5_0:1", "b/mlx5_3:1"]}


def rails(name, lids, sm_lids):
    return node(
        name,
        hcas=tuple(
            hca(f"mlx5_{rail}", ib_port(lid=lid, sm_lid=manager))
            for rail, (lid, manager) in enumerate(zip(lids, sm_lids, strict=True))
        ),
    )


def test_isolated_rails_that_share_the_default_prefix_do_not_merge():
    # Different subnet managers prove it.
    assert networks(rails("a", (1, 1), (10, 11)), rails("b", (2, 2), (10, 11))) == {
        "ib:fe80:0000:0000:0000@sm10": ["a/mlx5_0:1", "b/mlx5_0:1"],
        "ib:fe80:0000:0000:0000@sm11": ["a/mlx5_1:1", "b/mlx5_1:1"],
    }
    # So does one LID on two ports, even where the managers happen to have the same LID.
    assert networks(rails("a", (1, 1), (9, 9)), rails("b", (2, 2), (9, 9))) == {
        "ib:fe80:0000:0000:0000@mlx5_0:1": ["a/mlx5_0:1", "b/mlx5_0:1"],
        "ib:fe80:0000:0000:0000@mlx5_1:1": ["a/mlx5_1:1", "b/mlx5_1:1"],
    }
    # And on the same rail of two nodes it proves that the names of the rails say nothing either.
    assert networks(rails("a", (1,), (9,)), rails("b", (1,), (9,))) == {
        "ib:fe80:0000:0000:0000@mlx5_0:1@id-a": ["a/mlx5_0:1"],
        "ib:fe80:0000:0000:0000@mlx5_0:1@id-b": ["b/mlx5_0:1"],
    }


def test_where_no_fact_speaks_against_it_one_fabric_is_assumed_and_the_doubt_is_told():
    (network,) = find_networks(mapping(rails("a", (1, 2), (9, 9)), rails("b", (3, 4), (9, 9)))).networks
    assert len(network.ports) == 4
    assert network.verified is Evidence.ASSUMED
    assert "may be several fabrics" in network.reason


def test_virtual_functions_share_their_cards_lid_and_prove_nothing():
    a = node("a", hcas=(hca("mlx5_0", ib_port(lid=5), virtual_function=True),))
    b = node("b", hcas=(hca("mlx5_0", ib_port(lid=5), virtual_function=True),))
    assert networks(a, b) == {"ib:fe80:0000:0000:0000": ["a/mlx5_0:1", "b/mlx5_0:1"]}


def test_a_port_that_is_not_active_is_on_no_fabric():
    assert rejected(node(hcas=(hca("mlx5_0", ib_port(state="down")),))) == {"a/mlx5_0:1": "its state is down"}


def roce(name, address, gid_interface="ens1"):
    port = replace(
        ib_port(), link_layer="ethernet", gids=(Gid(index=3, gid="x", type="roce-v2", interface=gid_interface),)
    )
    return node(name, hcas=(hca("mlx5_0", port, kind="roce"),), interfaces=(nic("ens1", address),))


def test_roce_follows_the_ip_network_of_its_interface():
    assert networks(roce("a", "10.3.0.1/24"), roce("b", "10.3.0.2/24")) == {
        "roce:10.3.0.0/24": ["a/mlx5_0:1", "b/mlx5_0:1"],
        "10.3.0.0/24": ["a/ens1", "b/ens1"],
    }


def test_efa_reaches_where_the_nodes_share_a_subnet():
    port = replace(ib_port(), link_layer="unspecified")
    efas = tuple(hca(f"rdmap{number}", port, kind="efa") for number in range(2))
    a = node("a", hcas=efas, interfaces=(nic("ens5", "10.0.0.1/24"),))
    b = node("b", hcas=efas[:1], interfaces=(nic("ens5", "10.0.0.2/24"),))
    assert networks(a, b)["efa:10.0.0.0/24"] == ["a/rdmap0:1", "a/rdmap1:1", "b/rdmap0:1"]


def test_efa_leaves_neither_a_virtual_network_nor_a_zone():
    def machine(name, address, **position):
        efa = hca("rdmap0", replace(ib_port(), link_layer="unspecified"), kind="efa")
        told = (Position(source="aws", **position),) if position else ()
        return node(name, hcas=(efa,), interfaces=(nic("ens5", address),), positions=told)

    def efa(*machines):
        return {name: ports for name, ports in networks(*machines).items() if name.startswith("efa:")}

    a = machine("a", "10.0.0.1/24", vpc="vpc-1", zone="use1-az1")
    # Another subnet of the same virtual network and zone; the same addresses in another virtual network; another zone.
    b = machine("b", "10.0.1.1/24", vpc="vpc-1", zone="use1-az1")
    c = machine("c", "10.0.0.2/24", vpc="vpc-2", zone="use1-az1")
    d = machine("d", "10.0.2.1/24", vpc="vpc-1", zone="use1-az2")
    assert efa(a, b, c, d) == {
        "efa:vpc-1.use1-az1": ["a/rdmap0:1", "b/rdmap0:1"],
        "efa:vpc-2.use1-az1": ["c/rdmap0:1"],
        "efa:vpc-1.use1-az2": ["d/rdmap0:1"],
    }
    # Where one node does not tell, subnets count, but for zones that are known to differ.
    silent = machine("s", "10.0.0.3/24")
    assert efa(a, silent) == {"efa:10.0.0.0/24": ["a/rdmap0:1", "s/rdmap0:1"]}
    other = machine("o", "10.0.0.4/24", zone="use1-az2")
    assert efa(a, other, silent) == {
        "efa:10.0.0.0/24@use1-az1": ["a/rdmap0:1"],
        "efa:10.0.0.0/24@use1-az2": ["o/rdmap0:1"],
        "efa:10.0.0.0/24@unknown": ["s/rdmap0:1"],
    }


def test_an_nvlink_domain_spans_hosts_by_cluster_and_clique():
    found = networks(nvl_tray(0), nvl_tray(1), nvl_tray(2, cluster="another"))
    assert found == {
        "nvlink:d0.1": [f"tray{tray}/gpu{gpu}" for tray in (0, 1) for gpu in range(4)],
        "nvlink:another.1": [f"tray2/gpu{gpu}" for gpu in range(4)],
    }
    started = nvl_tray(0)
    gpu = replace(started.gpus[0], fabric=replace(started.gpus[0].fabric, state="in-progress"))
    assert networks(replace(started, gpus=(gpu,))) == {}


def test_measurements_turn_assumed_into_measured():
    a, b = (node(name, interfaces=(nic("eth0", f"10.1.0.{at}/24"),)) for name, at in (("a", 1), ("b", 2)))
    c = node("c", interfaces=(nic("eth0", "10.1.0.3/24"),))
    measured = Measurement(
        src_node="id-a",
        dst_node="id-b",
        src_interface="eth0",
        dst_interface="eth0",
        src_address="10.1.0.1",
        dst_address="10.1.0.2",
        network="10.1.0.0/24",
        reachable=True,
    )

    def verified(*snapshots, measurements):
        return find_networks(mapping(*snapshots), measurements).networks[0].verified

    assert verified(a, b, measurements=[measured]) is Evidence.MEASURED
    assert verified(a, b, measurements=[replace(measured, reachable=False)]) is Evidence.ASSUMED
    assert verified(a, b, c, measurements=[measured]) is Evidence.ASSUMED
    further = replace(measured, src_node="id-c", src_address="10.1.0.3")
    assert verified(a, b, c, measurements=[measured, further]) is Evidence.MEASURED


def test_a_large_node_on_one_fabric():
    (network, *_) = find_networks(mapping(hgx("a"), hgx("b", lid=20))).networks
    assert network.transport is Transport.INFINIBAND
    assert len(network.ports) == 16


def test_measurements_belong_to_a_network_by_their_addresses_and_tcp_says_nothing_of_rdma():
    a, b = roce("a", "10.3.0.1/24"), roce("b", "10.3.0.2/24")
    measured = Measurement(
        src_node="id-b",
        dst_node="id-a",
        src_interface="ens1",
        dst_interface="ens1",
        src_address="10.3.0.2",
        dst_address="10.3.0.1",
        network="called otherwise",
        reachable=True,
    )
    verified = {net.name: net.verified for net in find_networks(mapping(a, b), [measured]).networks}
    assert verified == {"10.3.0.0/24": Evidence.MEASURED, "roce:10.3.0.0/24": Evidence.ASSUMED}


def walked(snapshot, *switches):
    """The node has walked over one fabric for each of its ports; each is linked to the switch of that place."""
    fabrics = tuple(
        IbFabric(
            guid=near,
            switch_count=1,
            hca_count=2,
            link_count=2,
            switches=(
                IbSwitch(guid=near, links=(IbLink(port=1, peer="x", peer_port=1, local_port=f"mlx5_{rail}:1"),)),
            ),
        )
        for rail, near in enumerate(switches)
    )
    return replace(snapshot, ib_fabrics=fabrics)


def test_nodes_that_walked_over_their_fabrics_know_which_ports_share_one():
    # All facts of the ports agree, and yet these are two rails.
    a = walked(rails("a", (1, 2), (9, 9)), "0x1", "0x2")
    b = walked(rails("b", (3, 4), (9, 9)), "0x1", "0x2")
    assert networks(a, b) == {
        "ib:fe80:0000:0000:0000@0x1": ["a/mlx5_0:1", "b/mlx5_0:1"],
        "ib:fe80:0000:0000:0000@0x2": ["a/mlx5_1:1", "b/mlx5_1:1"],
    }
    (first, _) = find_networks(mapping(a, b)).networks
    assert (first.verified, "met the same switches (0x1)" in first.reason) == (Evidence.REPORTED, True)
    # Two leaves of one fabric: each node names the switches around it, and they have one in common.
    spine = IbSwitch(guid="0x0")
    joined = [
        replace(one, ib_fabrics=tuple(replace(f, switches=(*f.switches, spine)) for f in one.ib_fabrics))
        for one in (a, b)
    ]
    assert list(networks(*joined)) == ["ib:fe80:0000:0000:0000"]
    # One that could not walk leaves the others to the rules.
    assert list(networks(a, replace(b, ib_fabrics=()))) == ["ib:fe80:0000:0000:0000"]
