"""Questions and answers: ends by name, candidates within a node and across networks, and why not another."""

from dataclasses import replace

import pytest

from fabricd.errors import InputError, UnknownNameError
from fabricd.model.codec import from_json, to_json
from fabricd.model.device import InterfaceKind, NumaNode
from fabricd.model.measurement import Measurement
from fabricd.model.observation import Evidence
from fabricd.model.path import PathAnswer, PathType, Transport
from fabricd.model.placement import Position
from fabricd.paths.ends import Ends
from fabricd.paths.query import find_paths
from fabricd.placement.imported import Imported
from tests.support.nodes import GEN4, crossed, hgx, mapping, nic, node, nvl_tray, pci

VETH = InterfaceKind.VETH


def two_hosts():
    """Two hosts on two networks of veth, as virtual interfaces are: all say 10 Gb/s."""
    hosts = []
    for name, last in (("a", 1), ("b", 2)):
        interfaces = (
            nic("lo", "127.0.0.1/8", kind=InterfaceKind.LOOPBACK),
            nic("fast", f"10.1.0.{last}/24", kind=VETH, speed_bytes_per_second=1_250_000_000),
            nic("slow", f"10.2.0.{last}/24", kind=VETH, speed_bytes_per_second=1_250_000_000),
        )
        hosts.append(node(name, interfaces=interfaces))
    return mapping(*hosts)


def measured(interface, *, bandwidth=None, reachable=True, reason=""):
    subnet = {"fast": "10.1.0", "slow": "10.2.0"}[interface]
    return Measurement(
        src_node="id-a",
        dst_node="id-b",
        src_interface=interface,
        dst_interface=interface,
        src_address=f"{subnet}.1",
        dst_address=f"{subnet}.2",
        network=f"{subnet}.0/24",
        reachable=reachable,
        reason=reason,
        bandwidth_bytes_per_second=bandwidth,
        latency_seconds=20e-6 if reachable else None,
        age_seconds=12.0,
    )


def test_a_port_and_a_numa_node_of_this_machine():
    snapshot = node(pci=(pci("0000:00:03.0"),), interfaces=(nic("eth0", pci_address="0000:00:03.0"),))
    answer = find_paths(mapping(snapshot), "eth0", "numa0")
    (path,) = answer.paths
    assert (answer.src, answer.dst, path.rank) == ("a/eth0", "a/numa0", 1)
    assert [hop.dst for hop in path.hops] == ["a/0000:00:03.0", "a/pci0000:00", "a/machine", "a/numa0"]
    assert (path.type, path.transport) == (PathType.PHB, Transport.PCIE)
    assert path.bandwidth_bytes_per_second is None
    assert "the only candidate" in path.because


@pytest.mark.parametrize("name", ["a/eth0", "eth0", "id-a/eth0", "0000:00:03.0", "A/eth0"])
def test_names_of_one_end(name):
    snapshot = node(pci=(pci("0000:00:03.0"),), interfaces=(nic("eth0", pci_address="0000:00:03.0"),))
    if name.startswith("A"):
        with pytest.raises(UnknownNameError, match="no node called 'A'"):
            find_paths(mapping(snapshot), name, "numa0")
        return
    assert find_paths(mapping(snapshot), name, "numa0").paths


def test_names_that_do_not_exist_list_those_that_do():
    with pytest.raises(UnknownNameError, match=r"no device on b called 'eth9'.*lo, fast, slow, numa0, machine, memory"):
        find_paths(two_hosts(), "fast", "b/eth9")
    with pytest.raises(InputError, match="a name of 600 characters"):
        find_paths(two_hosts(), "x" * 600, "numa0")
    with pytest.raises(UnknownNameError):
        find_paths({}, "eth0", "eth1")


def test_two_nodes_of_one_display_name_go_by_their_ids():
    twins = {node_id: replace(one, node=replace(one.node, name="twin")) for node_id, one in two_hosts().items()}
    answer = find_paths(twins, "fast", "id-b/fast")
    assert answer.paths[0].dst == "id-b/fast"
    with pytest.raises(UnknownNameError, match=r"no node called 'twin'.*id-a, id-b"):
        find_paths(twins, "fast", "twin/fast")


def test_ends_that_nothing_leads_to_are_refused_with_the_reason():
    answer = find_paths(two_hosts(), "lo", "b/fast")
    assert answer.paths == ()
    assert [(one.name, one.reason) for one in answer.rejected] == [("a/lo", "a loopback leads nowhere but back")]


