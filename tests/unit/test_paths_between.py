"""Paths between nodes in detail: estimates, ports' facts, NVLink domains, and what is kept between questions."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.networks_nvlink import out_of_domain
from fabricd.model.device import Gid, HcaPort, NetInterface
from fabricd.model.measurement import Measurement
from fabricd.model.observation import Evidence, Outcome, ProbeReport
from fabricd.model.path import Path, PathType, Policy, Transport
from fabricd.model.placement import Position
from fabricd.model.routing import Route
from fabricd.model.snapshot import Snapshot
from fabricd.paths.ends import Ends, likeness
from fabricd.paths.estimate import MAX_BYTES, Comparison, estimate
from fabricd.paths.query import find_paths
from fabricd.paths.rank import figures_of, order_key, ranked
from tests.support.nodes import hca, hgx, ib_port, mapping, nic, node, nvl_tray

FAST = Path(src="a", dst="b", type=PathType.NET, transport=Transport.ETHERNET, network="x")
paths = st.builds(
    replace,
    st.just(FAST),
    transport=st.sampled_from([one for one in Transport if one is not Transport.SELF]),
    bandwidth_bytes_per_second=st.none() | st.floats(1e6, 1e12),
    latency_seconds=st.none() | st.floats(0, 1),
    unverified=st.sampled_from([(), ("it lacks something",)]),
    cautions=st.sampled_from([(), ("slow",), ("slow", "old")]),
    role=st.sampled_from(["", "data", "storage", "management"]),
    virtual=st.booleans(),
)


@given(paths, st.integers(1, MAX_BYTES // 2), st.integers(1, 1000))
def test_more_bytes_and_more_flows_never_take_less_time(path, size, flows):
    once = estimate(path, Comparison(bytes=size, flows=flows))
    for more in (Comparison(bytes=2 * size, flows=flows), Comparison(bytes=size, flows=flows + 1)):
        longer = estimate(path, more)
        assert (once.time_seconds is None) == (longer.time_seconds is None) == (path.bandwidth_bytes_per_second is None)
        if once.time_seconds is not None:
            assert longer.time_seconds >= once.time_seconds
            assert once.time_seconds == (once.latency_seconds or 0.0) + once.transfer_seconds


@given(st.lists(paths, max_size=6), st.sampled_from(list(Policy)), st.randoms(use_true_random=False))
def test_the_order_does_not_depend_on_the_order_of_arrival(found, policy, chance):
    comparison = Comparison(policy=policy)
    in_order = ranked(found, comparison)
    chance.shuffle(found)
    assert [order_key(figures_of(path), comparison) for path in ranked(found, comparison)] == [
        order_key(figures_of(path), comparison) for path in in_order
    ]
    verified = [bool(path.unverified) for path in in_order]
    assert verified == sorted(verified)


@given(st.lists(paths, max_size=6))
def test_by_priority_a_class_never_comes_after_a_worse_one(found):
    alike = [replace(path, unverified=(), role="data") for path in found]
    order = [list(Transport).index(path.transport) for path in ranked(alike, Comparison(policy=Policy.PRIORITY))]
    assert order == sorted(order)


@pytest.mark.parametrize(("fields", "said"), [({"bytes": 0}, "0 bytes"), ({"flows": 1 << 21}, "2097152 flows")])
def test_sizes_and_flows_have_bounds(fields, said):
    with pytest.raises(InputError, match=said):
        Comparison(**fields)


def roce(name: str, address: str, *, mtu: int = 4096, index: int = 3, gid_type: str = "roce-v2") -> Snapshot:
    """A node with a RoCE card of 100 Gb/s, and a slow port on a network that all share."""
    last = address.partition("/")[0].rpartition(".")[2]
    octets = [int(one) for one in address.partition("/")[0].split(".")]
    mapped = "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*octets)
    port = HcaPort(
        port=1, state="active", link_layer="ethernet", rate_bytes_per_second=12_500_000_000, active_mtu=mtu,
        gids=(
            Gid(index=0, gid="fe80:0000:0000:0000:0000:0000:0000:0001", type="roce-v2", interface="ens1"),
            Gid(index=2, gid=mapped, type="roce-v1", interface="ens1"),
            Gid(index=index, gid=mapped, type=gid_type, interface="ens1"),
        ),
    )  # fmt: skip
    data = nic("ens1", address, speed_bytes_per_second=12_500_000_000, mtu=9000)
    shared = nic("eno1", f"172.16.0.{last}/24", speed_bytes_per_second=125_000_000)
    return node(name, hcas=(hca("mlx5_0", port, kind="roce"),), interfaces=(data, shared))


def test_the_gid_that_stands_for_the_address_is_named_and_its_version():
    best = find_paths(mapping(roce("a", "10.0.0.1/24"), roce("b", "10.0.0.2/24", index=5)), "a", "b").paths[0]
    assert best.transport is Transport.ROCE
    assert [(end.gid_index, end.gid_type, end.address) for end in best.ends] == [
        (3, "roce-v2", "10.0.0.1"),
        (5, "roce-v2", "10.0.0.2"),
    ]
    assert "10.0.0.1, GID 3 (roce-v2), MTU 4096" in [hop.detail for hop in best.hops]
    assert best.cautions == ()


def test_a_gid_table_without_the_address_in_version_2_is_said():
    best = find_paths(mapping(roce("a", "10.0.0.1/24"), roce("b", "10.0.0.2/24", gid_type="")), "a", "b").paths[0]
    assert best.cautions == ("b: the GID table of mlx5_0:1 has no RoCE v2 entry for 10.0.0.2",)


def soft_roce(name: str, address: str, speed: int | None) -> Snapshot:
    """A node with Soft-RoCE on its only interface."""
    base = roce(name, address)
    return replace(
        base,
        hcas=(replace(base.hcas[0], name="rxe0", kind="soft-roce"),),
        interfaces=(replace(base.interfaces[0], speed_bytes_per_second=speed),),
    )


@pytest.mark.parametrize("speed", [None, 125_000_000, 12_500_000_000])
def test_rdma_that_software_does_comes_behind_tcp_until_it_is_measured(speed):
    nodes = mapping(soft_roce("a", "10.0.0.1/24", speed), soft_roce("b", "10.0.0.2/24", speed))
    best, other = find_paths(nodes, "a", "b", explain=True).paths
    assert (best.transport, other.transport) == (Transport.ETHERNET, Transport.ROCE)
    assert other.cautions == tuple(f"{one}: rxe0:1 is RDMA done by software on ens1" for one in "ab")
    assert other.because[-1] == "RDMA done by software: it comes after ethernet until somebody measures it"
    by_class = find_paths(nodes, "a", "b", comparison=Comparison(policy=Policy.PRIORITY)).paths
    assert [path.transport for path in by_class] == [Transport.ROCE, Transport.ETHERNET]

    def sent(network: str, bandwidth: float, age: float) -> Measurement:
        return Measurement(
            src_node="id-a", dst_node="id-b", src_interface="?", dst_interface="?", src_address="10.0.0.1",
            dst_address="10.0.0.2", network=network, reachable=True, latency_seconds=2e-5,
            bandwidth_bytes_per_second=bandwidth, age_seconds=age,
        )  # fmt: skip

    for by_rdma, first in ((2e9, Transport.ROCE), (5e8, Transport.ETHERNET)):
        figures = [sent("10.0.0.0/24", 1e9, 5.0), sent("roce:10.0.0.0/24", by_rdma, 1.0)]
        paths = find_paths(nodes, "a", "b", measurements=figures).paths
        assert paths[0].transport is first
        assert {path.bandwidth_bytes_per_second for path in paths} == {1e9, by_rdma}


def test_mtus_that_differ_are_said():
    best = find_paths(mapping(roce("a", "10.0.0.1/24"), roce("b", "10.0.0.2/24", mtu=1024)), "a", "b").paths[0]
    (caution,) = best.cautions
    assert caution.startswith("the MTU differs (4096 at a/mlx5_0:1, 1024 at b/mlx5_0:1)")


def routed(snapshot: Snapshot, far: str) -> Snapshot:
    return replace(snapshot, routes=(Route(destination=far, family=4, interface="ens1", gateway="10.0.0.254"),))


def test_in_google_cloud_roce_does_not_leave_a_zone():
    def at(name: str, address: str, zone: str, source: str = "gcp") -> Snapshot:
        return replace(roce(name, address), positions=(Position(source=source, zone=zone),))

    a, near, far = (
        at("a", "10.0.0.1/24", "us-east4-b"),
        at("b", "10.0.0.2/24", "us-east4-b"),
        at("b", "10.0.0.2/24", "us-east4-c"),
    )
    assert find_paths(mapping(a, near), "a", "b").paths[0].network == "roce:10.0.0.0/24"
    answer = find_paths(mapping(a, far), "a", "b", explain=True)
    assert Transport.ROCE not in {path.transport for path in answer.paths}
    reasons = {one.name: one.reason for one in answer.rejected}
    assert reasons["roce:10.0.0.0/24@us-east4-b"] == "only a is on it"
    # One that tells no zone may be in any; other clouds' networks are not of that kind.
    for other in (roce("b", "10.0.0.2/24"), at("b", "10.0.0.2/24", "2", source="slurm")):
        assert find_paths(mapping(a, other), "a", "b").paths[0].transport is Transport.ROCE


def test_roce_goes_where_routes_lead_though_the_nodes_share_another_subnet():
    a, b = routed(roce("a", "10.0.1.1/31"), "10.0.0.0/16"), routed(roce("b", "10.0.8.3/31"), "10.0.0.0/16")
    best = find_paths(mapping(a, b), "a", "b", explain=True).paths[0]
    assert (best.transport, best.network) == (Transport.ROCE, "roce:routed:10.0.1.0/31+10.0.8.2/31")
    assert best.unverified == ()
    # Without routes only the slow subnet is left, and the answer says why.
    answer = find_paths(mapping(roce("a", "10.0.1.1/31"), roce("b", "10.0.8.3/31")), "a", "b", explain=True)
    assert [path.network for path in answer.paths] == ["172.16.0.0/24"]
    reasons = {one.name: one.reason for one in answer.rejected}
    different = "the nodes are on different RoCE networks (a: roce:10.0.1.0/31; b: roce:10.0.8.2/31)"
    assert reasons["roce"] == different


def tray(**fields: object) -> Snapshot:
    """A tray whose first GPU's registration is changed."""
    snapshot = nvl_tray(1)
    first = snapshot.gpus[0]
    fabric = replace(first.fabric, **fields)  # type: ignore[type-var] # it has one
    return replace(snapshot, gpus=(replace(first, fabric=fabric), *snapshot.gpus[1:]))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"state": "in-progress"}, "its registration in the NVLink fabric is in-progress, not completed"),
        ({"state": ""}, "its registration in the NVLink fabric is unknown, not completed"),
        ({"status": "Timeout"}, "its registration in the NVLink fabric ended with status Timeout"),
        ({"cluster_uuid": ""}, "its NVLink fabric ends at its own host (the cluster UUID is zero)"),
        ({"clique_id": None}, "its clique in the NVLink fabric is not known"),
    ],
)
def test_what_keeps_a_gpu_out_of_a_domain(fields, why):
    changed = tray(**fields)
    assert out_of_domain(changed.gpus[0]) == why
    answer = find_paths(mapping(nvl_tray(0), changed), "tray0/gpu0", "tray1/gpu0", explain=True)
    told = [one.reason for one in answer.rejected if one.name == Transport.NVLINK]
    assert told == ([f"tray1/gpu0: {why}"] if why else [])
    # Another GPU of the same host is in it all the same.
    assert find_paths(mapping(nvl_tray(0), changed), "tray0/gpu0", "tray1/gpu1").paths


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"outcome": Outcome.FAILED, "reason": "GPU is lost"}, "the GPU is failed (GPU is lost)"),
        ({"fabric": None}, "its driver tells of no NVLink fabric"),
    ],
)
def test_a_gpu_that_cannot_be_in_a_domain(change, why):
    gpu = replace(nvl_tray(0).gpus[0], **change)
    assert out_of_domain(gpu) == why
    dead = replace(nvl_tray(0).gpus[0], links=tuple(replace(link, active=False) for link in nvl_tray(0).gpus[0].links))
    assert out_of_domain(dead) == "all of its 18 NVLinks are down"


