"""Findings between nodes: the one that differs is named, with what the others have."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from fabricd.findings.cluster import cluster_findings
from fabricd.findings.find import MAX_FINDINGS, KnownFindings, find
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus, StoreStatus
from fabricd.model.device import GpuDriver, LldpNeighbor
from fabricd.model.finding import Finding, Severity
from fabricd.model.measurement import Measurement
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import GEN5, hgx, mapping, nic, nvl_tray, pci

NAMES = ("a", "b", "c", "d")


def found(nodes: Iterable[Snapshot], measurements: tuple[Measurement, ...] = ()) -> list[Finding]:
    known = mapping(*nodes)
    names = {node_id: one.node.name for node_id, one in known.items()}
    return list(find(known, names, measurements=measurements).findings)


def cluster(change: Callable[[Snapshot], Snapshot] = lambda one: one) -> list[Snapshot]:
    """Four HGX machines, the third of them changed."""
    made = [hgx(name, lid=1 + 8 * place) for place, name in enumerate(NAMES)]
    made = [replace(one, gpu_driver=GpuDriver(driver_version="570.1")) for one in made]
    made = [with_hcas(dmabuf=True, peer_memory=False)(active_mtu(one, 4096)) for one in made]
    return [change(one) if one.node.name == "c" else one for one in made]


def with_hcas(**fields: object) -> Callable[[Snapshot], Snapshot]:
    return lambda one: replace(one, hcas=tuple(replace(hca, **fields) for hca in one.hcas))


def renamed(one: Snapshot) -> Snapshot:
    return replace(one, hcas=tuple(replace(hca, name=f"ib{place}") for place, hca in enumerate(one.hcas)))


def slowed(one: Snapshot) -> Snapshot:
    ports = (replace(one.hcas[2].ports[0], rate_bytes_per_second=25 * 10**9),)
    return replace(one, hcas=(*one.hcas[:2], replace(one.hcas[2], ports=ports), *one.hcas[3:]))


def active_mtu(one: Snapshot, mtu: int) -> Snapshot:
    hcas = (replace(hca, ports=(replace(hca.ports[0], active_mtu=mtu),)) for hca in one.hcas)
    return replace(one, hcas=tuple(hcas))


def unplugged(one: Snapshot) -> Snapshot:
    ports = (replace(one.hcas[2].ports[0], state="down", rate_bytes_per_second=1_250_000_000),)
    return replace(one, hcas=(*one.hcas[:2], replace(one.hcas[2], ports=ports), *one.hcas[3:]))


def flashed(one: Snapshot, version: str = "28.39") -> Snapshot:
    return with_hcas(board_id="MT_1", firmware=version)(one)


DIFFERING = {
    "gpus-differ": (lambda one: replace(one, gpus=one.gpus[:7]), "7", "8 on 3 of 4 nodes"),
    "driver-differs": (lambda one: replace(one, gpu_driver=GpuDriver(driver_version="550.9")), "550.9", "570.1 on 3"),
    "adapters-differ": (renamed, "ib0:1", "mlx5_0:1"),
    "rate-differs": (slowed, "25 GB/s", "50 GB/s on 3"),
    "gpudirect-differs": (with_hcas(dmabuf=True, peer_memory=True), "peer memory yes", "peer memory no on 3"),
}


@pytest.mark.parametrize("code", DIFFERING)
def test_one_node_that_differs_is_named(code: str) -> None:
    change, here, usual = DIFFERING[code]
    of_code = [one for one in found(cluster(change)) if one.code == code]
    assert [one.node for one in of_code] == ["c"]
    assert here in of_code[0].evidence[0]
    assert usual in of_code[0].evidence[1]


def test_a_port_that_is_down_has_no_rate_to_compare() -> None:
    told = [one for one in found(cluster(unplugged)) if one.code == "rate-differs"]
    assert [one.evidence[:2] for one in told] == [("here down (mlx5_2:1)", "50 GB/s on 3 of 4 nodes with these GPUs")]


@pytest.mark.parametrize(
    ("change", "code", "shown"),
    [(slowed, "port-slow", "its like on this node up to 50 GB/s"), (unplugged, "port-down", "7 alike")],
)
def test_a_port_that_differs_is_told_once_with_what_its_own_node_shows(change, code, shown) -> None:
    (told,) = [one for one in found(cluster(change)) if "mlx5_2:1" in one.subject]
    assert (told.code, told.also, told.severity) == ("rate-differs", (code,), Severity.ERROR)
    assert shown in " ".join(told.evidence)
    alone = cluster(change)[2]
    assert [one.code for one in found([alone]) if one.subject == "mlx5_2:1"] == [code]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(with_hcas(peer_memory=None), id="peer memory"),
        pytest.param(lambda one: replace(one, gpu_driver=None), id="driver"),
        pytest.param(
            lambda one: replace(one, gpus=one.gpus[:4], node=replace(one.node, product="half of it")),
            id="GPUs of another product",
        ),
    ],
)
def test_what_is_not_known_or_of_another_kind_differs_from_nothing(change: Callable[[Snapshot], Snapshot]) -> None:
    assert [one for one in found(cluster(change)) if one.severity is not Severity.NOTE] == []


def test_firmware_is_compared_by_board() -> None:
    nodes = [flashed(one, "28.40" if one.node.name == "c" else "28.39") for one in cluster()]
    told = [one for one in found(nodes) if one.code == "firmware-differs"]
    assert [(one.node, one.subject, one.severity) for one in told] == [("c", "board MT_1", Severity.NOTE)]


def test_nothing_is_wrong_between_nodes_alike_or_of_different_kinds() -> None:
    assert found(cluster()) == []
    trays = [replace(nvl_tray(place), gpu_driver=GpuDriver(imex_channels=(0,))) for place in range(2)]
    trays = [replace(one, gpus=tuple(replace(gpu, name="GB200") for gpu in one.gpus)) for one in trays]
    assert found([*cluster(), *trays]) == []


def test_of_two_nodes_nobody_is_called_the_odd_one() -> None:
    told = [one for one in found(cluster(DIFFERING["driver-differs"][0])[2:]) if one.code == "driver-differs"]
    assert [one.node for one in told] == [""]
    assert sorted(told[0].evidence) == ["550.9 on 1 node, c for one", "570.1 on 1 node, d for one"]


def on_leaves(name: str, place: int, *, mtu: int = 9000, crossed: bool = False, address: int | None = None) -> Snapshot:
    """A machine with two rails by Ethernet, each in a subnet and at a switch of its own."""
    base = hgx(name, gpus=2)
    at = place + 1 if address is None else address
    devices = tuple(pci(f"0000:a{rail}:00.0", root=f"pci{rail:04x}:00", link=GEN5) for rail in range(2))
    interfaces = tuple(
        nic(
            f"ens{rail}", f"10.{rail}.0.{at}/16", mac=f"02:00:00:00:{place:02x}:0{rail}", mtu=mtu, carrier=True,
            pci_address=f"0000:a{rail}:00.0", speed_bytes_per_second=50 * 10**9,
        )
        for rail in range(2)
    )  # fmt: skip
    leaves = ("leaf-1", "leaf-0") if crossed else ("leaf-0", "leaf-1")
    lldp = tuple(LldpNeighbor(interface=f"ens{rail}", system_name=leaves[rail]) for rail in range(2))
    return replace(base, hcas=(), pci=(*base.pci, *devices), interfaces=interfaces, lldp=lldp)


def test_different_mtus_on_one_network_are_told() -> None:
    told = found([on_leaves("a", 0), on_leaves("b", 1), on_leaves("c", 2, mtu=1500)])
    assert [(one.code, one.subject) for one in told] == [("mtu-differs", "10.0.0.0/16"), ("mtu-differs", "10.1.0.0/16")]
    assert told[0].evidence == ("9000: 2 ports", "1500: c/ens0")
    assert told[0].severity is Severity.WARNING
    told = found(cluster(lambda one: active_mtu(one, 2048)))
    assert [(one.code, one.severity) for one in told] == [("mtu-differs", Severity.ERROR)]


def test_two_swapped_cables_are_found() -> None:
    told = found([*(on_leaves(name, place) for place, name in enumerate(NAMES)), on_leaves("e", 9, crossed=True)])
    assert [(one.code, one.node, one.subject) for one in told] == [
        ("rail-crossed", "e", "ens0"),
        ("rail-crossed", "e", "ens1"),
    ]
    assert told[0].evidence == ("leaf-1: 4 of 5 ports are rail 1 of their nodes",)


def test_a_missing_adapter_does_not_cross_those_behind_it() -> None:
    nodes = [on_leaves(name, place) for place, name in enumerate(NAMES)]
    odd = on_leaves("e", 9)
    told = found([*nodes, replace(odd, interfaces=odd.interfaces[1:])])
    assert [one.code for one in told if one.code == "rail-crossed"] == []


def test_one_switch_for_all_rails_is_no_swapped_cable() -> None:
    nodes = [on_leaves(name, place) for place, name in enumerate(NAMES)]
    one_leaf = [
        replace(one, lldp=tuple(replace(neighbor, system_name="tor") for neighbor in one.lldp)) for one in nodes
    ]
    assert found(one_leaf) == []


def test_one_address_on_two_nodes() -> None:
    told = found([on_leaves("a", 0), on_leaves("b", 1, address=1)])
    assert [(one.code, one.subject) for one in told] == [("address-twice", "10.0.0.1"), ("address-twice", "10.1.0.1")]
    assert told[0].evidence == ("a/ens0", "b/ens0")
    assert told[0].severity is Severity.WARNING
    told = found([on_leaves(name, place, address=7) for place, name in enumerate(NAMES)])
    assert [(one.code, one.severity) for one in told] == [("address-twice", Severity.NOTE)] * 2


def test_an_nvlink_domain_of_several_hosts_wants_imex_channels() -> None:
    trays = [nvl_tray(place) for place in range(3)]
    trays[0] = replace(trays[0], gpu_driver=GpuDriver(imex_channels=(0,)))
    told = [one for one in found(trays) if one.code == "imex-missing"]
    assert [one.evidence for one in told] == [("2 of 3 hosts: tray1, tray2",)]
    assert [one for one in found(trays[:1]) if one.code == "imex-missing"] == []


def test_a_measurement_that_failed_is_an_error() -> None:
    nodes = [on_leaves("a", 0), on_leaves("b", 1)]
    failed = Measurement(
        src_node="id-a", dst_node="id-b", src_interface="ens0", dst_interface="ens0", src_address="10.0.0.1",
        dst_address="10.0.0.2", network="10.0.0.0/16", reachable=False, reason="no route to host", age_seconds=3.0,
    )  # fmt: skip
    told = found(nodes, (failed, replace(failed, dst_node="id-unknown"), replace(failed, reachable=True)))
    assert [one.code for one in told] == ["unreachable"]
    assert told[0].evidence == ("no route to host", "measured 3 s ago, 10.0.0.1 to 10.0.0.2")


def test_nodes_that_do_not_answer_and_a_store_that_is_lost() -> None:
    states = (NodeState.OK, NodeState.STALE, NodeState.GONE, NodeState.UNKNOWN)
    nodes = [NodeStatus(node_id=state, name=f"n-{state}", state=state, reason="timed out") for state in states]
    head = ClusterStatus(
        instance="i", generation=1, nodes=(), conflicts=("two nodes are called a",), faults=("no list",),
        store=StoreStatus(backend="etcd", state=NodeState.STALE, reason="refused"),
    )  # fmt: skip
    told = list(cluster_findings(head, nodes))
    assert [one.code for one in told] == [
        "node-stale", "node-gone", "node-unknown", "node-conflict", "membership-fault", "store-lost",
    ]  # fmt: skip
    assert [one.code for one in cluster_findings(head, nodes, {"gone"})] == ["node-gone"]


def test_what_was_found_is_kept_until_a_node_changes() -> None:
    known = KnownFindings()
    nodes = mapping(*cluster())
    before = known.of_node("id-a", nodes["id-a"])
    assert known.of_node("id-a", nodes["id-a"]) is before
    lost = replace(nodes["id-a"], gpus=(replace(nodes["id-a"].gpus[0], ecc_uncorrected=1), *nodes["id-a"].gpus[1:]))
    assert [one.code for one in known.of_node("id-a", lost)] == ["gpu-ecc"]
    known.keep_to({})
    assert known.of_node("id-a", nodes["id-a"]) == before


def test_an_answer_is_bounded_and_says_what_is_left_out() -> None:
    more = [Finding(code="facts-conflict", severity=Severity.NOTE, what=str(place)) for place in range(MAX_FINDINGS)]
    worst = Finding(code="gpu-lost", severity=Severity.ERROR, what="gone")
    told = find({}, {}, more=[*more, worst])
    assert len(told.findings) == MAX_FINDINGS
    assert told.findings[0] == worst
    assert told.left_out == 1