def test_every_common_network_is_a_candidate_and_what_is_none_is_told():
    answer = find_paths(two_hosts(), "a", "b")
    assert [crossed(path) for path in answer.paths] == ["10.1.0.0/24", "10.2.0.0/24"]
    assert {one.name for one in answer.rejected} == {"a/lo", "b/lo"}
    first = answer.paths[0]
    assert (first.type, first.transport, first.virtual) == (PathType.NET, Transport.ETHERNET, True)
    # A constant of the driver is no figure.
    assert first.bandwidth_bytes_per_second is None
    assert any("no hardware backs it" in reason for reason in first.because)


def test_a_port_as_an_end_uses_its_own_networks_only():
    answer = find_paths(two_hosts(), "fast", "b/slow")
    assert answer.paths == ()
    assert [(one.name, one.reason) for one in answer.rejected[-2:]] == [
        ("10.1.0.0/24", "b/slow is not on it"),
        ("10.2.0.0/24", "a/fast is not on it"),
    ]


def test_measurements_decide_and_carry_their_age():
    measurements = [measured("fast", bandwidth=2e7), measured("slow", bandwidth=7e8)]
    best, other = find_paths(two_hosts(), "a", "b", measurements=measurements).paths
    assert crossed(best) == "10.2.0.0/24"
    assert (best.bandwidth_bytes_per_second, best.evidence, best.measured_age_seconds) == (7e8, Evidence.MEASURED, 12.0)
    assert other.because[-1].startswith("narrower: a/fast - network:10.1.0.0/24 (network, 10.1.0.1, virtual) 0.02 GB/s")
    assert best.latency_seconds == pytest.approx(20e-6, rel=0.1)
    # Asked the other way round it is the same measurement.
    back = find_paths(two_hosts(), "b", "a", measurements=measurements).paths[0]
    assert (crossed(back), back.bandwidth_bytes_per_second) == ("10.2.0.0/24", 7e8)


def test_an_unreachable_network_is_no_edge():
    measurements = [measured("fast", reachable=False, reason="no route to host"), measured("slow", bandwidth=7e8)]
    answer = find_paths(two_hosts(), "a", "b", measurements=measurements)
    assert [crossed(path) for path in answer.paths] == ["10.2.0.0/24"]
    refused = {one.name: one.reason for one in answer.rejected}
    assert refused["10.1.0.0/24: a/fast - b/fast"] == "measured: no route to host"


def test_a_real_port_comes_before_a_virtual_one_of_equal_measure():
    hosts = []
    for name, last in (("a", 1), ("b", 2)):
        interfaces = (nic("aveth", f"10.1.0.{last}/24", kind=VETH), nic("eth0", f"10.2.0.{last}/24"))
        hosts.append(node(name, interfaces=interfaces))
    best, other = find_paths(mapping(*hosts), "a", "b").paths
    assert (crossed(best), best.virtual, other.virtual) == ("10.2.0.0/24", False, True)
    assert other.because[-1] == "no hardware backs it, and a path of hardware is as wide"


def test_gpus_of_one_node_over_nvlink_and_why_not_over_pcie():
    best, *others = find_paths(mapping(hgx()), "gpu0", "gpu5").paths
    assert (best.type, best.transport, best.bandwidth_bytes_per_second) == (PathType.NVL, Transport.NVLINK, 450e9)
    assert {path.type for path in others} >= {PathType.PXN}
    assert all("narrower" in path.because[-1] for path in others)


def test_a_gpu_and_the_port_of_a_peer():
    best = find_paths(mapping(hgx("a"), hgx("b", lid=20)), "a/gpu2", "b/gpu2").paths[0]
    assert best.transport is Transport.INFINIBAND
    assert [hop.link for hop in best.hops] == [
        "pcie", "pcie", "port", "network", "network", "port", "pcie", "pcie"
    ]  # fmt: skip
    assert best.hops[2].dst == "a/mlx5_2:1"
    assert (best.bandwidth_bytes_per_second, best.evidence) == (50e9, Evidence.REPORTED)


def test_gpus_of_two_hosts_in_one_nvlink_domain():
    best = find_paths(mapping(nvl_tray(0), nvl_tray(1)), "tray0/gpu1", "tray1/gpu3").paths[0]
    assert (best.type, best.transport, best.bandwidth_bytes_per_second) == (PathType.NVL, Transport.NVLINK, 900e9)
    assert len(best.hops) == 2


def test_numa_nodes_of_one_machine_share_memory():
    two = (NumaNode(index=0, cpus=(0,)), NumaNode(index=1, cpus=(1,)))
    (best, *_) = find_paths(mapping(node(numa=two)), "numa0", "numa1").paths
    assert (best.type, best.transport, best.evidence) == (PathType.SYS, Transport.SHM, Evidence.ASSUMED)
    (same,) = find_paths(mapping(node()), "numa0", "numa0").paths
    assert (same.type, same.transport, same.hops) == (PathType.LOC, Transport.SELF, ())


