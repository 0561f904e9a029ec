"""Plans of groups over RDMA: devices, rails and islands."""

from dataclasses import replace

import pytest

from fabricd.errors import NoNetworkError
from fabricd.localview import LocalView, ViewHca, ViewInterface
from fabricd.model.device import Gid, HcaPort, NumaNode
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group import plan_group
from tests.support.group_plans import LO, card, chosen, mac, measured, reason, settings, view
from tests.support.nodes import hca, ib_port, mapping, node


class TestRdma:
    def hosts(self, **fields):
        """Two hosts, each with an InfiniBand port and Ethernet, whose ranks may open the port."""
        nodes, views = [], {}
        for rank, host in enumerate("ab"):
            adapter = hca("mlx5_0", ib_port(lid=rank + 1), node_guid=f"guid-{host}")
            nodes.append(node(host, interfaces=(card(host, "eth0", f"10.1.0.{rank + 1}/24"),), hcas=(adapter,)))
            seen = ViewHca(name="mlx5_7", node_guid=f"guid-{host}", usable=True, ports=(1,))
            views[rank] = view(host, rank, eth0=f"10.1.0.{rank + 1}/24", **{"hcas": (seen,), **fields})
        return views, mapping(*nodes)

    def test_infiniband_comes_before_ethernet_under_the_ranks_own_name(self):
        views, nodes = self.hosts()
        plan = plan_group("mpi", views, nodes, [measured("10.1.0.1", "10.1.0.2", 1.2)])
        assert next(one for one in plan.networks if one.chosen).transport is Transport.INFINIBAND
        assert settings(plan, 0) == {"UCX_TLS": "self,rc,ud", "UCX_NET_DEVICES": "mlx5_7:1"}

    def test_gloo_takes_none_of_it(self):
        views, nodes = self.hosts()
        plan = plan_group("gloo", views, nodes, [measured("10.1.0.1", "10.1.0.2", 1.2)])
        assert chosen(plan) == "10.1.0.0/24"
        assert [one.reason for one in plan.networks if one.transport is Transport.UNKNOWN and "ib:" in one.network] == [
            "Gloo talks by TCP alone"
        ]

    def test_beside_nccl_gloo_gets_an_ip_network_and_the_ranks_their_addresses(self):
        views, nodes = self.hosts()
        plan = plan_group("nccl+gloo", views, nodes, [measured("10.1.0.1", "10.1.0.2", 1.2)])
        assert next(one for one in plan.networks if one.chosen).transport is Transport.INFINIBAND
        assert settings(plan, 1)["GLOO_SOCKET_IFNAME"] == "eth0"
        assert settings(plan, 1)["NCCL_NET"] == "IB"
        assert plan.ranks[1].devices == ("mlx5_7:1",)
        assert [one.address for one in plan.ranks] == ["10.1.0.1", "10.1.0.2"]
        assert "Gloo takes 10.1.0.0/24" in plan.because[-1]
        bare = {rank: replace(one, interfaces=(LO,)) for rank, one in views.items()}
        plan = plan_group("nccl+gloo", bare, nodes)
        assert [one.address for one in plan.ranks] == ["", ""]
        assert "nothing for Gloo: no network joins" in plan.because[-1]

    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"hcas": ()}, ""),
            ({"memlock_bytes": 64 << 20}, "memlock limit of 67108864 bytes"),
        ],
        ids=["not passed into the container", "memlock"],
    )
    def test_what_the_rank_may_not_use_is_no_candidate(self, fields, words):
        views, nodes = self.hosts(**fields)
        plan = plan_group("mpi", views, nodes, [measured("10.1.0.1", "10.1.0.2", 1.2)])
        assert chosen(plan) == "10.1.0.0/24"
        assert words in " ".join(one.reason for one in plan.networks)

    @staticmethod
    def soft_roce(**fields) -> tuple[dict[int, LocalView], dict[str, Snapshot]]:
        nodes, views = [], {}
        for rank, host in enumerate("ab"):
            gid = Gid(index=1, gid="0000", type="roce-v2", interface="eth0")
            port = HcaPort(
                port=1, state="active", link_layer="ethernet", rate_bytes_per_second=125 * 10**6, gids=(gid,)
            )
            nodes.append(
                node(
                    host,
                    interfaces=(card(host, "eth0", f"10.1.0.{rank + 1}/24", **fields),),
                    hcas=(hca("rxe0", port, kind="soft-roce", node_guid=f"guid-{host}"),),
                )
            )
            seen = ViewHca(name="rxe0", node_guid=f"guid-{host}", usable=True, ports=(1,))
            views[rank] = view(host, rank, eth0=f"10.1.0.{rank + 1}/24", hcas=(seen,))
        return views, mapping(*nodes)

    @pytest.mark.parametrize("speed", [None, 10**6, 125 * 10**6])
    @pytest.mark.parametrize("found", [[], [measured("10.1.0.1", "10.1.0.2", 1.0)]], ids=["unmeasured", "measured"])
    def test_rdma_that_software_does_comes_behind_tcp_below_it(self, speed, found):
        views, nodes = self.soft_roce(speed_bytes_per_second=speed)
        plan = plan_group("mpi", views, nodes, found)
        assert chosen(plan) == "10.1.0.0/24"
        assert settings(plan, 0)["UCX_TLS"] == "self,tcp"
        why = "rxe0:1 is RDMA done by software on eth0, where the kernel's TCP is faster"
        assert reason(plan, "10.1.0.0/24").startswith(f"before roce:10.1.0.0/24: {why}")
        assert reason(plan, "roce:10.1.0.0/24").startswith(f"behind 10.1.0.0/24: {why}")

    @pytest.mark.parametrize(("gigabytes", "best"), [(2.0, "roce:10.1.0.0/24"), (0.5, "10.1.0.0/24")])
    def test_where_rdma_that_software_does_was_itself_measured_figures_decide(self, gigabytes, best):
        views, nodes = self.soft_roce()
        by_roce = measured("10.1.0.1", "10.1.0.2", gigabytes, network="roce:10.1.0.0/24")
        plan = plan_group("mpi", views, nodes, [measured("10.1.0.1", "10.1.0.2", 1.0), by_roce])
        assert chosen(plan) == best
        figures = {one.network: (one.bandwidth_bytes_per_second, one.evidence) for one in plan.networks}
        assert figures["10.1.0.0/24"] == (1e9, Evidence.MEASURED)
        assert figures["roce:10.1.0.0/24"] == (gigabytes * 1e9, Evidence.MEASURED)
        assert "GB/s" in reason(plan, best)
        if best.startswith("roce"):
            assert settings(plan, 0) == {"UCX_TLS": "self,rc,ud", "UCX_NET_DEVICES": "rxe0:1"}

    def test_where_mpi_cannot_use_tcp_below_it_rdma_that_software_does_is_taken(self):
        views, nodes = self.soft_roce()
        second = "10.7.{0}.1/24 10.1.0.{0}/24"  # UCX binds to an interface's first address
        views = {
            rank: replace(
                one,
                interfaces=(LO, replace(one.interfaces[1], addresses=tuple(second.format(rank + 1).split()))),
            )
            for rank, one in views.items()
        }
        plan = plan_group("mpi", views, nodes)
        assert chosen(plan) == "roce:10.1.0.0/24"
        assert "UCX would use its first address" in reason(plan, "10.1.0.0/24")

    def test_where_tcp_does_not_arrive_rdma_that_software_does_is_none_either(self):
        views, nodes = self.soft_roce()
        broken = measured("10.1.0.1", "10.1.0.2", reachable=False, bandwidth_bytes_per_second=None)
        with pytest.raises(NoNetworkError):
            plan_group("mpi", views, nodes, [broken])

    def test_each_rank_takes_the_port_near_its_processors(self):
        nodes, views = [], {}
        numa = (NumaNode(index=0, cpus=(0, 1)), NumaNode(index=1, cpus=(2, 3)))
        for number, host in enumerate("ab"):
            adapters = tuple(
                hca(f"mlx5_{one}", ib_port(lid=number * 2 + one + 1), node_guid=f"{host}{one}", numa_node=one)
                for one in (0, 1)
            )
            nodes.append(node(host, hcas=adapters, numa=numa))
            seen = tuple(
                ViewHca(name=f"mlx5_{one}", node_guid=f"{host}{one}", usable=True, ports=(1,)) for one in (0, 1)
            )
            for local in (0, 1):
                cpus = numa[local].cpus
                views[number * 2 + local] = view(host, number * 2 + local, hcas=seen, cpus=cpus)
        plan = plan_group("mpi", views, mapping(*nodes))
        assert [settings(plan, rank)["UCX_NET_DEVICES"] for rank in range(4)] == ["mlx5_0:1", "mlx5_1:1"] * 2
        assert settings(plan, 0)["UCX_TLS"] == "self,sm,rc,ud"


