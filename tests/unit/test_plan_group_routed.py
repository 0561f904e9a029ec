"""Plans of groups whose hosts share no subnet: RoCE rails behind routers, with routing tables of their own."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_client.engine.settings import choose_settings
from fabricd.errors import NoNetworkError
from fabricd.graph.networks_routed import Led, Routes, Targets
from fabricd.model.device import Gid, HcaPort, IpAddress
from fabricd.model.measurement import Measurement
from fabricd.model.path import Transport
from fabricd.model.plan import GroupPlan
from fabricd.model.routing import Route, RoutingRule
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group import plan_group
from fabricd.plan.group_survey import survey
from fabricd.plan.settings import settings_for
from tests.support.composed import member, with_tables
from tests.support.group_plans import settings
from tests.support.nodes import hca, mapping, nic, node, whole_view

SPEED = 50 * 10**9


def default(interface: str, gateway: str = "10.0.0.254") -> Route:
    return Route(destination="default", family=4, interface=interface, gateway=gateway)


def host(
    name: str,
    *,
    rails: int = 2,
    net: str = "10",
    far: str = "default",
    gid: str = "roce-v2",
    kind: str = "roce",
    **fields: object,
) -> Snapshot:
    """A host whose rails are in a /31 each, with a table each that has one route: by its own gateway to ``far``.

    ``far`` may say "{rail}": then the table leads to the ports of this rail alone. ``net`` "fd00:" is one of IPv6, /64.
    """
    family, length, alone = (6, 64, 128) if ":" in net else (4, 31, 32)
    number = ord(name)
    cards, hcas, rules = [], [], []
    for rail in range(rails):
        address = f"{net}{rail}:{number}::1" if family == 6 else f"{net}.{rail}.{number}.0"
        table = Gid(index=3, gid=address if family == 6 else f"::ffff:{address}", type=gid, interface=f"rail{rail}")
        port = HcaPort(port=1, state="active", link_layer="ethernet", rate_bytes_per_second=SPEED, gids=(table,))
        where = f"0000:0{rail}:00.0"
        hcas.append(hca(f"mlx5_{rail}", port, kind=kind, node_guid=f"{name}{rail}", pci_address=where))
        cards.append(
            nic(
                f"rail{rail}",
                f"{address}/{length}",
                mac=f"02:{number:02x}:00:00:00:{rail:02x}",
                rdma_device=f"mlx5_{rail}",
                pci_address=where,
                speed_bytes_per_second=SPEED,
            )
        )
        route = replace(default(f"rail{rail}"), destination=far.format(rail=rail), family=family)
        rules.append(
            RoutingRule(
                source=f"{address}/{alone}", family=family, priority=100 + rail, table=100 + rail, routes=(route,)
            )
        )
    made = node(name, interfaces=tuple(cards), hcas=tuple(hcas), routing_rules=tuple(rules))
    return replace(made, **fields)  # type: ignore[arg-type] # the caller names fields of Snapshot


def plan(*hosts: Snapshot, engine: str = "mpi", ranks: int = 1, measurements=(), **fields: object) -> GroupPlan:
    on = [one for one in hosts for _ in range(ranks)]
    views = {rank: whole_view(one, rank, **fields) for rank, one in enumerate(on)}
    return plan_group(engine, views, mapping(*hosts), measurements)


def chosen(found: GroupPlan) -> list[str]:
    return [one.network for one in found.networks if one.chosen]


def reasons(found: GroupPlan) -> dict[str, str]:
    return {one.network: one.reason for one in found.networks}


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_rails_with_tables_of_their_own_are_one_network_of_all_hosts(names):
    found = plan(*map(host, names))
    (network,) = [one for one in found.networks if one.chosen]
    assert network.network == "roce:routed:10.0.97.0/31+10.0.98.0/31+" + (
        "10.1.97.0/31+..." if names == "ab" else "10.0.99.0/31+..."
    )
    assert (network.transport, network.bandwidth_bytes_per_second) == (Transport.ROCE, SPEED)
    assert [one.devices for one in found.ranks] == [("mlx5_0:1", "mlx5_1:1")] * len(names)
    assert Transport.ETHERNET in {one.transport for one in found.networks}, "TCP over the rails is the other way"
    assert settings(found) == {
        "UCX_TLS": "self,rc,ud",
        "UCX_NET_DEVICES": "mlx5_0:1,mlx5_1:1",
        "UCX_IB_ROCE_REACHABILITY_MODE": "all",
    }
    assert "no subnet joins all nodes, but routes lead from each to each: 10.0.97.0/31, 10.0.98.0/31" in " ".join(
        found.because
    )
    assert not any("only default" in line for line in found.because), "a table of a port's own is meant for it"
    for rank, name in enumerate(names):
        applied, _ = choose_settings(found.ranks[rank].settings, whole_view(host(name), rank), {})
        assert applied == settings(found, rank), "the client knows each of them"


def test_ranks_of_a_host_share_its_rails():
    found = plan(host("a"), host("b"), ranks=2)
    assert [settings(found, rank)["UCX_NET_DEVICES"] for rank in range(4)] == ["mlx5_0:1", "mlx5_1:1"] * 2


def test_nccl_gets_the_same_network_with_all_rails():
    found = plan(host("a"), host("b"), engine="nccl", measurements=[])
    assert chosen(found) == ["roce:routed:10.0.97.0/31+10.0.98.0/31+10.1.97.0/31+..."]
    assert found.ranks[0].devices == ("mlx5_0:1", "mlx5_1:1")
    assert settings(found)["NCCL_NET"] == "IB"
    assert "NCCL_CROSS_NIC" not in settings(found), "each rail leads to each"


@pytest.mark.parametrize("names", ["ab", "abc"])
def test_rails_that_lead_to_themselves_alone_are_networks_of_their_own(names):
    hosts = [host(name, far="10.{rail}.0.0/16") for name in names]
    found = plan(*hosts)
    nets = [one for one in found.networks if one.transport is Transport.ROCE]
    middle = "" if names == "ab" else "+10.{}.99.0/31"
    assert [one.network for one in nets] == [
        f"roce:routed:10.{rail}.97.0/31+10.{rail}.98.0/31" + middle.format(rail) for rail in (0, 1)
    ]
    assert chosen(found) == [nets[0].network]
    assert [one.devices for one in found.ranks] == [("mlx5_0:1",)] * len(names)
    by_nccl = plan(*hosts, engine="nccl")
    assert chosen(by_nccl) == [one.network for one in nets]
    assert settings(by_nccl)["NCCL_CROSS_NIC"] == "0"
    assert by_nccl.ranks[0].devices == ("mlx5_0:1", "mlx5_1:1")


def test_a_rail_that_one_host_has_no_way_by_leaves_the_others():
    broken = host("c")
    broken = replace(broken, routing_rules=broken.routing_rules[1:])
    found = plan(host("a"), host("b"), broken)
    assert chosen(found) == ["roce:routed:10.1.97.0/31+10.1.98.0/31+10.1.99.0/31"]
    assert [one.devices for one in found.ranks] == [("mlx5_1:1",)] * 3


def test_a_slower_network_by_subnet_does_not_hide_the_rails():
    def beside(name: str) -> Snapshot:
        made = host(name)
        management = nic("mgmt", f"192.168.0.{ord(name)}/24", mac=f"02:{ord(name):02x}:00:00:01:00")
        return replace(made, interfaces=(*made.interfaces, replace(management, speed_bytes_per_second=125 * 10**6)))

    found = plan(beside("a"), beside("b"))
    assert chosen(found)[0].startswith("roce:routed:")
    assert "192.168.0.0/24" in reasons(found)
    by_tcp = plan(beside("a"), beside("b"), hcas=())
    assert chosen(by_tcp) == ["routed:10.0.97.0/31+10.0.98.0/31"]
    assert "behind routed:10.0.97.0/31+10.0.98.0/31: 0.125 GB/s" in reasons(by_tcp)["192.168.0.0/24"]
    for engine in ("gloo", "nccl"):
        with_tables = plan(beside("a"), beside("b"), hcas=(), engine=engine)
        assert chosen(with_tables) == ["192.168.0.0/24"]
        assert "connects from any, by the main table" in reasons(with_tables)["routed:10.0.97.0/31+10.0.98.0/31"]


@pytest.mark.parametrize(
    ("fields", "view_fields"),
    [({"gid": "roce-v1"}, {}), ({"kind": "soft-roce"}, {}), ({}, {"hcas": ()}), ({}, {"memlock_bytes": 65536})],
    ids=["version 1", "software", "not in the container", "memlock"],
)
def test_where_rdma_cannot_be_it_is_tcp_over_the_same_rails(fields, view_fields):
    found = plan(host("a", **fields), host("b", **fields), **view_fields)
    assert chosen(found) == ["routed:10.0.97.0/31+10.0.98.0/31"]
    assert [one.devices for one in found.ranks] == [("rail0",)] * 2
    assert settings(found)["UCX_TLS"] == "self,tcp"
    said = [reason for name, reason in reasons(found).items() if name.startswith("roce:routed")]
    assert [("memlock limit of 65536 bytes" in reason) for reason in said] == [True] * len(
        view_fields.keys() & {"memlock_bytes"}
    )


def in_main(*extra: Route) -> tuple[Route, ...]:
    """Routes of the main table: each rail's ports by that rail."""
    rails = [replace(default(f"rail{rail}"), destination=f"10.{rail}.0.0/16") for rail in (0, 1)]
    return (*rails, *extra)