def test_two_ports_behind_one_card():
    devices = (pci("0000:17:00.0", link=GEN4, numa_node=0), pci("0000:17:00.1", link=GEN4, numa_node=0))
    interfaces = tuple(nic(f"eth{n}", pci_address=f"0000:17:00.{n}", speed_bytes_per_second=10**9) for n in (0, 1))
    (best, *_) = find_paths(mapping(node(pci=devices, interfaces=interfaces)), "eth0", "eth1").paths
    assert (best.type, [hop.link for hop in best.hops]) == (PathType.PIX, ["port", "port"])


def test_an_answer_goes_over_the_wire_and_comes_back_the_same():
    answer = find_paths(two_hosts(), "a", "b", measurements=[measured("slow", bandwidth=7e8)])
    assert from_json(to_json(answer), PathAnswer) == answer


def test_at_most_so_many_candidates():
    assert len(find_paths(mapping(hgx()), "gpu0", "gpu5", candidates=2).paths) == 2
    with pytest.raises(InputError, match="between 1 and 16"):
        find_paths(mapping(hgx()), "gpu0", "gpu5", candidates=0)


def explained_classes(*args):
    answer = find_paths(*args, explain=True)
    return {one.name: one.reason for one in answer.rejected if one.name in set(Transport)}


def test_explain_says_why_each_better_class_is_none():
    assert explained_classes(two_hosts(), "a", "b") == {
        "nvlink": "a has no GPU",
        "infiniband": "a has no InfiniBand port",
        "roce": "a has no RoCE port",
        "efa": "a has no EFA port",
        "slingshot": "a has no Slingshot port",
    }
    ours, theirs = hgx("a"), hgx("b", lid=20)
    down = tuple(replace(hca, ports=(replace(hca.ports[0], state="down"),)) for hca in theirs.hcas[:2])
    both = [replace(one, interfaces=(nic("eno1", f"10.0.0.{at}/24"),)) for at, one in ((1, ours), (2, theirs))]
    reasons = explained_classes(mapping(both[0], replace(both[1], hcas=down)), "a/gpu0", "b/gpu0")
    assert reasons["infiniband"] == "b has no InfiniBand port that is up (mlx5_0:1 is down, mlx5_1:1 is down)"
    other = tuple(replace(hca, ports=(replace(hca.ports[0], sm_lid=77),)) for hca in theirs.hcas)
    reasons = explained_classes(mapping(both[0], replace(both[1], hcas=other)), "a/gpu0", "b/gpu0")
    fabrics = "a: ib:fe80:0000:0000:0000@sm1; b: ib:fe80:0000:0000:0000@sm77"
    assert reasons["infiniband"] == f"the nodes are on different InfiniBand networks ({fabrics})"


def test_explain_within_a_node():
    assert explained_classes(mapping(hgx(nvswitch=False)), "gpu0", "gpu5") == {
        "nvlink": "a/gpu0 has no NVLink that is known to be active",
        "c2c": "a/gpu0 has no C2C that is known to be active",
    }
    assert explained_classes(mapping(hgx()), "gpu0", "mlx5_0")["nvlink"] == ("a/mlx5_0:1 (hca-port) has no NVLink")
    assert explained_classes(mapping(hgx()), "gpu0", "gpu1") == {}


def test_capacity_of_a_pair_over_all_its_paths():
    answer = find_paths(mapping(hgx()), "gpu0", "gpu1", with_capacity=True)
    # NVLink, and the GPU's own PCIe link beside it.
    assert answer.capacity.bandwidth_bytes_per_second == 450e9 + 63015384608
    assert {hop.src for hop in answer.capacity.bottleneck} == {"a/gpu0"}
    assert find_paths(mapping(hgx()), "gpu0", "gpu1").capacity is None


def test_capacity_between_nodes_is_that_of_all_ports_of_the_best_transport():
    ours, theirs = hgx("a"), hgx("b", lid=20)
    both = [replace(one, interfaces=(nic("eno1", f"10.0.0.{at}/24"),)) for at, one in ((1, ours), (2, theirs))]
    answer = find_paths(mapping(*both), "a/gpu0", "b/gpu0", with_capacity=True)
    # Seven cards of others by NVLink and the own one by PCIe; the eight cards of 50 GB/s bound it.
    assert answer.capacity.bandwidth_bytes_per_second == 400e9
    assert len(answer.capacity.bottleneck) == 8
    one = find_paths(mapping(*both), "a/mlx5_0", "b/mlx5_3", with_capacity=True)
    assert one.capacity.bandwidth_bytes_per_second == 50e9


