"""Plans of groups whose ranks have GPUs: which engine they get, over which networks, and what NCCL is told of them."""

from dataclasses import replace

import pytest

from fabric_client.engine.settings import choose_settings
from fabricd.errors import NoNetworkError
from fabricd.localview import ViewGid, ViewHca
from fabricd.model.device import Gid, GpuDriver, Hca, HcaPort, NvlinkFabric
from fabricd.model.measurement import Measurement
from fabricd.plan.group import AUTO, plan_group
from tests.support.composed import member
from tests.support.group_plans import settings
from tests.support.nodes import hgx, mapping, nic, node, whole_view


def with_nics(snapshot, *nics):
    return replace(snapshot, interfaces=tuple(replace(one, index=index) for index, one in enumerate(nics, 1)))


def view(snapshot, rank, **fields):
    """What a rank on a node sees: all of it, and two GPUs."""
    name = snapshot.node.name
    gpus = {
        "gpu_uuids": (f"GPU-{name}-0", f"GPU-{name}-1"),
        "versions": (("cupy", "14.2.0"), ("nccl", "2.30.4")),
    }
    return whole_view(snapshot, rank, **(gpus | fields))


def plan(*snapshots, engine="nccl", measurements=(), **fields):
    views = {rank: view(snapshot, rank, **fields) for rank, snapshot in enumerate(snapshots)}
    return plan_group(engine, views, mapping(*dict.fromkeys(snapshots)), measurements)


def guided(snapshot):
    """The node with a GUID for each adapter, which ranks know it by."""
    guids = (f"0000:0000:{ord(snapshot.node.name):04x}:{index:04x}" for index in range(99))
    return replace(snapshot, hcas=tuple(replace(one, node_guid=next(guids)) for one in snapshot.hcas))


def infiniband():
    made = with_nics(hgx("a"), nic("eth0", "10.0.0.1/24")), with_nics(hgx("b", lid=101), nic("eth0", "10.0.0.2/24"))
    return guided(made[0]), guided(made[1])


def ethernet():
    cards = (("eth0", "10.0.0"), ("eth1", "10.1.0"))
    return tuple(
        with_nics(node(name), *(nic(card, f"{prefix}.{host}/24") for card, prefix in cards))
        for host, name in enumerate("ab", 1)
    )


def measured(prefix, gigabytes, **fields):
    facts = {
        "src_node": "id-a",
        "dst_node": "id-b",
        "src_interface": "?",
        "dst_interface": "?",
        "src_address": f"{prefix}.1",
        "dst_address": f"{prefix}.2",
        "network": "?",
        "reachable": True,
        "latency_seconds": 20e-6,
        "bandwidth_bytes_per_second": gigabytes * 1e9,
        "age_seconds": 3.0,
    }
    return Measurement(**(facts | fields))


def test_on_one_host_nccl_is_left_alone():
    a, _ = infiniband()
    found = plan(a, a)
    assert (found.engine, settings(found), found.networks) == ("nccl", {}, ())
    assert "NCCL finds the best way between its GPUs by itself" in found.because[0]


def test_infiniband_is_named_and_its_ports_are_the_ranks_devices():
    found = plan(*infiniband())
    assert settings(found) == {"NCCL_NET": "IB"}
    assert found.ranks[1].devices == tuple(f"mlx5_{index}:1" for index in range(8))
    assert [one.transport for one in found.networks if one.chosen] == ["infiniband"]
    assert "infiniband" in found.because[0]


@pytest.mark.parametrize(
    ("channels", "told"),
    [
        ((0,), "NCCL uses it, for every rank has an IMEX channel"),
        ((), "rank 0 on a, rank 1 on b may open no IMEX channel (/dev/nvidia-caps-imex-channels)"),
        (None, "whether rank 0 on a, rank 1 on b may open an IMEX channel is not known"),
    ],
)
def test_an_nvlink_domain_takes_a_channel_where_the_ranks_run(channels, told):
    """A daemon sees its host's channels; the containers of a job may have been given none."""
    domain = NvlinkFabric(cluster_uuid="c", clique_id=1, state="completed", status="success")
    hosts = [
        replace(
            host,
            gpus=tuple(replace(gpu, fabric=domain) for gpu in host.gpus),
            gpu_driver=GpuDriver(imex_channels=(0,)),
        )
        for host in infiniband()
    ]
    (line,) = (line for line in plan(*hosts, imex_channels=channels).because if "NVLink domain" in line)
    assert told in line
    assert not any("NVLink domain" in line for line in plan(*infiniband(), imex_channels=channels).because)


def test_a_container_without_the_adapters_gets_what_it_can_use():
    found = plan(*infiniband(), hcas=())
    assert settings(found) == {"NCCL_SOCKET_IFNAME": "=eth0"}
    assert found.ranks[0].devices == ("eth0",)


@pytest.mark.parametrize(("faster", "card"), [("10.0.0", "eth0"), ("10.1.0", "eth1")])
def test_among_networks_of_tcp_what_was_measured_decides(faster, card):
    speeds = [measured(prefix, 5.0 if prefix == faster else 1.0) for prefix in ("10.0.0", "10.1.0")]
    found = plan(*ethernet(), measurements=speeds)
    assert settings(found)["NCCL_SOCKET_IFNAME"] == f"={card}"
    assert [one.network for one in found.networks if one.chosen] == [f"{faster}.0/24"]
    assert found.ranks[0].address == f"{faster}.1"