def test_gloo_talks_by_tcp_over_one_rail_and_the_same_on_all_hosts():
    found = plan(*(host(name, routes=in_main()) for name in "abc"), engine="gloo")
    assert chosen(found) == ["routed:10.0.97.0/31+10.0.98.0/31+10.0.99.0/31"]
    assert [one.devices for one in found.ranks] == [("rail0",)] * 3
    assert "routed:10.1.97.0/31+10.1.98.0/31+10.1.99.0/31" in reasons(found)


def test_a_longer_prefix_of_the_main_table_hides_a_rail_from_ucx_which_asks_no_rules():
    longer = Route(destination="10.0.0.0/16", family=4, interface="mgmt")
    found = plan(host("a", routes=(longer,)), host("b"), hcas=())
    assert chosen(found) == ["routed:10.1.97.0/31+10.1.98.0/31"]
    told = "at a, UCX asks no rules and finds a longer prefix to b than by rail0"
    assert reasons(found)["routed:10.0.97.0/31+10.0.98.0/31"] == told


def test_a_default_route_of_the_main_table_is_a_way_that_nothing_shows():
    found = plan(*(host(name, rails=1, routing_rules=(), routes=(default("rail0"),)) for name in "ab"))
    assert chosen(found) == ["roce:routed:10.0.97.0/31+10.0.98.0/31"]
    assert any("only default routes lead from the one to the other" in line for line in found.because)