def test_a_node_stands_for_any_of_its_memory():
    best = find_paths(mapping(hgx("a"), hgx("b", lid=20)), "a", "b").paths[0]
    # Not over the interconnect: the memory beside the card will do.
    assert best.bandwidth_bytes_per_second == 50e9
    assert [hop.dst for hop in best.hops[:2]] == ["a/numa0", "a/pci0000:00"]
    (local, *_) = find_paths(mapping(hgx("a")), "a", "mlx5_7").paths
    assert (local.bandwidth_bytes_per_second, local.type) == (50e9, PathType.PHB)
    # A device at an unknown NUMA node is near some memory too.
    two = (NumaNode(index=0, cpus=(0,)), NumaNode(index=1, cpus=(1,)))
    fast = nic("eth0", pci_address="0000:00:03.0", speed_bytes_per_second=25 * 10**9)
    snapshot = node(numa=two, pci=(pci("0000:00:03.0"),), interfaces=(fast,))
    assert find_paths(mapping(snapshot), "eth0", "a").paths[0].bandwidth_bytes_per_second == 25e9
    assert find_paths(mapping(snapshot), "eth0", "numa1").paths[0].bandwidth_bytes_per_second == 10e9


@pytest.mark.parametrize(
    ("ours", "theirs", "gdr"), [(True, True, True), (True, False, False), (None, True, None), (None, False, False)]
)
def test_gpudirect_needs_both_ends(ours, theirs, gdr):
    ends = [
        replace(one, hcas=tuple(replace(card, dmabuf=can, peer_memory=can) for card in one.hcas))
        for one, can in ((hgx("a"), ours), (hgx("b", lid=20), theirs))
    ]
    assert find_paths(mapping(*ends), "a/gpu0", "b/gpu0").paths[0].gdr is gdr
    assert find_paths(mapping(*ends), "a", "b").paths[0].gdr is None


def test_what_is_near_at_hand_is_known_and_small_and_waits_for_nobody(monkeypatch):
    nodes = mapping(hgx("a"), hgx("b", lid=101))
    ends = Ends()
    assert not ends.are_near_at_hand(nodes, ("a/gpu0", "b/gpu0"))  # their kind is not known
    find_paths(nodes, "a/gpu0", "b/gpu0", ends=ends)
    assert ends.are_near_at_hand(nodes, ("a/gpu0", "b/gpu0"))
    assert ends.are_near_at_hand(nodes, ("gpu0", "b"))
    assert not ends.are_near_at_hand(nodes, ("a/gpu0", "a/gpu1"))
    assert not ends.are_near_at_hand(nodes, ("a/gpu0", "c/gpu0"))
    with ends._lock:
        assert not ends.are_near_at_hand(nodes, ("a/gpu0", "b/gpu0"))
    monkeypatch.setattr("fabricd.paths.ends._FEW_PORTS", 15)
    assert not ends.are_near_at_hand(nodes, ("a/gpu0", "b/gpu0"))


@pytest.mark.parametrize("by_file", [False, True])
def test_where_ports_have_met_no_switch_what_is_said_of_their_nodes_counts(by_file):
    leaves = {"a": "leaf1", "b": "leaf1", "c": "leaf2"}
    said = {name: Position(source="slurm", origin="t.conf", switches=(leaf, "top")) for name, leaf in leaves.items()}
    own = {} if by_file else said
    nodes = mapping(*(placed(hgx(name, lid=lid), own.get(name)) for name, lid in (("a", 1), ("b", 20), ("c", 40))))
    imports = [Imported(origin="t.conf", positions=said)] if by_file else []
    near, far = (find_paths(nodes, "a/gpu0", f"{name}/gpu0", imports=imports).paths[0] for name in "bc")
    assert "slurm (t.conf) puts both nodes below leaf1" in near.because
    told = "slurm (t.conf) puts a below leaf1 and c below leaf2: it goes over links between switches that others share"
    assert told in far.cautions
    assert not near.cautions
    assert far.latency_seconds > near.latency_seconds
    unknown = find_paths(mapping(hgx("a"), hgx("b", lid=20)), "a/gpu0", "b/gpu0").paths[0]
    assert unknown.latency_seconds == near.latency_seconds
    assert not any("below" in one for one in unknown.because)


def placed(snapshot, position):
    return replace(snapshot, positions=(position,) if position else ())


def test_names_of_switches_by_two_sources_are_not_compared():
    a = replace(hgx("a"), positions=(Position(source="slurm", switches=("leaf1",)),))
    b = replace(hgx("b", lid=20), positions=(Position(source="aws", switches=("nn-1",)),))
    assert not find_paths(mapping(a, b), "a/gpu0", "b/gpu0").paths[0].cautions
