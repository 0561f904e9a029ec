"""What engines are told of a job's network: the right value, for the right nodes, and nothing that needs no telling."""

from dataclasses import replace

import pytest

from fabricd.errors import InputError, NoNetworkError, UnknownNameError
from fabricd.graph.networks import find_networks
from fabricd.localview import LocalView, ViewHca, ViewInterface
from fabricd.model.collective import CollectivePlan
from fabricd.model.device import InterfaceKind, LldpNeighbor
from fabricd.model.infiniband import IbFabric
from fabricd.model.network import NetworkRule
from fabricd.model.path import Policy
from fabricd.plan.job_plan import with_settings
from fabricd.plan.settings import SiteChoices, as_seen, of_node, settings_for
from fabricd.plan.settings.sockets import default_interfaces
from tests.support.nodes import hca, hgx, ib_port, nic, node
from tests.support.settings_told import ib_pair, nccl, told, with_nics


def test_one_node_needs_nothing():
    assert told(with_nics(hgx("a"), nic("eth0", "10.0.0.1/24"))) == {}


def test_infiniband_is_named_so_that_a_fallback_fails_and_nothing_else():
    assert nccl(*ib_pair()) == {"NCCL_NET": "IB"}


def test_gloo_and_ucx_get_concrete_names():
    found = told(*ib_pair(), engines=["ucx", "gloo"])
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"
    assert found["UCX_NET_DEVICES"] == ",".join(f"mlx5_{index}:1" for index in range(8))


def test_names_that_differ_are_told_by_node():
    a, b = ib_pair()
    b = with_nics(b, nic("enp1s0", "10.0.0.2/24"))
    assert told(a, b, engines=["gloo"]) == {"GLOO_SOCKET_IFNAME": {"a": "eth0", "b": "enp1s0"}}
    found = settings_for({"a": a, "b": b}, engines=["gloo"])
    assert [one.value for one in of_node(found, "b")] == ["enp1s0"]


def test_an_adapter_for_storage_is_left_out():
    rules = (NetworkRule(interface="mlx5_9:1", name="storage", role="storage"),)
    a, b = (
        replace(one, hcas=(*one.hcas, hca("mlx5_9", ib_port(lid=lid))), site_networks=rules)
        for one, lid in zip(ib_pair(), (90, 190), strict=True)
    )
    found = nccl(a, b)
    assert found["NCCL_IB_HCA"] == "=" + ",".join(f"mlx5_{index}:1" for index in range(8))


@pytest.mark.parametrize(
    ("nics", "taken"),
    [
        ([nic("eth0", "10.0.0.1/24"), nic("docker0", "172.17.0.1/16")], ["eth0"]),
        ([nic("docker0", "172.17.0.1/16"), nic("eth0", "10.0.0.1/24"), nic("eth1", "10.1.0.1/24")], ["eth0", "eth1"]),
        ([nic("eth0", "10.0.0.1/24"), nic("ib0", "10.9.0.1/24")], ["ib0"]),
        ([nic("eth0", "10.0.0.1/24", admin_up=False), nic("lo", "127.0.0.1/8")], ["lo"]),
        ([nic("eth0", "10.0.0.1/24", carrier=False), nic("docker0", "172.17.0.1/16")], ["docker0"]),
        ([nic("veth1", "fe80::1/64"), nic("eth0", "10.0.0.1/24")], ["veth1", "eth0"]),
        ([nic("eth0")], []),
    ],
)
def test_what_nccls_sockets_take_by_themselves(nics, taken):
    assert default_interfaces(with_nics(node("a"), *nics)) == taken


def test_sockets_that_would_begin_on_a_dead_end_are_told_the_network():
    a, b = ib_pair()
    a = with_nics(a, nic("cni0", "10.244.1.1/24"), nic("eth0", "10.0.0.1/24"))
    assert nccl(a, b)["NCCL_SOCKET_IFNAME"] == "=eth0"