def test_a_fabric_that_is_not_healthy_is_said():
    changed = tray(health="limited-capacity")
    best = find_paths(mapping(nvl_tray(0), changed), "tray0/gpu0", "tray1/gpu0").paths[0]
    assert "tray1: the driver calls the NVLink fabric of gpu0 limited-capacity" in best.cautions
    assert best.cautions[-1] in best.because


def test_a_probe_that_was_denied_is_not_nothing():
    blind = node("b", probes=(ProbeReport(name="rdma", outcome=Outcome.DENIED, reason="no /sys"),))
    answer = find_paths(mapping(hgx("a"), blind), "a", "b", explain=True)
    reasons = {one.name: one.reason for one in answer.rejected}
    assert reasons["infiniband"] == "b has no InfiniBand port that is known (probe rdma: denied, no /sys)"


def test_a_measurement_of_other_nodes_says_nothing_here():
    pair = mapping(*(node(name, interfaces=(nic("eth0", f"10.0.0.{at}/24"),)) for at, name in enumerate("abc", 1)))
    other = Measurement(
        src_node="id-a", dst_node="id-c", src_interface="eth0", dst_interface="eth0", src_address="10.0.0.1",
        dst_address="10.0.0.3", network="10.0.0.0/24", reachable=True, bandwidth_bytes_per_second=1e9,
    )  # fmt: skip
    (path,) = find_paths(pair, "a", "b", measurements=[other]).paths
    assert (path.evidence, path.measured_age_seconds) == (Evidence.ASSUMED, None)


