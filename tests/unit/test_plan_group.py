"""Plans of groups: which network is taken, what each rank sets in its own names, and what is measured before."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import InputError, NoNetworkError
from fabricd.localview import LocalView
from fabricd.model.device import InterfaceKind
from fabricd.model.network import NetworkRule
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.plan import GroupPlan
from fabricd.model.routing import Route
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group import plan_group
from fabricd.plan.group_candidate import Candidate
from fabricd.plan.group_choice import Rated, rated_key
from fabricd.plan.group_survey import survey
from tests.support.group_plans import TWO, card, chosen, measured, reason, settings, view
from tests.support.nodes import mapping, node


class TestChoice:
    def test_the_measured_faster_network_is_taken_whatever_the_names(self):
        for fast, slow in (("10.1.0.0/24", "10.2.0.0/24"), ("10.2.0.0/24", "10.1.0.0/24")):
            speed = {fast: 1.2, slow: 0.024}
            found = [measured(f"{net[:-4]}1", f"{net[:-4]}2", speed[net]) for net in speed]
            plan = plan_group("mpi", TWO, {}, found)
            assert chosen(plan) == fast
            assert "behind" in reason(plan, slow)
            assert "0.024 GB/s" in reason(plan, slow)

    def test_figures_and_their_origin_are_told(self):
        plan = plan_group("mpi", TWO, {}, [measured("10.1.0.1", "10.1.0.2"), measured("10.2.0.2", "10.2.0.1", 0.1)])
        best = next(one for one in plan.networks if one.chosen)
        assert best.evidence is Evidence.MEASURED
        assert (best.bandwidth_bytes_per_second, best.latency_seconds, best.age_seconds) == (1e9, 20e-6, 3.0)
        assert best.reason.startswith("before 10.2.0.0/24: 1 GB/s")
        assert plan.because == (
            "2 ranks on 2 hosts: rank 0 on a; rank 1 on b",
            "10.1.0.0/24 joins them: same subnet 10.1.0.0/24",
        )

    def test_a_network_that_cannot_be_reached_is_no_edge(self):
        broken = measured(
            "10.1.0.1", "10.1.0.2", reachable=False, bandwidth_bytes_per_second=None, reason="no answer within 2 s"
        )
        plan = plan_group("mpi", TWO, {}, [broken, measured("10.2.0.1", "10.2.0.2", 0.01)])
        assert chosen(plan) == "10.2.0.0/24"
        assert reason(plan, "10.1.0.0/24") == "a cannot reach b on it: no answer within 2 s"

    def test_none_that_can_be_reached_is_an_error_that_says_what_each_host_has(self):
        broken = [
            measured(
                f"10.{net}.0.1", f"10.{net}.0.2", reachable=False, bandwidth_bytes_per_second=None, reason="refused"
            )
            for net in (1, 2)
        ]
        with pytest.raises(NoNetworkError) as caught:
            plan_group("mpi", TWO, {}, broken)
        for fact in ("rank 0 on a has fast 10.1.0.1, slow 10.2.0.1", "rank 1 on b has fast 10.1.0.2"):
            assert fact in caught.value.message
        assert "10.1.0.0/24: a cannot reach b on it: refused" in caught.value.hint

    def test_no_common_network_is_an_error(self):
        views = {0: view("a", eth0="10.1.0.1/24"), 1: view("b", 1, ib0="10.9.0.1/24")}
        with pytest.raises(NoNetworkError, match=r"a has eth0 10\.1\.0\.1; rank 1 on b has ib0 10\.9\.0\.1") as caught:
            plan_group("mpi", views, {})
        assert "10.1.0.0/24: b is not on it" in caught.value.hint

    def test_an_error_tells_some_of_many_addresses(self):
        many = view("a", eth0="10.1.0.1/24")
        addresses = tuple(f"10.1.{number >> 8}.{number & 255}" for number in range(3000))
        many = replace(many, interfaces=(replace(many.interfaces[-1], addresses=addresses),))
        with pytest.raises(NoNetworkError) as caught:
            plan_group("mpi", {0: many, 1: view("b", 1, ib0="10.9.0.1/24")}, {})
        assert len(caught.value.message) < 1000

    def test_what_is_measured_comes_before_what_a_card_claims(self):
        nodes = mapping(
            *(
                node(
                    host,
                    interfaces=(
                        card(host, "fast", f"10.1.0.{number}/24", speed_bytes_per_second=50 * 10**9),
                        card(host, "slow", f"10.2.0.{number}/24", speed_bytes_per_second=10**8),
                    ),
                )
                for number, host in ((1, "a"), (2, "b"))
            )
        )
        assert chosen(plan_group("mpi", TWO, nodes)) == "10.1.0.0/24"
        assert chosen(plan_group("mpi", TWO, nodes, [measured("10.2.0.1", "10.2.0.2", 0.1)])) == "10.2.0.0/24"

    def test_hardware_comes_before_virtual_of_equal_measure(self):
        kinds = {"fast": InterfaceKind.VETH, "slow": InterfaceKind.PHYSICAL}
        nodes = mapping(
            *(
                node(
                    host,
                    interfaces=tuple(
                        card(host, name, f"10.{net}.0.{number}/24", kind=kinds[name])
                        for net, name in ((1, "fast"), (2, "slow"))
                    ),
                )
                for number, host in ((1, "a"), (2, "b"))
            )
        )
        equal = [measured("10.1.0.1", "10.1.0.2", 1.02), measured("10.2.0.1", "10.2.0.2", 1.0)]
        plan = plan_group("mpi", TWO, nodes, equal)
        assert chosen(plan) == "10.2.0.0/24"
        assert "as fast, and virtual against hardware" in reason(plan, "10.1.0.0/24")

    def test_the_slowest_pair_speaks_for_a_network_of_several_hosts(self):
        views = {number: view(host, number, net=f"10.1.0.{number + 1}/24") for number, host in enumerate("abc")}
        found = [measured("10.1.0.1", "10.1.0.2", 2.0), measured("10.1.0.3", "10.1.0.1", 0.5)]
        plan = plan_group("mpi", views, {}, found)
        assert plan.networks[0].bandwidth_bytes_per_second == 0.5e9
        one = plan_group("mpi", views, {}, found[:1])
        assert "measured between 2 of 3 hosts" in one.networks[0].reason

    def test_an_engine_that_there_is_not(self):
        with pytest.raises(InputError, match="carrier-pigeon"):
            plan_group("carrier-pigeon", TWO, {})


class TestCandidates:
    @pytest.mark.parametrize(
        ("name", "interface", "words"),
        [
            ("lo", {}, "loopback"),
            ("ifb0", {"kind": InterfaceKind.IFB}, "ifb"),
            ("br0", {"kind": InterfaceKind.BRIDGE}, "bridge"),
            ("eth9", {"oper_state": "down"}, "down"),
            ("eth9", {"admin_up": False}, "off"),
        ],
    )
    def test_what_leads_nowhere_is_left_out_with_the_reason(self, name, interface, words):
        nodes = mapping(
            *(
                node(
                    host,
                    interfaces=(
                        card(host, name, f"10.3.0.{number}/24", **interface),
                        card(host, "ok", f"10.1.0.{number}/24"),
                    ),
                )
                for number, host in ((1, "a"), (2, "b"))
            )
        )
        views = {
            rank: view(
                host, rank, **({} if name == "lo" else {name: f"10.3.0.{rank + 1}/24"}), ok=f"10.1.0.{rank + 1}/24"
            )
            for rank, host in enumerate("ab")
        }
        plan = plan_group("mpi", views, nodes)
        assert chosen(plan) == "10.1.0.0/24"
        assert words in reason(plan, f"*/{name}")

    def test_a_subnet_with_one_address_on_both_hosts_joins_nobody(self):
        views = {
            rank: view(host, rank, docker0="172.17.0.1/16", eth0=f"10.1.0.{rank + 1}/24")
            for rank, host in enumerate("ab")
        }
        plan = plan_group("mpi", views, {})
        assert chosen(plan) == "10.1.0.0/24"
        assert reason(plan, "172.17.0.0/16@a") == "b is not on it"

    def test_link_local_addresses_join_nobody(self):
        views = {
            rank: view(host, rank, eth0=f"fe80::{rank + 1}/64 169.254.0.{rank + 1}/16")
            for rank, host in enumerate("ab")
        }
        with pytest.raises(NoNetworkError):
            plan_group("mpi", views, {})

    def test_an_ipv6_network_is_used_as_one(self):
        views = {rank: view(host, rank, eth0=f"10.{rank}.0.1/24 fd00::{rank + 1}/64") for rank, host in enumerate("ab")}
        plan = plan_group("mpi", views, {})
        assert chosen(plan) == "fd00::/64"
        assert settings(plan, 0) == {
            "UCX_TLS": "self,tcp",
            "UCX_NET_DEVICES": "eth0",
            "UCX_TCP_RX_SEG_SIZE": "256k",
            "UCX_TCP_AF_PRIO": "inet6",
        }

    def test_only_few_ranks_read_much_at_once(self):
        for count, told in ((128, "256k"), (129, None)):
            plan = plan_group(
                "mpi", {rank: view(chr(65 + rank), rank, eth0=f"10.1.0.{rank + 1}/24") for rank in range(count)}, {}
            )
            assert settings(plan, 0).get("UCX_TCP_RX_SEG_SIZE") == told

    def test_an_address_that_ucx_would_not_use_is_no_way(self):
        views = {
            rank: view(host, rank, eth0=f"10.{rank}.9.1/24 10.1.7.{rank + 1}/24", eth1=f"10.5.0.{rank + 1}/24")
            for rank, host in enumerate("ab")
        }
        plan = plan_group("mpi", views, {})
        assert chosen(plan) == "10.5.0.0/24"
        assert "UCX would use its first address, 10.0.9.1" in reason(plan, "10.1.7.0/24")

    def test_a_name_that_ucx_could_misread_is_no_device(self):
        views = {rank: view(host, rank, **{"a,b": f"10.1.0.{rank + 1}/24"}) for rank, host in enumerate("ab")}
        with pytest.raises(NoNetworkError) as caught:
            plan_group("mpi", views, {})
        assert "cannot be written into UCX_NET_DEVICES" in caught.value.hint

    def test_hosts_behind_routers_are_joined_by_their_routes(self):
        def host(name, subnet, other):
            routes = (
                Route(destination=f"10.{subnet}.0.0/24", family=4, interface="eth0"),
                Route(destination="default", family=4, interface="mgmt", gateway="192.168.0.254"),
                Route(destination=f"10.{other}.0.0/16", family=4, interface="eth0", gateway=f"10.{subnet}.0.254"),
            )
            cards = (card(name, "mgmt", f"192.168.{subnet}.1/24"), card(name, "eth0", f"10.{subnet}.0.1/24"))
            return node(name, interfaces=cards, routes=routes)

        views = {
            0: view("a", mgmt="192.168.1.1/24", eth0="10.1.0.1/24"),
            1: view("b", 1, mgmt="192.168.2.1/24", eth0="10.2.0.1/24"),
        }
        nodes = mapping(host("a", 1, 2), host("b", 2, 1))
        pairs = [(pair.src_address, pair.dst_address) for pair in survey(views, nodes).pairs]
        assert pairs == [("192.168.1.1", "192.168.2.1"), ("10.1.0.1", "10.2.0.1")]
        plan = plan_group("mpi", views, nodes, [measured(*pairs[0], 0.1), measured(*pairs[1], 1.0)])
        assert chosen(plan) == "routed:10.1.0.0/24+10.2.0.0/24"
        assert [settings(plan, rank)["UCX_NET_DEVICES"] for rank in (0, 1)] == ["eth0", "eth0"]


class TestSurvey:
    def test_every_host_takes_part_in_one_measurement_of_each_network(self):
        views = {number: view(host, number, net=f"10.1.0.{number + 1}/24") for number, host in enumerate("abcde")}
        nodes = mapping(
            *(
                node(host, interfaces=(card(host, "net", f"10.1.0.{number + 1}/24"),))
                for number, host in enumerate("abcde")
            )
        )
        pairs = survey(views, nodes).pairs
        assert [(pair.src_node, pair.dst_node) for pair in pairs] == [
            ("id-a", "id-b"),
            ("id-c", "id-d"),
            ("id-e", "id-a"),
        ]
        assert pairs[0].src_interface == "net"

    def test_one_host_measures_nothing(self):
        assert survey({rank: view("a", rank, eth0="10.0.0.1/24") for rank in range(4)}, {}).pairs == ()

    def test_the_daemon_of_a_host_is_found_by_its_addresses_too(self):
        views = {rank: replace(one, node_id="") for rank, one in TWO.items()}
        nodes = mapping(
            *(
                node(host, interfaces=(card(host, "fast", f"10.1.0.{number}/24"),))
                for number, host in ((1, "a"), (2, "b"))
            )
        )
        assert {(pair.src_node, pair.dst_node) for pair in survey(views, nodes).pairs} == {("id-a", "id-b")}

    def test_without_a_daemon_the_network_is_assumed_and_the_plan_says_so(self):
        plan = plan_group("mpi", TWO, {})
        best = next(one for one in plan.networks if one.chosen)
        assert best.evidence is Evidence.ASSUMED
        assert "not measured: no daemon in the network namespace of a, b" in best.reason
        assert any("works is assumed" in line for line in plan.because)


CANDIDATES = st.builds(
    Candidate,
    name=st.sampled_from(["n1", "n2", "n3"]),
    transport=st.sampled_from([Transport.ETHERNET, Transport.ROCE, Transport.INFINIBAND]),
    ports=st.just(()),
    virtual=st.booleans(),
    has_tcp_below=st.booleans(),
    role=st.sampled_from(["data", "management", "vpn"]),
    reason=st.just(""),
)
RATED = st.builds(
    Rated,
    candidate=CANDIDATES,
    bandwidth_bytes_per_second=st.one_of(st.none(), st.floats(1e3, 1e12)),
    latency_seconds=st.one_of(st.none(), st.floats(1e-7, 1.0)),
    evidence=st.sampled_from(list(Evidence)),
)


class TestRoles:
    def test_a_network_that_the_site_calls_one_for_management_is_taken_only_where_no_other_is(self):
        def host(name: str, at: int, *networks: str) -> tuple[LocalView, Snapshot]:
            addresses = {f"eth{number}": f"{network}{at}/24" for number, network in enumerate(networks)}
            cards = tuple(card(name, nic, address) for nic, address in addresses.items())
            rule = NetworkRule(role="management", subnet="10.1.0.0/24")
            return view(name, at - 1, **addresses), node(name, interfaces=cards, site_networks=(rule,))

        def plan(*networks: str) -> GroupPlan:
            (a, host_a), (b, host_b) = host("a", 1, *networks), host("b", 2, *networks)
            figures = [measured("10.1.0.1", "10.1.0.2", 10.0), measured("10.2.0.1", "10.2.0.2", 1.0)]
            return plan_group("mpi", {0: a, 1: b}, mapping(host_a, host_b), figures[: len(networks)])

        both = plan("10.1.0.", "10.2.0.")
        assert chosen(both) == "10.2.0.0/24"
        assert reason(both, "10.1.0.0/24") == "behind 10.2.0.0/24: configured for management against data"
        assert chosen(plan("10.1.0.")) == "10.1.0.0/24"


class TestOrder:
    @given(st.lists(RATED, max_size=6), st.randoms())
    def test_the_best_does_not_depend_on_the_order_in_which_networks_are_found(self, rated, random):
        shuffled = list(rated)
        random.shuffle(shuffled)
        assert [rated_key(one) for one in sorted(rated, key=rated_key)] == [
            rated_key(one) for one in sorted(shuffled, key=rated_key)
        ]

    @given(RATED, RATED)
    def test_a_measured_network_that_is_clearly_faster_is_never_behind(self, a, b):
        if a.evidence is Evidence.MEASURED and b.evidence is Evidence.MEASURED and a.seconds * 1.3 < b.seconds:
            assert rated_key(a) < rated_key(b)