def test_the_start_of_a_job_may_go_over_management():
    a, b = ib_pair()
    a = with_nics(a, nic("mgmt", "10.9.0.1/24"), nic("eth0", "10.0.0.1/24"))
    b = with_nics(b, nic("mgmt", "10.9.0.2/24"), nic("eth0", "10.0.0.2/24"))
    assert "NCCL_SOCKET_IFNAME" not in nccl(a, b)


def test_where_sockets_carry_the_data_no_other_interface_may():
    speed = {"speed_bytes_per_second": 12_500_000_000}
    a, b = (
        with_nics(node(name), nic("eth0", f"10.0.0.{host}/24", **speed), nic("tailscale0", f"100.64.0.{host}/10"))
        for name, host in (("a", 1), ("b", 2))
    )
    assert nccl(a, b) == {"NCCL_SOCKET_IFNAME": "=eth0"}


def test_a_node_without_infiniband_makes_all_use_sockets():
    a, _ = ib_pair()
    b = with_nics(node("b"), nic("eth0", "10.0.0.2/24"))
    found = settings_for({"a": a, "b": b}, engines=["nccl"])
    assert [(one.name, one.value) for one in found] == [("NCCL_NET", "Socket")]
    assert "NCCL would take mlx5_0 of a" in found[0].because


def test_rails_that_are_fabrics_of_their_own_are_not_crossed():
    def railed(name, base):
        hcas = tuple(
            replace(card, ports=(ib_port(lid=base, sm_lid=1, prefix=f"fec0:0000:0000:{rail:04x}"),))
            for rail, card in enumerate(hgx(name).hcas)
        )
        return replace(hgx(name), hcas=hcas)

    a, b = with_nics(railed("a", 1), nic("eth0", "10.0.0.1/24")), with_nics(railed("b", 2), nic("eth0", "10.0.0.2/24"))
    assert nccl(a, b) == {"NCCL_NET": "IB", "NCCL_CROSS_NIC": "0"}


def test_the_sites_own_choices_are_set_and_never_guessed():
    site = SiteChoices(traffic_class=106, service_level=3, pkey_index=1, graph_file="/tmp/graph.xml")
    found = nccl(*ib_pair(), site=site)
    assert {name: found[name] for name in ("NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_PKEY", "NCCL_GRAPH_FILE")} == {
        "NCCL_IB_TC": "106",
        "NCCL_IB_SL": "3",
        "NCCL_IB_PKEY": "1",
        "NCCL_GRAPH_FILE": "/tmp/graph.xml",
    }


def test_the_faster_class_is_taken_unless_the_order_of_classes_is_to_hold():
    a, b = (
        replace(
            with_nics(node(name), nic("eth0", f"10.0.0.{host}/24", speed_bytes_per_second=12_500_000_000)),
            hcas=(hca("mlx4_0", ib_port(lid=host, rate=1_000_000_000)),),
        )
        for name, host in (("a", 1), ("b", 2))
    )
    assert nccl(a, b)["NCCL_NET"] == "Socket"
    assert nccl(a, b, policy=Policy.PRIORITY)["NCCL_NET"] == "IB"


def test_a_plan_names_islands_that_only_tcp_joins():
    nodes = {}
    for name, host, prefix in (("a", 1, 1), ("b", 2, 1), ("c", 3, 2), ("d", 4, 2)):
        port = ib_port(lid=host, prefix=f"fec0:0000:0000:{prefix:04x}")
        nodes[name] = replace(with_nics(node(name), nic("eth0", f"10.0.0.{host}/24")), hcas=(hca("mlx5_0", port),))
    plan = CollectivePlan(
        collective="all_reduce", bytes=1, ranks=tuple(f"{name}/gpu{n}" for name in "abcd" for n in (0, 1))
    )
    found = with_settings(plan, nodes)
    assert [(one.network, one.ranks, one.leader) for one in found.islands] == [
        ("ib:fec0:0000:0000:0001", (0, 1, 2, 3), 0),
        ("ib:fec0:0000:0000:0002", (4, 5, 6, 7), 4),
    ]
    assert found.because == (
        "2 islands, with TCP alone between them: ranks 0-3 over ib:fec0:0000:0000:0001 (infiniband); "
        "ranks 4-7 over ib:fec0:0000:0000:0002 (infiniband)",
        "a hierarchy would talk inside the islands, and between them by ranks 0,4 alone",
    )
    assert with_settings(plan, {name: nodes[name] for name in "ab"}).because == ()