def test_a_slow_network_known_beats_a_fast_card_of_unknown_speed():
    """PCIe before and behind a network of unknown speed says nothing of it."""
    with_gpus = [
        replace(one, hcas=(), interfaces=(nic("eth0", f"10.0.0.{at}/24", pci_address="0000:04:00.0"),
                                          nic("eth1", f"10.1.0.{at}/24", speed_bytes_per_second=125_000_000)))
        for at, one in enumerate((hgx("a"), hgx("b")), 1)
    ]  # fmt: skip
    best, other = find_paths(mapping(*with_gpus), "a/gpu0", "b/gpu0").paths
    assert (best.network, other.network) == ("10.1.0.0/24", "10.0.0.0/24")
    assert other.bandwidth_bytes_per_second is None
    assert other.because[-1].startswith("how fast it is is not known")


def test_nodes_of_one_kind_share_what_was_searched_and_keep_their_names():
    ends = Ends()
    base = hgx("a")
    nodes = mapping(*(replace(base, node=replace(base.node, node_id=f"id-{name}", name=name)) for name in "abc"))
    first, second = ends.find(nodes, "a/gpu0"), ends.find(nodes, "b/gpu0")
    assert first.ways is second.ways
    assert (first.name, second.name) == ("a/gpu0", "b/gpu0")
    faster = tuple(replace(card, ports=(replace(card.ports[0], rate_bytes_per_second=1),)) for card in base.hcas)
    nodes = nodes | {"id-c": replace(base, hcas=faster)}
    assert ends.find(nodes, "id-c/gpu0").ways is not first.ways
    assert likeness(nodes["id-a"]) == likeness(nodes["id-b"]) != likeness(nodes["id-c"])


