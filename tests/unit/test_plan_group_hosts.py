"""Plans of groups: who shares memory, and how that is told to MPI."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.model.device import InterfaceKind
from fabricd.plan.group import plan_group
from fabricd.plan.group_hosts import process_mapping
from tests.support.group_plans import LO, card, chosen, settings, view
from tests.support.nodes import mapping, node


class TestMapping:
    @pytest.mark.parametrize(
        ("host_of", "expected"),
        [
            ([0], "(vector,(0,1,1))"),
            ([0, 0, 0], "(vector,(0,1,3))"),
            ([0, 1, 2], "(vector,(0,3,1))"),
            ([0, 0, 1, 1], "(vector,(0,2,2))"),
            ([0, 1, 0, 1], "(vector,(0,2,1),(0,2,1))"),
            ([0, 0, 1], "(vector,(0,1,2),(1,1,1))"),
            ([0, 1, 1, 0], "(vector,(0,1,1),(1,1,2),(0,1,1))"),
        ],
    )
    def test_known_layouts(self, host_of, expected):
        assert process_mapping(host_of) == expected

    @given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
    def test_reading_it_as_mpich_does_gives_the_layout_back(self, host_of):
        text = process_mapping(host_of)
        triples = [
            tuple(map(int, part.split(","))) for part in text.removeprefix("(vector,(").removesuffix("))").split("),(")
        ]
        read = [host for first, hosts, ranks in triples for host in range(first, first + hosts) for _ in range(ranks)]
        assert read == host_of


class TestMemory:
    def test_ranks_of_one_host_use_shared_memory_and_no_network(self):
        plan = plan_group("mpi", {rank: view("a", rank, eth0="10.0.0.1/24") for rank in range(3)}, {})
        assert plan.process_mapping == "(vector,(0,1,3))"
        assert [settings(plan, rank) for rank in range(3)] == [{"UCX_TLS": "self,sm"}] * 3
        assert plan.networks == ()
        assert plan.because == ("3 ranks on a share memory, so no network is used",)

    @pytest.mark.parametrize(
        "difference",
        [
            {"boot_id": "other"},
            {"shm_device": "0:9"},
            {"ipc_namespace": "9"},
            {"pid_namespace": "9"},
            {"uid": 1000},
            {"shm_device": ""},
            {"boot_id": ""},
        ],
        ids=lambda one: "-".join(f"{key}={value}" for key, value in one.items()),
    )
    def test_each_thing_that_memory_needs_counts(self, difference):
        views = {0: view("a", eth0="10.0.0.1/24"), 1: view("a", 1, **{"eth0": "10.0.0.1/24", **difference})}
        if "boot_id" in difference:
            views[1] = replace(views[1], interfaces=view("b", eth0="10.0.0.2/24").interfaces)
        plan = plan_group("mpi", views, {})
        assert plan.process_mapping == "(vector,(0,2,1))"
        assert settings(plan, 0)["UCX_TLS"] == "self,tcp"
        assert settings(plan, 1)["UCX_NET_DEVICES"] == "eth0"

    def test_containers_on_one_host_talk_over_their_bridge_in_their_own_names(self):
        views = {
            0: view("a", net_namespace="11", ipc_namespace="21", eth0="172.17.0.2/16"),
            1: view("a", 1, net_namespace="12", ipc_namespace="22", veth9="172.17.0.3/16"),
        }
        host = node("a", interfaces=(card("a", "docker0", "172.17.0.1/16", kind=InterfaceKind.BRIDGE),))
        plan = plan_group("mpi", views, mapping(host))
        assert chosen(plan) == "172.17.0.0/16"
        assert [settings(plan, rank)["UCX_NET_DEVICES"] for rank in (0, 1)] == ["eth0", "veth9"]
        assert next(one for one in plan.networks if one.chosen).virtual
        assert any("no daemon in the network namespace" in line for line in plan.because)

    def test_an_ipvlan_with_name_and_mac_of_its_hosts_card_is_not_that_card(self):
        fast = {"speed_bytes_per_second": 50 * 10**9}
        nodes = mapping(
            *(node(host, interfaces=(card(host, "eth0", f"10.1.0.{ord(host)}/24", **fast),)) for host in "ab")
        )
        views = {rank: view(host, rank, eth0=f"10.1.0.{rank + 1}/24") for rank, host in enumerate("ab")}
        best = plan_group("mpi", views, nodes).networks[0]
        assert (best.virtual, best.bandwidth_bytes_per_second) == (True, None)
        assert "no daemon in the network namespace of a, b" in best.reason

    def test_a_tunnel_without_mac_is_known_by_its_address(self):
        tun = {"kind": InterfaceKind.TUN, "mac": ""}
        nodes = mapping(
            *(
                node(host, interfaces=(card(host, "tun0", f"10.8.0.{number}/24", **tun),))
                for number, host in ((1, "a"), (2, "b"))
            )
        )
        views = {rank: view(host, rank, tun0=f"10.8.0.{rank + 1}/24") for rank, host in enumerate("ab")}
        views = {rank: replace(one, interfaces=(LO, replace(one.interfaces[1], mac=""))) for rank, one in views.items()}
        assert "a program carries it" in plan_group("mpi", views, nodes).because[1]

    def test_a_name_or_machine_id_makes_no_host(self):
        views = {
            0: view("a", hostname="same", eth0="10.0.0.1/24"),
            1: view("b", 1, hostname="same", eth0="10.0.0.2/24"),
        }
        plan = plan_group("mpi", views, {})
        assert plan.process_mapping == "(vector,(0,2,1))"
        assert len({one.node for one in plan.ranks}) == 2

    def test_an_order_of_ranks_too_irregular_for_mpich_is_given_up(self):
        views = {rank: view("ab"[rank * rank % 7 % 2], rank) for rank in range(2000)}
        views = {
            rank: replace(one, interfaces=view(one.hostname, eth0=f"10.0.0.{ord(one.hostname)}/24").interfaces)
            for rank, one in views.items()
        }
        plan = plan_group("mpi", views, {})
        assert plan.process_mapping == "(vector,(0,2000,1))"
        assert settings(plan, 0)["UCX_TLS"] == "self,sm,tcp"
        assert any("too irregular" in line for line in plan.because)