def test_a_container_is_told_its_own_names():
    a, b = ib_pair()
    inside = LocalView(
        node_id="id-a",
        interfaces=(ViewInterface(name="net1", mac="02:00:00:00:00:09", up=True, addresses=("10.0.0.77/24",)),),
        hcas=(ViewHca(name="mlx5_0", usable=False),),
    )
    found = told(as_seen(a, inside), b)
    assert found["GLOO_SOCKET_IFNAME"] == {"a": "net1", "b": "eth0"}
    assert found["NCCL_NET"] == "Socket", "its container has no device of InfiniBand"


def test_what_is_said_of_a_hosts_interfaces_is_not_applied_to_a_containers_of_the_same_names():
    """By its name alone a container's eth0 is taken for none of its host: not for its VLAN, role or routes."""
    rules = (
        NetworkRule(role="management", interface="eth0"),
        NetworkRule(name="cluster", subnet="10.9.0.0/16"),
        NetworkRule(role="storage", interface="mlx5_*"),
    )
    a, b = (
        replace(
            with_nics(snapshot, nic("eth0", f"192.168.0.{host}/24"), nic("eth1", f"10.9.0.{host}/24")),
            lldp=(LldpNeighbor(interface="eth0", vlan_id=7),),
            ib_fabrics=(IbFabric(guid="f", switch_count=1, hca_count=2, link_count=2),),
            site_networks=rules,
            hcas=tuple(replace(one, node_guid=f"{host}:{one.name}") for one in snapshot.hcas),
        )
        for host, snapshot in ((1, hgx("a")), (2, hgx("b", lid=101)))
    )
    devices = tuple(ViewHca(name=one.name, node_guid=one.node_guid, usable=True, ports=(1,)) for one in a.hcas)
    inside = LocalView(
        interfaces=(ViewInterface(name="eth0", mac="02:00:00:00:00:09", up=True, addresses=("10.9.0.77/24",)),),
        hcas=devices,
    )
    seen = as_seen(a, inside)
    assert (seen.lldp, seen.ib_fabrics, seen.site_networks) == ((), a.ib_fabrics, rules[1:])
    (found,) = (one for one in find_networks({"a": seen, "b": b}).networks if one.name == "cluster")
    assert [port.interface for port in found.ports] == ["eth0", "eth1"]

    renamed = replace(inside, hcas=(replace(devices[0], name="rdma0"), *devices[1:]))
    seen = as_seen(a, renamed)
    assert (seen.ib_fabrics, seen.site_networks) == ((), rules[1:2]), "the host's names are not its devices'"

    same = tuple(
        ViewInterface(
            name=one.name, mac=one.mac, up=True, addresses=tuple(f"{each.address}/24" for each in one.addresses)
        )
        for one in a.interfaces
    )
    seen = as_seen(a, replace(inside, interfaces=same))
    assert (seen.lldp, seen.ib_fabrics, seen.site_networks) == (a.lldp, a.ib_fabrics, rules)


def test_jobs_that_cannot_be_are_refused():
    with pytest.raises(InputError, match="without nodes"):
        settings_for({})
    with pytest.raises(NoNetworkError, match="no network joins the 2 nodes"):
        told(with_nics(node("a"), nic("eth0", "10.0.0.1/24")), with_nics(node("b"), nic("eth0", "10.1.0.1/24")))
    with pytest.raises(UnknownNameError, match="no engine called 'mpi'"):
        settings_for({"a": node("a")}, engines=["mpi"])


def test_a_name_that_nccls_lists_cannot_hold_is_not_written():
    speed = {"speed_bytes_per_second": 12_500_000_000}
    a, b = (
        with_nics(node(name), nic("a,b", f"10.0.0.{host}/24", **speed), nic("x", f"10.2.{host}.1/24"))
        for name, host in (("a", 1), ("b", 2))
    )
    assert nccl(a, b) == {}
    assert InterfaceKind.PHYSICAL is a.interfaces[0].kind
