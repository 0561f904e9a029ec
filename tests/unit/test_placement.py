"""Where nodes stand: by what their ports have met, by what is said of them, and by both."""

from dataclasses import replace

from fabricd.graph.networks import find_networks
from fabricd.graph.placement import leaf_rails, placement
from fabricd.model.device import LldpNeighbor
from fabricd.model.infiniband import IbFabric, IbLink, IbSwitch
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.placement import Place, Position
from fabricd.placement.imported import Imported
from tests.support.nodes import hca, ib_port, mapping, nic, node, nvl_tray


def heard(name, *switches, chassis=None, **fields):
    """A node with one fast port for each switch that it hears."""
    interfaces = tuple(
        nic(f"ens{at}", f"10.{at}.0.1/24", pci_address=f"0000:0{at}:00.0") for at in range(len(switches))
    )
    told = tuple(
        LldpNeighbor(interface=f"ens{at}", system_name=switch, chassis_id=chassis or f"id of {switch}")
        for at, switch in enumerate(switches)
    )
    return replace(node(name, interfaces=interfaces, lldp=told), **fields)


def places(*snapshots, imports=()):
    return {node_id.removeprefix("id-"): place for node_id, place in placement(mapping(*snapshots), imports).items()}


def test_lldp_tells_the_leaf_of_each_rail():
    found = places(heard("a", "leaf1", "leaf2"), heard("b", "leaf1", "leaf2"), heard("c", "leaf3", "leaf4"))
    assert {name: place.leaf for name, place in found.items()} == {"a": "leaf1", "b": "leaf1", "c": "leaf3"}
    assert [(rail.rail, rail.port, rail.switches) for rail in found["c"].rails] == [
        (0, "ens0", ("leaf3",)),
        (1, "ens1", ("leaf4",)),
    ]
    assert (found["a"].evidence, found["a"].spine) == (Evidence.REPORTED, "")
    assert found["a"].because == ("ens0 goes into leaf1: LLDP", "and 1 more ports")


def test_a_node_whose_first_port_has_no_link_stands_where_its_neighbours_of_the_next_rail_do():
    whole = heard("a", "leaf1", "leaf2")
    down = heard("b", "leaf1", "leaf2")
    down = replace(
        down, interfaces=(replace(down.interfaces[0], oper_state="down"), *down.interfaces[1:]), lldp=down.lldp[1:]
    )
    found = places(whole, down, heard("c", "leaf3", "leaf4"))
    assert [place.leaf for place in found.values()] == ["leaf1", "leaf1", "leaf3"]
    assert found["b"].rails[0].switches == ()
    assert found["b"].because[-1] == "ens0 has met no switch; nodes on leaf2 go into leaf1 with theirs"
    assert places(down)["b"].leaf == "leaf2"


def test_switches_that_call_themselves_alike_are_told_apart_by_their_ids():
    found = places(heard("a", "cumulus", chassis="02:01"), heard("b", "cumulus", chassis="02:02"))
    assert [place.leaf for place in found.values()] == ["cumulus (02:01)", "cumulus (02:02)"]
    assert places(heard("a", "", chassis="02:01"))["a"].leaf == "02:01"


def test_a_bond_into_two_switches_goes_into_both():
    members = tuple(nic(f"ens{at}", controller="bond0") for at in range(2))
    port = replace(ib_port(), link_layer="ethernet", gids=())
    told = tuple(LldpNeighbor(interface=f"ens{at}", system_name=f"leaf{2 - at}") for at in range(2))
    bond = nic("bond0", "10.0.0.1/24", rdma_device="mlx5_bond_0", members=("ens0", "ens1"))
    (place,) = places(
        node(interfaces=(*members, bond), hcas=(hca("mlx5_bond_0", port, kind="roce"),), lldp=told)
    ).values()
    assert place.leaf == "leaf1+leaf2"


def walked(name, leaf, *above, lid=1):
    """A node whose walk met its leaf, which is linked to the switches above."""
    links = (
        IbLink(port=1, peer="adapter", peer_port=1, local_port="mlx5_0:1"),
        *(IbLink(port=2 + at, peer=guid, peer_port=1) for at, guid in enumerate(above)),
    )
    switches = (
        IbSwitch(guid=leaf, name=f"switch {leaf}", links=links),
        *(IbSwitch(guid=guid, name=f"switch {guid}", hops=2) for guid in above),
    )
    fabric = IbFabric(guid="0x0", switch_count=9, hca_count=9, link_count=9, switches=switches)
    return node(name, hcas=(hca("mlx5_0", ib_port(lid=lid)),), ib_fabrics=(fabric,))