def railed(hosts: str, ranks_per_host: int, adapters: int = 4, prefix: str = "fec0:0000:0000:0001"):
    """Hosts with several adapters on one InfiniBand fabric, two beside each NUMA node."""
    numa = (NumaNode(index=0, cpus=(0, 1)), NumaNode(index=1, cpus=(2, 3)))
    nodes, views = [], {}
    for number, host in enumerate(hosts):
        cards = tuple(
            hca(
                f"mlx5_{one}",
                ib_port(lid=number * adapters + one + 1, prefix=prefix),
                node_guid=f"{host}{one}",
                numa_node=one * 2 // adapters,
            )
            for one in range(adapters)
        )
        address = f"10.1.0.{number + 1}/24"
        nodes.append(node(host, hcas=cards, numa=numa, interfaces=(card(host, "eth0", address),)))
        seen = tuple(
            ViewHca(name=f"mlx5_{one}", node_guid=f"{host}{one}", usable=True, ports=(1,)) for one in range(adapters)
        )
        for local in range(ranks_per_host):
            rank = number * ranks_per_host + local
            cpus = numa[local * 2 // ranks_per_host].cpus if ranks_per_host > 1 else (0, 1, 2, 3)
            views[rank] = view(host, rank, hcas=seen, cpus=cpus, eth0=address)
    return views, mapping(*nodes)


class TestRails:
    def test_ranks_of_a_host_share_its_ports_out(self):
        plan = plan_group("mpi", *railed("ab", 4))
        used = [settings(plan, rank)["UCX_NET_DEVICES"] for rank in range(8)]
        assert used == ["mlx5_0:1", "mlx5_1:1", "mlx5_2:1", "mlx5_3:1"] * 2

    @pytest.mark.parametrize(
        ("ranks", "devices", "told"),
        [(1, "mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1", "4"), (2, "mlx5_0:1,mlx5_1:1", None)],
    )
    def test_a_rank_uses_all_the_ports_that_there_are_for_it(self, ranks, devices, told):
        plan = plan_group("mpi", *railed("ab", ranks))
        assert settings(plan, 0)["UCX_NET_DEVICES"] == devices
        assert settings(plan, 0).get("UCX_MAX_RNDV_RAILS") == told
        assert plan.ranks[0].devices == tuple(devices.split(","))

    def test_rails_that_may_be_fabrics_of_their_own_are_used_one_by_one(self):
        plan = plan_group("mpi", *railed("ab", 1, prefix="fe80:0000:0000:0000"))
        assert settings(plan, 0)["UCX_NET_DEVICES"] == "mlx5_0:1"

    def test_the_host_with_the_fewest_ports_for_a_rank_decides(self):
        views, nodes = railed("ab", 1)
        one = replace(views[1], hcas=views[1].hcas[:1])
        plan = plan_group("mpi", {0: views[0], 1: one}, nodes)
        assert [settings(plan, rank)["UCX_NET_DEVICES"] for rank in (0, 1)] == ["mlx5_0:1", "mlx5_0:1"]


class TestIslands:
    def test_hosts_that_something_faster_joins_are_named_with_their_leaders(self):
        """Two on one InfiniBand fabric, two on another, one with Ethernet alone: Ethernet joins all."""
        views, nodes = railed("ab", 1)
        others, more = railed("cd", 1, prefix="fec0:0000:0000:0002")
        for number, host in enumerate("cde"):
            address = f"10.1.0.{number + 11}/24"
            base = others[number] if number < 2 else view(host, 4)
            interface = ViewInterface(name="eth0", mac=mac(host, "eth0"), up=True, addresses=(address,))
            views[2 + number] = replace(base, interfaces=(LO, interface))
            known = more.get(f"id-{host}", node(host))
            nodes[f"id-{host}"] = replace(known, interfaces=(card(host, "eth0", address),))
        plan = plan_group("mpi", views, nodes)
        assert chosen(plan) == "10.1.0.0/24"
        assert [(one.network, one.transport, one.ranks, one.leader) for one in plan.islands] == [
            ("ib:fec0:0000:0000:0001", Transport.INFINIBAND, (0, 1), 0),
            ("ib:fec0:0000:0000:0002", Transport.INFINIBAND, (2, 3), 2),
            ("e", Transport.SHM, (4,), 4),
        ]
        assert "3 islands: ranks 0-1 over ib:fec0:0000:0000:0001 (infiniband); 2-3" in " ".join(plan.because)

    def test_what_joins_all_makes_no_islands(self):
        assert plan_group("mpi", *railed("ab", 1)).islands == ()