def test_a_uuid_is_one_nodes_alone():
    ends, base = Ends(), hgx("a")
    other = replace(base, node=replace(base.node, node_id="id-b", name="b"))
    other = replace(other, gpus=tuple(replace(gpu, uuid=f"GPU-other-{gpu.index}") for gpu in base.gpus))
    nodes = mapping(base, other)
    assert ends.find(nodes, "a/GPU-a-3").name == "a/gpu3"
    assert ends.find(nodes, "b/gpu-OTHER-3").name == "b/gpu3"
    with pytest.raises(UnknownNameError, match="no device on b called 'GPU-a-3'"):
        ends.find(nodes, "b/GPU-a-3")


def test_a_new_mapping_brings_new_names_and_facts():
    ends = Ends()

    def with_interface(interface: NetInterface) -> dict[str, Snapshot]:
        return mapping(node("a", interfaces=(interface,)))

    assert ends.find(with_interface(nic("eth0", "10.0.0.1/24")), "a/eth0").refused == ""
    down = ends.find(with_interface(nic("eth0", "10.0.0.1/24", oper_state="down")), "a/eth0")
    assert down.refused.startswith("it is down")
    with pytest.raises(UnknownNameError, match="no node called 'a'"):
        ends.find(mapping(node("z")), "a/eth0")


def test_isolated_rails_are_crossed_by_a_relay_at_the_sender_only():
    def rails(name: str, lid: int) -> Snapshot:
        base = hgx(name, lid=lid)
        cards = (
            replace(card, ports=(ib_port(lid=lid + rail, sm_lid=20 + rail),), dmabuf=True)
            for rail, card in enumerate(base.hcas)
        )
        return replace(base, hcas=tuple(cards))

    nodes = mapping(rails("a", 1), rails("b", 40))
    there, back = find_paths(nodes, "a/gpu1", "b/gpu6").paths[0], find_paths(nodes, "b/gpu6", "a/gpu1").paths[0]
    assert [end.relay for end in there.ends] == ["a/gpu6", ""]
    assert [end.relay for end in back.ends] == ["b/gpu1", ""]
    assert [end.port for end in there.ends] == ["a/mlx5_6:1", "b/mlx5_6:1"]
