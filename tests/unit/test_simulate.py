"""Simulated clusters: the same every time, no two nodes alike where they must not be, and right to who reads them."""

from collections import Counter
from dataclasses import replace

import pytest

from fabricd.errors import InputError, UnknownNameError
from fabricd.findings.find import find, findings_of
from fabricd.graph.networks import find_networks
from fabricd.graph.simulate.design import Design, ports_of
from fabricd.graph.simulate.nodes import simulate
from fabricd.graph.simulate.templates import TEMPLATES, load_template
from fabricd.model.codec import content_hash
from fabricd.model.path import Transport
from fabricd.paths.query import find_paths
from tests.support.nodes import node
from tests.support.templates import unique_facts


def design(name="h100", nodes=20, **fields):
    return replace(Design(template=load_template(name), name=name, nodes=nodes, leaf=8), **fields)


def cluster(*arguments, **fields):
    return {one.node_id: one.snapshot for one in simulate(design(*arguments, **fields))}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_nodes_share_no_identity_and_are_the_same_every_time(name):
    nodes = cluster(name)
    seen = Counter(one for snapshot in nodes.values() for one in unique_facts(snapshot))
    assert [one for one, count in seen.items() if count > 1] == []
    assert nodes == cluster(name)
    assert nodes.keys().isdisjoint(cluster(name, seed=1))
    for snapshot in nodes.values():
        assert not snapshot.this_host
        assert snapshot.content_hash == content_hash(snapshot)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_nothing_is_wrong_but_what_is_wrong_with_the_machine_itself(name):
    template = load_template(name)
    own = {one.code for one in findings_of(template)}
    nodes = cluster(name, nodes=4)
    found = find(nodes, {node_id: one.node.name for node_id, one in nodes.items()})
    assert {one.code for one in found.findings} <= own


@pytest.mark.parametrize(
    ("name", "src", "dst", "transport", "rate"),
    [
        ("a100", "gpu0", "gpu0", Transport.INFINIBAND, 25e9),
        ("h100", "gpu3", "gpu3", Transport.INFINIBAND, 50e9),
        ("b200", "gpu3", "gpu3", Transport.ROCE, 50e9),
        ("gb200", "gpu0", "gpu3", Transport.NVLINK, 18 * 53.125e9),
        ("cpu", "numa0", "numa0", Transport.INFINIBAND, 25e9),
        ("aws-p5", "gpu0", "gpu0", Transport.EFA, 12.5e9),
        ("pcie", "gpu0", "gpu0", Transport.ROCE, 12.5e9),
    ],
)
def test_the_best_path_between_two_nodes_is_over_the_rails(name, src, dst, transport, rate):
    nodes = cluster(name, nodes=10)
    names = [snapshot.node.name for snapshot in nodes.values()]
    best = find_paths(nodes, f"{names[0]}/{src}", f"{names[9]}/{dst}").paths[0]
    assert best.transport is transport
    assert best.bandwidth_bytes_per_second == pytest.approx(rate, rel=0.01)


def test_nvlink_domains_end_where_racks_do():
    nodes = cluster("gb200", nodes=6, domain=3)
    names = [snapshot.node.name for snapshot in nodes.values()]
    within = find_paths(nodes, f"{names[0]}/gpu0", f"{names[2]}/gpu0").paths[0]
    across = find_paths(nodes, f"{names[2]}/gpu0", f"{names[3]}/gpu0").paths[0]
    assert (within.transport, across.transport) == (Transport.NVLINK, Transport.INFINIBAND)


def test_leaves_are_one_for_each_rail_and_so_many_nodes():
    nodes = list(cluster(nodes=20, spines=2).values())
    assert nodes[9].lldp[0].system_name == "leaf-front-0001"
    (fabric,) = nodes[9].ib_fabrics
    leaves = [switch for switch in fabric.switches if switch.hops == 1]
    assert [switch.name for switch in leaves] == [f"leaf-r{rail}-0001" for rail in range(8)]
    assert [switch.name for switch in fabric.switches if switch.hops == 2] == ["spine-00", "spine-01"]
    assert (leaves[0].hca_links, leaves[0].switch_links, fabric.hca_count) == (8, 2, 160)
    assert fabric.switch_count == 3 * 8 + 2
    assert nodes[19].ib_fabrics[0].switches[0].hca_links == 4  # the last leaf has the rest
    fewer = next(iter(cluster(nodes=20, rails=2).values()))
    assert {link.local_port for link in fewer.ib_fabrics[0].switches[0].links if link.local_port} == {
        f"mlx5_{number}:1" for number in range(4)
    }