def test_a_network_on_which_nothing_arrives_is_not_taken():
    found = plan(*ethernet(), measurements=[measured("10.0.0", 0.0, reachable=False, reason="no answer")])
    assert settings(found)["NCCL_SOCKET_IFNAME"] == "=eth1"


def converged():
    """Two hosts with RoCE on their data network, and a network for management."""
    made = []
    for host, name in enumerate("ab", 1):
        address = f"10.1.0.{host}"
        gids = (Gid(index=3, gid=f"0000:0000:0000:0000:0000:ffff:0a01:{host:04x}", type="roce-v2", interface="data0"),)
        port = HcaPort(port=1, state="active", link_layer="ethernet", rate_bytes_per_second=50_000_000_000, gids=gids)
        own = Hca(name="mlx5_0", kind="roce", pci_address="0000:20:00.0", ports=(port,))
        cards = (
            nic("eth0", f"10.0.0.{host}/24"),
            nic("data0", f"{address}/24", rdma_device="mlx5_0", speed_bytes_per_second=50_000_000_000),
        )
        made.append(guided(replace(with_nics(node(name), *cards), hcas=(own,))))
    return made


def seeing(snapshot, rank):
    """The view of a rank that sees the GIDs of its adapter, too."""
    gids = tuple(
        ViewGid(port=1, index=3, gid=gid.gid, type=gid.type, interface="data0")
        for gid in snapshot.hcas[0].ports[0].gids
    )
    own = ViewHca(name="mlx5_0", node_guid=snapshot.hcas[0].node_guid, usable=True, ports=(1,), gids=gids)
    return view(snapshot, rank, hcas=(own,))


@pytest.mark.parametrize("reached", [True, False])
def test_rdma_on_which_nothing_arrives_is_not_taken_whatever_its_ports_claim(reached):
    nodes = converged()
    told = [measured("10.0.0", 1.0), measured("10.1.0", 5.0, reachable=reached, reason="no answer")]
    views = {rank: seeing(snapshot, rank) for rank, snapshot in enumerate(nodes)}
    found = plan_group("nccl", views, mapping(*nodes), told)
    names = settings(found)
    if reached:
        assert names["NCCL_NET"] == "IB"
        assert found.ranks[0].devices == ("mlx5_0:1",)
    else:
        assert names["NCCL_NET"] == "Socket"
        assert names["NCCL_SOCKET_IFNAME"] == "=eth0"
        assert found.ranks[0].devices == ("eth0",)
        dead = [one for one in found.networks if one.network.endswith("10.1.0.0/24")]
        assert dead
        assert all("cannot reach" in one.reason and not one.chosen for one in dead)


def test_where_nothing_arrives_anywhere_there_is_no_plan():
    dead = [measured(prefix, 0.0, reachable=False, reason="no answer") for prefix in ("10.0.0", "10.1.0")]
    with pytest.raises(NoNetworkError, match="no network joins"):
        plan(*ethernet(), measurements=dead)


def test_paths_are_not_sent_and_the_plan_says_so():
    found = plan(*(guided(member("azure-nd-h100-v5", name, number)) for number, name in enumerate("ab")))
    assert set(settings(found)) == {"NCCL_NET", "NCCL_IB_HCA"}
    assert any("a plan sets no paths: NCCL_TOPO_FILE=/" in line for line in found.because)


def efa():
    """Adapters of another kind, whose ports are of no link layer that the kernel has a name for."""
    return [
        replace(
            one,
            hcas=tuple(
                replace(hca, kind="efa", ports=tuple(replace(port, link_layer="unspecified") for port in hca.ports))
                for hca in one.hcas
            ),
        )
        for one in infiniband()
    ]


@pytest.mark.parametrize("nodes", [infiniband, ethernet, efa])
def test_what_a_plan_sets_is_what_the_client_applies(nodes):
    made = nodes()
    found = plan(*made)
    for rank, part in enumerate(found.ranks):
        chosen, _ = choose_settings(part.settings, view(made[rank], rank), {})
        assert chosen == settings(found, rank)
    assert nodes is not efa or chosen["NCCL_NET"] == "AWS Libfabric"


@pytest.mark.parametrize(
    ("fields", "engine", "why"),
    [
        ({}, "nccl", "every rank has a GPU of its own"),
        ({"gpu_uuids": ()}, "mpi", "no rank sees a GPU"),
        ({"versions": (("cupy", "14.2.0"),)}, "mpi", "rank 0 has no nccl"),
        ({"versions": ()}, "mpi", "rank 0 has no cupy and no nccl"),
    ],
)
def test_the_engine_is_chosen_by_what_the_ranks_have(fields, engine, why):
    found = plan(*infiniband(), engine=AUTO, **fields)
    assert found.engine == engine
    assert found.because[0] == f"engine {engine}: {why}"


def test_more_ranks_than_gpus_are_for_the_hosts_engine():
    a, _ = infiniband()
    found = plan(a, a, a, engine=AUTO)
    assert (found.engine, found.because[0]) == ("mpi", "engine mpi: 3 ranks share 2 GPUs (0-2)")


def test_one_rank_without_a_gpu_decides_for_all():
    a, b = infiniband()
    views = {0: view(a, 0), 1: view(b, 1, gpu_uuids=())}
    found = plan_group(AUTO, views, mapping(a, b))
    assert (found.engine, found.because[0]) == ("mpi", "engine mpi: rank 1 sees no GPU")