def test_leaves_with_a_switch_above_in_common_are_one_group():
    found = places(
        walked("a", "0x1", "0x8", "0x9"),
        walked("b", "0x2", "0x9", "0x7"),
        walked("c", "0x3", "0x6"),
        walked("d", "0x4"),
    )
    assert {name: place.switches for name, place in found.items()} == {
        "a": ("switch 0x1", "switch 0x7"),
        "b": ("switch 0x2", "switch 0x7"),
        "c": ("switch 0x3", "switch 0x6"),
        "d": ("switch 0x4",),
    }
    assert found["a"].because[0] == "mlx5_0:1 goes into switch 0x1: a walk over the InfiniBand fabric"


def test_a_group_is_called_by_a_switch_that_carries_no_node_where_there_is_one():
    found = places(walked("a", "0x1", "0x5", "0x9"), walked("storage", "0x5", "0x1"))
    assert [place.spine for place in found.values()] == ["switch 0x9", "switch 0x9"]


def test_one_fabric_has_rails_where_each_leaf_carries_ports_of_one_place():
    def rails(*snapshots):
        nodes = mapping(*snapshots)
        (network,) = [one for one in find_networks(nodes).networks if one.transport is Transport.INFINIBAND]
        return leaf_rails(network, placement(nodes))

    def railed(name, lid, *leaves):
        adapters = tuple(hca(f"mlx5_{at}", ib_port(lid=lid + at), pci_address=f"0000:0{at}:00.0") for at in range(2))
        links = [IbLink(port=lid, peer="x", peer_port=1, local_port=f"mlx5_{at}:1") for at in range(2)]
        up = IbLink(port=40, peer="0x9", peer_port=1)
        switches = tuple(
            IbSwitch(guid=leaf, links=(*(link for link, to in zip(links, leaves, strict=True) if to == leaf), up))
            for leaf in dict.fromkeys(leaves)
        )
        fabric = IbFabric(
            guid="0x0", switch_count=9, hca_count=9, link_count=9, switches=(*switches, IbSwitch(guid="0x9"))
        )
        return node(name, hcas=adapters, ib_fabrics=(fabric,))

    assert rails(railed("a", 1, "0x1", "0x2"), railed("b", 3, "0x1", "0x2"), railed("c", 5, "0x3", "0x4")) == 2
    assert rails(railed("a", 1, "0x1", "0x2"), railed("b", 3, "0x2", "0x1")) == 0
    assert rails(railed("a", 1, "0x1", "0x1"), railed("b", 3, "0x1", "0x1")) == 0


def test_what_is_said_fills_what_was_not_met():
    slurm = Position(source="slurm", origin="t.conf", switches=("s1", "top"), block="su1")
    cloud = Position(source="aws", switches=("n1", "n2", "n3"), zone="z1", region="r1", rack="k")
    found = places(heard("a", "leaf1", positions=(slurm, cloud)), node("b", positions=(cloud,)), node("c"))
    assert found["a"] == Place(
        node="id-a",
        switches=("leaf1", "top"),
        evidence=Evidence.REPORTED,
        rails=found["a"].rails,
        block="su1",
        rack="k",
        zone="z1",
        region="r1",
        because=(
            "ens0 goes into leaf1: LLDP",
            "the switches above that: slurm (t.conf)",
            "its block: slurm (t.conf)",
            "its rack: aws",
            "its zone: aws",
            "its region: aws",
        ),
    )
    assert (found["b"].leaf, found["b"].spine, found["b"].core) == ("n1", "n2", "n3")
    assert found["b"].evidence is Evidence.ASSUMED
    assert found["c"] == Place(node="id-c")


def test_what_is_given_with_the_question_comes_before_what_nodes_publish():
    own = Position(source="kubernetes", switches=("old",), block="b0")
    given = Imported(origin="new.conf", positions={"a": Position(source="slurm", switches=("new",))})
    found = places(node("a", positions=(own,)), node("b", positions=(own,)), imports=(given,))
    assert [(place.leaf, place.block) for place in found.values()] == [("new", "b0"), ("old", "b0")]
    assert found["a"].because[0] == "its switches: slurm (new.conf)"


def test_a_file_that_groups_nodes_otherwise_than_their_ports_is_told():
    conf = {name: Position(source="slurm", switches=(leaf,)) for name, leaf in (("a", "s1"), ("b", "s2"), ("c", "s2"))}
    found = places(
        heard("a", "leaf1"), heard("b", "leaf1"), heard("c", "leaf2"), imports=(Imported(origin="f", positions=conf),)
    )
    sentence = "slurm (f) puts nodes that go into leaf1 below several switches: s1, s2"
    assert [sentence in place.because for place in found.values()] == [True, True, False]


def test_nvlink_domains_are_the_gpus_own_word_first():
    said = Position(source="kubernetes", nvlink_domain="rack7")
    other = nvl_tray(1)
    gpu = replace(other.gpus[0], fabric=replace(other.gpus[0].fabric, clique_id=2))
    mixed = replace(other, gpus=(gpu, *other.gpus[1:]))
    found = places(replace(nvl_tray(0), positions=(said,)), mixed, node("c", positions=(said,)))
    assert [place.nvlink_domain for place in found.values()] == ["d0.1", "", "rack7"]
