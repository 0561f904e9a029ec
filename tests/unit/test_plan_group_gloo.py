"""Plans of groups for Gloo, which takes an interface and its first address."""

from dataclasses import replace

import pytest

from fabricd.errors import NoNetworkError
from fabricd.model.placement import Position
from fabricd.plan.group import plan_group
from tests.support.group_plans import LO, TWO, measured, settings, view
from tests.support.nodes import mapping, node


class TestGloo:
    def test_ranks_in_one_network_namespace_use_its_loopback_also_without_shared_memory(self):
        views = {rank: view("a", rank, ipc_namespace=str(rank), eth0="10.0.0.1/24") for rank in range(2)}
        plan = plan_group("gloo", views, {})
        assert [settings(plan, rank) for rank in (0, 1)] == [{"GLOO_SOCKET_IFNAME": "lo"}] * 2
        assert plan.ranks[0].address == "127.0.0.1"
        assert plan.networks == ()

    def test_without_a_loopback_nothing_is_set(self):
        views = {0: replace(view("a"), interfaces=(replace(LO, up=False),))}
        plan = plan_group("gloo", views, {})
        assert (settings(plan, 0), plan.ranks[0].address) == ({}, "")

    def test_containers_that_share_memory_but_no_network_need_one(self):
        views = {
            0: view("a", net_namespace="11", eth0="172.17.0.2/16"),
            1: view("a", 1, net_namespace="12", veth9="172.17.0.3/16"),
        }
        assert settings(plan_group("mpi", views, {}), 0) == {"UCX_TLS": "self,sm"}
        plan = plan_group("gloo", views, {})
        assert [settings(plan, rank) for rank in (0, 1)] == [
            {"GLOO_SOCKET_IFNAME": "eth0"},
            {"GLOO_SOCKET_IFNAME": "veth9"},
        ]
        assert [one.address for one in plan.ranks] == ["172.17.0.2", "172.17.0.3"]

    def test_the_measured_faster_network_is_taken(self):
        for fast, device in (("10.1.0", "fast"), ("10.2.0", "slow")):
            found = [measured(f"{net}.1", f"{net}.2", 1.2 if net == fast else 0.02) for net in ("10.1.0", "10.2.0")]
            plan = plan_group("gloo", TWO, {}, found)
            assert [settings(plan, rank) for rank in (0, 1)] == [{"GLOO_SOCKET_IFNAME": device}] * 2
            assert [one.address for one in plan.ranks] == [f"{fast}.1", f"{fast}.2"]

    def test_an_ipv6_network_on_an_interface_with_ipv4_is_none_that_it_would_use(self):
        addresses = "10.{0}.0.1/24 fd00::{1}/64"
        views = {rank: view(host, rank, eth0=addresses.format(rank, rank + 1)) for rank, host in enumerate("ab")}
        with pytest.raises(NoNetworkError) as caught:
            plan_group("gloo", views, {})
        assert "Gloo would use its IPv4 address, 10.0.0.1" in caught.value.hint
        views = {rank: view(host, rank, eth0=f"fd00::{rank + 1}/64") for rank, host in enumerate("ab")}
        assert plan_group("gloo", views, {}).ranks[1].address == "fd00::2"

    def test_an_order_that_stays_on_the_leaves_is_offered_and_keeps_rank_0(self):
        leaves = {"a": "one", "b": "two", "c": "one", "d": "two"}
        nodes = mapping(
            *(
                node(host, positions=(Position(source="slurm", switches=(leaf, "spine")),))
                for host, leaf in leaves.items()
            )
        )
        views = {rank: view(host, rank, eth0=f"10.1.0.{rank + 1}/24") for rank, host in enumerate(leaves)}
        plan = plan_group("gloo", views, nodes)
        assert plan.order[0] == 0
        assert [leaves["abcd"[rank]] for rank in plan.order] in (
            ["one", "one", "two", "two"],
            ["one", "two", "two", "one"],
        )
        assert plan.because[-1] == "another order of ranks would be better: crossings of leaf: 4 to 2"
        assert plan_group("nccl+gloo", views, nodes).order == plan.order
        assert plan_group("gloo", views, {}).order == ()
        together = plan_group("gloo", {0: views[0], 1: views[1], 2: replace(views[0], pid=9)}, {})
        assert together.order == (0, 2, 1)
