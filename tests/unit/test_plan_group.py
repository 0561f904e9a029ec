"""Plans of groups: who shares memory, which network is taken, and what each rank sets, in its own names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import InputError, NoNetworkError
from fabricd.localview import LocalView, ViewHca, ViewInterface
from fabricd.model.device import Gid, HcaPort, InterfaceKind, NumaNode
from fabricd.model.measurement import Measurement
from fabricd.model.network import NetworkRule
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.placement import Position
from fabricd.model.plan import GroupPlan
from fabricd.model.routing import Route
from fabricd.model.snapshot import Snapshot
from fabricd.plan.group import plan_group, survey
from fabricd.plan.group_candidate import Candidate
from fabricd.plan.group_choice import Rated, rated_key
from fabricd.plan.group_hosts import process_mapping
from tests.support.nodes import hca, ib_port, mapping, nic, node

LO = ViewInterface(name="lo", mac="00:00:00:00:00:00", up=True, loopback=True, addresses=("127.0.0.1/8",))


def mac(host: str, name: str) -> str:
    return f"02:{ord(host):02x}:00:00:00:{sum(name.encode()) % 256:02x}"


def view(host: str = "a", rank: int = 0, **fields) -> LocalView:
    """A rank on host a, b, ...; interfaces as name="address/length"."""
    known = set(LocalView.__dataclass_fields__)
    interfaces = tuple(
        ViewInterface(name=name, mac=mac(host, name), up=True, addresses=tuple(address.split()))
        for name, address in fields.items()
        if name not in known
    )
    facts = {
        "hostname": host,
        "pid": 100 + rank,
        "boot_id": f"boot-{host}",
        "net_namespace": "1",
        "ipc_namespace": "2",
        "pid_namespace": "3",
        "shm_device": "0:4",
        "node_id": f"id-{host}",
        "interfaces": (LO, *interfaces),
    }
    return LocalView(**{**facts, **{name: value for name, value in fields.items() if name in known}})


def card(host: str, name: str, address: str = "", **fields):
    return nic(name, address, **{"mac": mac(host, name), **fields})


def measured(src: str, dst: str, gigabytes: float = 1.0, **fields) -> Measurement:
    facts = {
        "src_node": "id-a",
        "dst_node": "id-b",
        "src_interface": "?",
        "dst_interface": "?",
        "src_address": src,
        "dst_address": dst,
        "network": "?",
        "reachable": True,
        "latency_seconds": 20e-6,
        "bandwidth_bytes_per_second": gigabytes * 1e9,
        "age_seconds": 3.0,
    }
    return Measurement(**{**facts, **fields})


def settings(plan, rank: int) -> dict[str, str]:
    return {one.name: one.value for one in plan.ranks[rank].settings}


def chosen(plan) -> str:
    return next(one.network for one in plan.networks if one.chosen)


def reason(plan, network: str) -> str:
    return next(one.reason for one in plan.networks if one.network == network)


TWO = {0: view("a", fast="10.1.0.1/24", slow="10.2.0.1/24"), 1: view("b", 1, fast="10.1.0.2/24", slow="10.2.0.2/24")}


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
            ({"memlock_bytes": 65536}, "memlock limit of 65536 bytes"),
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