def test_nothing_is_tried_past_ip_by_default_routes_of_the_internet():
    """But a table that a port has alone is meant: some fabrics use addresses that others own."""
    bare = [host(name, rails=1, net="8", routing_rules=(), routes=(default("rail0"),)) for name in "ab"]
    assert chosen(plan(*bare)) == ["routed:8.0.97.0/31+8.0.98.0/31"]
    assert chosen(plan(*(host(name, rails=1, net="8") for name in "ab"))) == ["roce:routed:8.0.97.0/31+8.0.98.0/31"]


def test_rails_of_ipv6():
    found = plan(host("a", net="fd00:"), host("b", net="fd00:"))
    assert chosen(found) == ["roce:routed:fd00:0:97::/64+fd00:0:98::/64+fd00:1:97::/64+..."]
    assert [one.devices for one in found.ranks] == [("mlx5_0:1", "mlx5_1:1")] * 2
    by_nccl = plan(host("a", net="fd00:"), host("b", net="fd00:"), engine="nccl")
    assert settings(by_nccl)["NCCL_IB_ADDR_FAMILY"] == "AF_INET6"


def test_a_port_needs_no_way_to_itself():
    found = plan(host("a", far="10.{rail}.98.0/31"), host("b", far="10.{rail}.97.0/31"))
    assert chosen(found) == ["roce:routed:10.0.97.0/31+10.0.98.0/31"]


@pytest.mark.parametrize("there", [{}, {"far": "10.7.0.0/16"}, {"routes": (default("other"),)}])
def test_no_way_is_made_up(there):
    """There is none back: no table, one that leads elsewhere, or the main one by an interface without an address."""
    with pytest.raises(NoNetworkError):
        plan(host("a"), replace(host("b", **there), **({} if "far" in there else {"routing_rules": ()})))


def test_an_address_that_two_hosts_have_leads_to_neither():
    twin = host("a")
    twin = replace(
        twin,
        node=replace(twin.node, node_id="id-b", name="b"),
        hcas=tuple(replace(one, node_guid=f"b-{one.name}") for one in twin.hcas),
    )
    with pytest.raises(NoNetworkError):
        plan(host("a"), twin)