def test_rails_without_a_spine_are_fabrics_of_their_own():
    nodes = cluster(nodes=8, spines=0)
    found = [one for one in find_networks(nodes).networks if one.transport is Transport.INFINIBAND]
    assert len(found) == 8
    assert {len({port.interface for port in network.ports}) for network in found} == {1}


def test_rails_that_no_subnet_has_addresses_for_are_subnets_of_their_own():
    many = next(iter(simulate(design(nodes=10_000)))).snapshot
    assert len({port.gids[0].gid[:19] for hca in many.hcas[:8] for port in hca.ports}) == 8
    few = next(iter(simulate(design(nodes=1_000)))).snapshot
    assert len({port.gids[0].gid[:19] for hca in few.hcas[:8] for port in hca.ports}) == 1


@pytest.mark.parametrize("name", ["h100", "pcie", "aws-p5"])
def test_faults_are_where_the_notes_say_and_nowhere_else(name):
    sound = {one.name: one.snapshot for one in simulate(design(name, nodes=6))}
    told = Counter()
    for one in simulate(design(name, nodes=6, degraded=2, missing=2, down=2)):
        before, after = sound[one.name], one.snapshot
        faults = dict(part.split(" is ") for part in one.note.split("; ")[1:])
        told.update(faults.values())
        for hca in before.hcas:
            fault = faults.get(f"{hca.name}:1")
            now = next((other for other in after.hcas if other.name == hca.name), None)
            if fault == "missing":
                assert now is None
                assert hca.pci_address not in {device.pci_address for device in after.interfaces}
                assert hca.pci_address not in {device.address for device in after.pci}
            elif fault == "down":
                assert now.ports[0].state == "down"
            elif fault == "degraded":
                assert now.ports[0].rate_bytes_per_second * 2 == hca.ports[0].rate_bytes_per_second
            else:
                assert now == hca
        if not faults:
            assert (after.gpus, after.pci, after.interfaces) == (before.gpus, before.pci, before.interfaces)
    assert told == {"degraded": 2, "missing": 2, "down": 2}


def test_a_port_that_is_down_is_no_way_and_a_degraded_one_is_a_slower_one():
    for fault, rails in (("down", 7), ("missing", 7), ("degraded", 8)):
        statuses = list(simulate(design(nodes=1, **{fault: 1}))) + list(simulate(design(name="h100", nodes=2)))[1:]
        nodes = {one.node_id: one.snapshot for one in statuses}
        broken = statuses[0].note.split("; ")[1].split(":")[0]
        rail = broken.removeprefix("mlx5_")
        names = [one.name for one in statuses]
        best = find_paths(nodes, f"{names[0]}/gpu{rail}", f"{names[1]}/gpu{rail}").paths[0]
        assert best.transport is Transport.INFINIBAND
        assert not any(hop.src == f"{names[0]}/{broken}:1" for hop in best.hops)
        fast = [one for one in statuses[0].snapshot.hcas if one.ports[0].rate_bytes_per_second == 50 * 10**9]
        assert len([one for one in fast if one.ports[0].state == "active"]) == 7
        assert len(statuses[0].snapshot.hcas) - 2 == (8 if fault == "down" else rails)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"nodes": 0}, "0 nodes"),
        ({"nodes": 70_000}, "70000 nodes"),
        ({"rails": 9}, "9 rails need 9 ports"),
        ({"rails": 1}, "8 ports on 1 rails"),
        ({"spines": 0, "nodes": 20}, "need a spine"),
        ({"down": 200, "nodes": 20}, "200 ports are to be broken"),
        ({"nodes": 60_000}, "more than the 49151 of an InfiniBand subnet"),
        ({"template": node("bare")}, "no port that is up"),
        ({"leaf": 0}, "0 nodes under a leaf"),
        ({"down": -1}, "-1 broken ports"),
    ],
)
def test_what_is_not_possible_is_refused(fields, told):
    with pytest.raises(InputError, match=told):
        simulate(design(**fields))


def test_an_unknown_template_names_those_there_are():
    with pytest.raises(UnknownNameError, match="h100"):
        load_template("h1000")


def test_ports_are_told_apart_by_what_they_are():
    ports = ports_of(design("gb200"))
    assert [port.name for port in ports.rails] == ["mlx5_0:1", "mlx5_1:1", "mlx5_3:1", "mlx5_4:1"]
    assert [port.name for port in ports.front] == ["mlx5_2:1"]
    efa = ports_of(design("aws-p5"))
    assert (efa.rail_count, efa.width, [port.rail for port in efa.rails[:5]]) == (8, 4, [0, 0, 0, 0, 1])
