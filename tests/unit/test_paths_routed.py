"""Paths between nodes that no subnet joins: by the routes of both, by tables of their own, and over the internet."""

from dataclasses import replace
from ipaddress import ip_interface

from fabricd.model.measurement import Measurement
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.routing import Route, RoutingRule
from fabricd.paths.ends import Ends
from fabricd.paths.query import find_paths
from tests.support.nodes import crossed, mapping, nic, node


def routed_pair(first="10.1.0.1/24", second="10.2.0.1/24", *, back="eth0"):
    snapshots = []
    for name, address, out in (("a", first, "eth0"), ("b", second, back)):
        routes = (
            Route(destination=str(ip_interface(address).network), family=4, interface="eth0"),
            Route(destination="default", family=4, interface=out, gateway="10.0.0.254"),
        )
        snapshots.append(
            node(name, interfaces=(nic("eth0", address, speed_bytes_per_second=10**9), nic("eth1")), routes=routes)
        )
    return mapping(*snapshots)


def test_without_a_common_subnet_routes_may_lead_there():
    (path,) = find_paths(routed_pair(), "a", "b").paths
    assert (crossed(path), path.transport) == ("routed:10.1.0.0/24+10.2.0.0/24", Transport.ETHERNET)
    assert any("the routes of both lead by eth0 and eth0" in reason for reason in path.because)
    assert find_paths(routed_pair(back="eth1"), "a", "b").paths == ()
    # With a common subnet there is no need of it.
    assert [crossed(path) for path in find_paths(routed_pair(second="10.1.0.2/24"), "a", "b").paths] == ["10.1.0.0/24"]


def two_rails(name, host, *, rules=True):
    """A node on two rails, each with a subnet of its own, behind a gateway that only its own table names."""
    cards = tuple(nic(f"rail{at}", f"10.{at}.{host}.1/24", speed_bytes_per_second=10**10) for at in range(2))
    routes = tuple(Route(destination=f"10.{at}.{host}.0/24", family=4, interface=f"rail{at}") for at in range(2))
    own = tuple(
        RoutingRule(
            source=f"10.{at}.{host}.1/32",
            family=4,
            priority=100 + at,
            table=101 + at,
            routes=(Route(destination="default", family=4, interface=f"rail{at}", gateway=f"10.{at}.{host}.254"),),
        )
        for at in range(2)
    )
    return node(name, interfaces=cards, routes=routes, routing_rules=own if rules else ())


def test_rails_with_routing_tables_of_their_own_reach_each_other():
    answer = find_paths(mapping(two_rails("a", 1), two_rails("b", 2)), "a/rail1", "b/rail1")
    (path,) = answer.paths
    assert crossed(path) == "routed:10.1.1.0/24+10.1.2.0/24"
    assert path.unverified == (), "its own table names the way: that is no guess by the way to everywhere"
    assert find_paths(mapping(two_rails("a", 1), two_rails("b", 2, rules=False)), "a/rail1", "b/rail1").paths == ()


def test_nodes_of_many_rules_are_for_another_thread():
    nodes, ends = mapping(two_rails("a", 1), two_rails("b", 2)), Ends()
    for name in ("a/rail0", "b/rail0"):
        ends.find(nodes, name)
    assert ends.are_near_at_hand(nodes, ("a/rail0", "b/rail1"))
    nodes = nodes | {"id-b": replace(nodes["id-b"], routing_rules=nodes["id-b"].routing_rules * 9)}
    assert not ends.are_near_at_hand(nodes, ("a/rail0", "b/rail1"))


def test_a_table_without_a_way_leaves_it_to_the_next_and_one_behind_the_main_table_is_not_asked():
    a, b = two_rails("a", 1), two_rails("b", 2)
    first, second = a.routing_rules
    elsewhere = (Route(destination="10.9.0.0/16", family=4, interface="rail0"),)
    empty = replace(second, priority=5, table=7, source="10.1.0.0/16", routes=elsewhere)
    assert (
        len(find_paths(mapping(replace(a, routing_rules=(empty, first, second)), b), "a/rail1", "b/rail1").paths) == 1
    )
    wrong = replace(second, priority=5, routes=(replace(second.routes[0], interface="rail0"),))
    assert find_paths(mapping(replace(a, routing_rules=(second, wrong)), b), "a/rail1", "b/rail1").paths == ()
    late = replace(second, priority=32800)
    assert find_paths(mapping(replace(a, routing_rules=(late,)), b), "a/rail1", "b/rail1").paths == ()


def test_between_public_addresses_it_is_the_internet():
    (path,) = find_paths(routed_pair("8.8.8.8/24", "1.1.1.1/24"), "a", "b").paths
    assert (path.transport, path.bandwidth_bytes_per_second) == (Transport.INTERNET, None)
    assert path.latency_seconds > 5e-3


def test_routes_that_are_none_are_passed_over():
    nodes = routed_pair()
    odd = Route(destination="nonsense/99", family=4, interface="eth1")
    nodes["id-a"] = replace(nodes["id-a"], routes=(odd, *nodes["id-a"].routes))
    assert len(find_paths(nodes, "a", "b").paths) == 1


def test_what_only_default_routes_join_is_not_verified_until_it_is_measured():
    (path,) = find_paths(routed_pair(), "a", "b").paths
    assert path.unverified == ("only default routes lead from the one to the other; nothing shows that they arrive",)
    name = "routed:10.1.0.0/24+10.2.0.0/24"
    found = Measurement(
        src_node="id-a", dst_node="id-b", src_interface="eth0", dst_interface="eth0", src_address="10.1.0.1",
        dst_address="10.2.0.1", network=name, reachable=True, bandwidth_bytes_per_second=1e8, latency_seconds=1e-4,
    )  # fmt: skip
    (path,) = find_paths(routed_pair(), "a", "b", measurements=[found]).paths
    assert (path.unverified, path.estimate.latency_evidence) == ((), Evidence.MEASURED)
    both = routed_pair()
    for node_id, far in (("id-a", "10.2.0.0/24"), ("id-b", "10.1.0.0/24")):
        route = Route(destination=far, family=4, interface="eth0", gateway="10.0.0.254")
        both[node_id] = replace(both[node_id], routes=(*both[node_id].routes, route))
    assert find_paths(both, "a", "b").paths[0].unverified == ()


def test_a_private_address_behind_the_internet_is_not_verified():
    (path,) = find_paths(routed_pair("10.1.0.1/24", "1.1.1.1/24"), "a", "b").paths
    assert (path.transport, path.estimate.time_seconds) == (Transport.INTERNET, None)
    assert path.unverified[0].startswith("10.1.0.1 is a private address")
