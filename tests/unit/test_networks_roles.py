"""Names, roles and rails of networks: by facts, and as a site says."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.graph.networks import find_networks
from fabricd.graph.networks_rails import rail_ports
from fabricd.model.device import Gid, InterfaceKind
from fabricd.model.network import ROLES, NetworkRule, role_rank
from fabricd.model.observation import Evidence
from fabricd.model.routing import Route
from tests.support.nodes import BRIDGE, hca, hgx, ib_port, mapping, nic, node, pci

G = 125_000_000  # 1 Gb/s


def networks(*snapshots):
    return {network.name: network for network in find_networks(mapping(*snapshots)).networks}


def ports(network):
    return [f"{port.node.removeprefix('id-')}/{port.interface}" for port in network.ports]


def test_roles_have_an_order_and_unknown_ones_come_last():
    assert [role_rank(role) for role in ROLES] == sorted(role_rank(role) for role in ROLES)
    assert role_rank("compute") < role_rank("data") < role_rank("management") < role_rank("what?")


def test_a_card_that_is_slow_beside_an_infiniband_port_is_for_management():
    slow = nic("eno1", "10.0.0.1/24", pci_address="0000:05:00.0", speed_bytes_per_second=10 * G)
    (network,) = find_networks(mapping(node(interfaces=(slow,)))).networks
    assert network.role == "data"
    found = networks(node(interfaces=(slow,), hcas=(hca("mlx5_0", ib_port()),)))["10.0.0.0/24"]
    assert (found.role, found.configured) == ("management", False)
    assert "eno1 is 40 times slower than the node's fastest port" in found.reason


@pytest.mark.parametrize(("times", "default", "role"), [(4, True, "management"), (4, False, "data"), (3, True, "data")])
def test_the_way_of_the_default_route_is_for_management_where_others_are_faster(times, default, role):
    fast = nic("ens1", pci_address="0000:01:00.0", speed_bytes_per_second=25 * G * times)
    slow = nic("eno1", "10.0.0.1/24", pci_address="0000:02:00.0", speed_bytes_per_second=25 * G)
    route = Route(destination="default", family=4, interface="eno1" if default else "ens1", gateway="10.0.0.254")
    found = networks(node(interfaces=(fast, slow), routes=(route,)))["10.0.0.0/24"]
    assert found.role == role
    assert ("the default route leads by eno1" in found.reason) == (role == "management")


def with_storage(name, *, lid=1, beside=False):
    """An HGX with a ninth adapter of the same speed, on a fabric of its own, beside a GPU or below another root."""
    machine = hgx(name, lid=lid)
    parent = machine.gpus[0].pci_address
    above = {device.address: device.parent for device in machine.pci}
    card = "00ff:01:00.0"
    root = pci("00ff:00:01.0", root="pci00ff:00", class_code=BRIDGE)
    device = pci(card, parent=above[parent] if beside else root.address, root="pci00ff:00")
    port = ib_port(lid=lid + 100, prefix="fec0:0000:0000:0009")
    return replace(
        machine,
        pci=(*machine.pci, root, device),
        hcas=(*machine.hcas, hca("mlx5_8", port, pci_address=card)),
    )


def test_adapters_beside_no_gpu_are_for_storage_where_every_gpu_has_another_one_beside_it():
    found = networks(with_storage("a"), with_storage("b", lid=30))
    storage = found["ib:fec0:0000:0000:0009"]
    assert (storage.role, found["ib:fe80:0000:0000:0000"].role) == ("storage", "data")
    assert "no GPU is beside its ports" in storage.reason
    near = networks(with_storage("a", beside=True), with_storage("b", lid=30, beside=True))
    assert {network.role for network in near.values()} == {"data"}
    # Where one GPU has no adapter of its own, nothing is plain.
    machine = with_storage("a")
    assert {network.role for network in networks(replace(machine, hcas=machine.hcas[1:])).values()} == {"data"}


def test_the_ports_that_count_for_rails_are_in_order_of_pci_address_and_without_those_for_storage():
    machine = with_storage("a")
    shuffled = replace(machine, hcas=tuple(reversed(machine.hcas)))
    assert [(port.rail, port.name) for port in rail_ports(shuffled)] == [(at, f"mlx5_{at}:1") for at in range(8)]
    assert rail_ports(node()) == ()
    slower = (hca("mlx5_0", ib_port(rate=10 * 10**9), pci_address="0000:01:00.0"), hca("mlx5_1", ib_port()))
    assert [port.name for port in rail_ports(node(hcas=slower))] == ["mlx5_1:1"]
    nics = (nic("eth1", pci_address="0000:02:00.0"), nic("eth0", pci_address="0000:01:00.0"), nic("veth0"))
    assert [port.name for port in rail_ports(node(interfaces=nics))] == ["eth0", "eth1"]


def test_a_port_that_is_down_or_runs_at_half_its_rate_leaves_the_others_their_places():
    def names(*ports):
        adapters = tuple(hca(f"mlx5_{at}", port, pci_address=f"0000:0{at}:00.0") for at, port in enumerate(ports))
        return [port.name for port in rail_ports(node(hcas=adapters))]

    assert names(ib_port(state="down", rate=10**9), ib_port()) == ["mlx5_0:1", "mlx5_1:1"]
    assert names(ib_port(rate=25 * 10**9), ib_port()) == ["mlx5_0:1", "mlx5_1:1"]
    assert names(ib_port(state="down")) == []
    second = replace(hca("mlx5_0", ib_port(state="down"), pci_address="0000:00:00.0"))
    both = replace(second, ports=(*second.ports, replace(ib_port(), port=2)))
    assert [port.name for port in rail_ports(node(hcas=(both,)))] == ["mlx5_0:2"]
    ethernet = replace(ib_port(state="down"), link_layer="ethernet")
    assert names(ib_port(), ethernet, ib_port()) == ["mlx5_0:1", "mlx5_2:1"]
    assert names(ib_port(rate=25 * 10**9), replace(ethernet, state="active")) == ["mlx5_1:1"]
    machine = hgx("a")
    broken = replace(machine.hcas[0], ports=(ib_port(state="down", rate=10**9),))
    assert len(rail_ports(replace(machine, hcas=(broken, *machine.hcas[1:])))) == 8


def test_a_bond_is_one_port_at_the_place_of_its_first_card():
    cards = (
        nic("ens1", pci_address="0000:01:00.0", controller="bond0"),
        nic("ens2", "10.2.0.1/24", pci_address="0000:02:00.0"),
        nic("ens3", pci_address="0000:03:00.0", controller="bond0"),
    )
    bond = nic("bond0", "10.1.0.1/24", kind=InterfaceKind.BOND, members=("ens1", "ens3"))
    assert [(port.rail, port.name) for port in rail_ports(node(interfaces=(*cards, bond)))] == [
        (0, "bond0"),
        (1, "ens2"),
    ]
    other = node(
        "b",
        interfaces=(
            nic("e1", "10.1.0.2/24", pci_address="0000:01:00.0"),
            nic("e2", "10.2.0.2/24", pci_address="0000:02:00.0"),
        ),
    )
    found = networks(node("a", interfaces=(*cards, bond)), other)
    assert {name: network.rail.index for name, network in found.items()} == {"10.1.0.0/24": 0, "10.2.0.0/24": 1}


def test_a_hosts_virtual_functions_are_no_rails_but_a_virtual_machine_has_nothing_else():
    functions = (hca("mlx5_1", ib_port(), virtual_function=True, pci_address="0000:02:00.0"),)
    card = hca("mlx5_0", ib_port(), pci_address="0000:01:00.0")
    assert [port.name for port in rail_ports(node(hcas=(card, *functions)))] == ["mlx5_0:1"]
    assert [port.name for port in rail_ports(node(hcas=functions))] == ["mlx5_1:1"]


def railed(name, at, *, rails=2, swapped=False):
    """RoCE ports, each on a subnet of its rail."""
    hcas, interfaces = [], []
    for rail in range(rails):
        subnet = rails - 1 - rail if swapped else rail
        address = f"0000:{rail + 1:02x}:00.0"
        interface = f"ens{rail}"
        port = replace(
            ib_port(), link_layer="ethernet", gids=(Gid(index=3, gid="x", type="roce-v2", interface=interface),)
        )
        hcas.append(hca(f"mlx5_{rail}", port, kind="roce", pci_address=address))
        interfaces.append(nic(interface, f"10.{subnet}.0.{at}/24", pci_address=address, speed_bytes_per_second=400 * G))
    return node(name, hcas=tuple(hcas), interfaces=tuple(interfaces))


def test_networks_that_join_the_same_port_of_each_node_are_rails():
    found = networks(railed("a", 1), railed("b", 2))
    rails = {name: network.rail.index for name, network in found.items() if network.rail}
    assert rails == {"10.0.0.0/24": 0, "roce:10.0.0.0/24": 0, "10.1.0.0/24": 1, "roce:10.1.0.0/24": 1}
    rail = found["roce:10.1.0.0/24"].rail
    assert (rail.verified, rail.reason[:38]) == (Evidence.ASSUMED, "it joins port 1 of the 2 nodes, by PCI")


def test_networks_that_join_different_ports_are_no_rails_nor_is_a_single_one():
    assert not any(network.rail for network in networks(railed("a", 1), railed("b", 2, swapped=True)).values())
    assert not any(network.rail for network in networks(railed("a", 1, rails=1), railed("b", 2, rails=1)).values())
    assert not any(network.rail for network in networks(railed("a", 1)).values())
    assert not any(network.rail for network in networks(hgx("a"), hgx("b", lid=20)).values())


def ruled(snapshot, *rules):
    return replace(snapshot, site_networks=rules)


def test_a_site_names_networks_and_gives_roles():
    fabric = NetworkRule(name="fabric", role="compute", subnet="10.0.0.0/15")
    found = networks(ruled(railed("a", 1), fabric), ruled(railed("b", 2), fabric))
    assert {name: (ports(network), network.role, network.configured) for name, network in found.items()} == {
        "fabric": (["a/ens0", "b/ens0", "a/ens1", "b/ens1"], "compute", True),
        "roce:fabric": (["a/mlx5_0:1", "b/mlx5_0:1", "a/mlx5_1:1", "b/mlx5_1:1"], "compute", True),
    }
    named, role = found["fabric"].reason.split("; ")
    assert named == "named so in the configuration of its nodes, which joins 10.0.0.0/24, 10.1.0.0/24"
    assert role == "its role is configured: compute"


def test_a_role_alone_leaves_the_network_and_needs_the_word_of_all_its_nodes():
    rule = NetworkRule(role="storage", interface="ens1")
    found = networks(ruled(railed("a", 1), rule), ruled(railed("b", 2), rule))
    assert (found["10.1.0.0/24"].role, found["10.0.0.0/24"].role) == ("storage", "data")
    assert found["10.1.0.0/24"].reason.endswith("its role is configured: storage")
    assert networks(ruled(railed("a", 1), rule), railed("b", 2))["10.1.0.0/24"].role == "data"
    other = replace(rule, role="management")
    differ = networks(ruled(railed("a", 1), rule), ruled(railed("b", 2), other))["10.1.0.0/24"]
    assert (differ.role, "different roles for it: storage, management" in differ.reason) == ("storage", True)


def test_names_split_what_facts_cannot_tell_apart():
    """Isolated rails with one prefix and one LID of the manager: only the site knows."""
    rules = tuple(NetworkRule(name=f"rail{rail}", interface=f"mlx5_{rail}:*") for rail in range(2))
    machines = [
        ruled(
            node(
                name,
                hcas=tuple(
                    hca(f"mlx5_{rail}", ib_port(lid=lid + rail), pci_address=f"0000:0{rail}:00.0") for rail in (0, 1)
                ),
            ),
            *rules,
        )
        for name, lid in (("a", 1), ("b", 3))
    ]
    found = networks(*machines)
    assert {name: (ports(network), network.rail.index) for name, network in found.items()} == {
        "ib:rail0": (["a/mlx5_0:1", "b/mlx5_0:1"], 0),
        "ib:rail1": (["a/mlx5_1:1", "b/mlx5_1:1"], 1),
    }


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (NetworkRule(role="compute", pkey=0x7001), True),
        (NetworkRule(role="compute", pkey=0xF001), True),
        (NetworkRule(role="compute", pkey=0x7002), False),
        (NetworkRule(role="compute", prefix="FE80:0000:0000:0000"), True),
        (NetworkRule(role="compute", prefix="fec0"), False),
        (NetworkRule(role="compute", vlan=7), False),
        (NetworkRule(role="compute", subnet="10.0.0.0/8"), False),
        (NetworkRule(role="compute"), True),
    ],
)
def test_what_rules_match_on_infiniband(rule, matches):
    port = replace(ib_port(), pkeys=(0xFFFF, 0xF001))
    (network,) = networks(ruled(node(hcas=(hca("mlx5_0", port),)), rule)).values()
    assert (network.role == "compute") == matches


def test_what_rules_match_on_ethernet():
    tagged = nic("ens1.7", "10.0.0.1/24", vlan_id=7)
    for rule in (
        NetworkRule(role="storage", vlan=7),
        NetworkRule(role="storage", interface="ens?.7", subnet="10.0.0.0/8"),
    ):
        assert networks(ruled(node(interfaces=(tagged,)), rule))["10.0.0.0/24"].role == "storage"
    for rule in (
        NetworkRule(role="storage", vlan=8),
        NetworkRule(role="storage", pkey=1),
        NetworkRule(role="storage", prefix="f"),
    ):
        assert networks(ruled(node(interfaces=(tagged,)), rule))["10.0.0.0/24"].role == "data"


def keyed(name, lid, *pkeys):
    return node(name, hcas=(hca("mlx5_0", replace(ib_port(lid=lid), pkeys=pkeys)),))


def test_ports_of_one_fabric_that_share_no_partition_are_on_networks_of_their_own():
    # As a cloud gives them: the default partition as limited members, and a tenant's in full.
    tenants = (keyed("a", 1, 0x7FFF, 0x8001), keyed("b", 2, 0x7FFF, 0x8001), keyed("c", 3, 0x7FFF, 0x8002))
    found = networks(*tenants)
    assert {name: ports(network) for name, network in found.items()} == {
        "ib:fe80:0000:0000:0000@pkey0x8001": ["a/mlx5_0:1", "b/mlx5_0:1"],
        "ib:fe80:0000:0000:0000@pkey0x8002": ["c/mlx5_0:1"],
    }
    assert "full members of partition 0x8001" in found["ib:fe80:0000:0000:0000@pkey0x8001"].reason


@pytest.mark.parametrize("pkeys", [(0xFFFF, 0x8002), (), (0x7FFF, 0x0001)])
def test_where_partitions_are_not_proven_to_differ_the_fabric_is_whole(pkeys):
    """A shared key in full, keys that are not known, and a limited member."""
    (network,) = networks(keyed("a", 1, 0xFFFF, 0x8001), keyed("b", 2, 0xFFFF, 0x8001), keyed("c", 3, *pkeys)).values()
    assert len(network.ports) == 3


def test_ports_are_together_through_others_keys():
    (network,) = networks(keyed("a", 1, 0x8001), keyed("b", 2, 0x8001, 0x8002), keyed("c", 3, 0x8002)).values()
    assert len(network.ports) == 3


RULES = st.lists(
    st.builds(
        NetworkRule,
        name=st.sampled_from(["", "one", "two"]),
        role=st.sampled_from(["", *ROLES]),
        interface=st.sampled_from(["", "ens*", "ens0", "mlx5_*"]),
        subnet=st.sampled_from(["", "10.0.0.0/15", "10.1.0.0/24", "nonsense"]),
        pkey=st.sampled_from([None, 1]),
    ),
    max_size=3,
).map(tuple)


@given(st.lists(RULES, min_size=3, max_size=3), st.booleans())
def test_rules_move_ports_between_networks_but_lose_none_and_double_none(rules, swapped):
    machines = [railed(name, at, swapped=swapped and at == 2) for at, name in enumerate("abc", start=1)]
    before = find_networks(mapping(*machines)).networks
    after = find_networks(mapping(*(ruled(one, *own) for one, own in zip(machines, rules, strict=True)))).networks

    def crossings(found):
        return sorted((network.transport, port.node, port.interface) for network in found for port in network.ports)

    assert crossings(after) == crossings(before)
    assert len({network.name for network in after}) == len(after)
    assert all(network.role in ROLES for network in after)
    assert all(network.configured for network in after if network.role not in {one.role for one in before})