def test_rails_are_measured_by_tcp_on_the_same_addresses_and_a_dead_one_is_not_taken():
    hosts = [host(name, far="10.{rail}.0.0/16") for name in "ab"]
    views = {rank: whole_view(one, rank) for rank, one in enumerate(hosts)}
    pairs = survey(views, mapping(*hosts)).pairs
    assert {(one.src_address, one.dst_address) for one in pairs} == {
        ("10.0.97.0", "10.0.98.0"),
        ("10.1.97.0", "10.1.98.0"),
    }
    dead = Measurement(
        src_node="id-a", dst_node="id-b", src_interface="rail0", dst_interface="rail0", src_address="10.0.97.0",
        dst_address="10.0.98.0", network="routed:10.0.97.0/31+10.0.98.0/31", reachable=False, latency_seconds=None,
        bandwidth_bytes_per_second=None, age_seconds=1.0, reason="no answer within 2 s",
    )  # fmt: skip
    for engine in ("mpi", "nccl"):
        found = plan(*hosts, engine=engine, measurements=[dead])
        assert chosen(found) == ["roce:routed:10.1.97.0/31+10.1.98.0/31"]
    assert "no answer within 2 s" in reasons(found)["roce:routed:10.0.97.0/31+10.0.98.0/31"]


def test_three_machines_with_eight_rails_each_and_all_subnets_different():
    hosts = [with_tables(member("gcp-a3-ultra", name, 2 * number)) for number, name in enumerate("abc")]
    found = plan(*hosts, ranks=8)
    assert chosen(found) == ["roce:routed:192.168.0.2/31+192.168.0.4/31+192.168.0.6/31+..."]
    devices = [f"{one.name}:1" for one in hosts[0].hcas]
    for at in range(0, 24, 8):
        assert sorted(settings(found, rank)["UCX_NET_DEVICES"] for rank in range(at, at + 8)) == devices
    by_nccl = plan(*hosts, engine="nccl")
    assert sorted(by_nccl.ranks[2].devices) == devices


def test_two_addresses_of_a_port_do_not_make_it_two():
    """Two of three hosts have another subnet in common on the same cards."""

    def aliased(made: Snapshot, last: int) -> Snapshot:
        first = made.interfaces[0]
        extra = IpAddress(address=f"10.9.0.{last}", prefix_length=24, family=4)
        return replace(
            made,
            interfaces=(replace(first, addresses=(*first.addresses, extra)), *made.interfaces[1:]),
            routing_rules=(*made.routing_rules, replace(made.routing_rules[0], source=f"10.9.0.{last}/32")),
        )

    found = plan(aliased(host("a"), 1), aliased(host("b"), 2), host("c"))
    assert [one.devices for one in found.ranks] == [("mlx5_0:1", "mlx5_1:1")] * 3


def test_settings_without_a_job_tell_ucx_as_well():
    nodes = {one.node.name: one for one in (host("a"), host("b"))}
    told = {one.name: one.value for one in settings_for(nodes, engines=["ucx"])}
    assert told["UCX_NET_DEVICES"] == "mlx5_0:1,mlx5_1:1"
    assert told["UCX_IB_ROCE_REACHABILITY_MODE"] == "all"


ADDRESSES = st.integers(0, 255).map(lambda last: f"10.0.0.{last}")
ROUTES = st.lists(
    st.builds(
        lambda last, length, name, metric: Route(
            destination=f"10.0.0.{last}/{length}" if length else "default", family=4, interface=name, metric=metric
        ),
        st.integers(0, 255),
        st.sampled_from([0, 24, 26, 30, 31, 32]),
        st.sampled_from("xyz"),
        st.sampled_from([None, 1, 2]),
    ),
    max_size=6,
).map(tuple)


@given(
    ROUTES,
    st.lists(st.tuples(ADDRESSES, st.sampled_from([25, 32]), st.integers(0, 9), ROUTES), max_size=3),
    st.lists(ADDRESSES, min_size=1),
    st.lists(ADDRESSES, min_size=1, max_size=3),
)
def test_ways_to_many_are_those_to_each(main, rules, targets, sources):
    made = tuple(
        RoutingRule(source=f"{address}/{length}", family=4, priority=priority, table=number, routes=routes)
        for number, (address, length, priority, routes) in enumerate(rules)
    )
    known = Routes(node("a", routes=main, routing_rules=made))
    several = Targets(targets)
    for source, led in zip(sources, known.to_all(several, sources), strict=True):
        found: dict[str, Led] = {one: led[several.place(one)] for one in targets}
        assert found == {one: known.to(one, source) for one in targets}
