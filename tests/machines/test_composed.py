"""Two machines of the suite as nodes of one cluster: which path, why, and why not a better one.

What ``fabricctl paths --explain`` prints is a golden file each, in ``composed/``; ``--update-golden`` writes them anew.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest

from fabric_client.cli.paths_show import show_explained
from fabricd.model.codec import from_json, to_json
from fabricd.model.device import HcaPort, InterfaceKind, IpAddress
from fabricd.model.observation import Outcome
from fabricd.model.path import PathAnswer, Policy, Transport
from fabricd.model.snapshot import Snapshot
from fabricd.paths.estimate import AS_USUAL, Comparison
from fabricd.paths.query import find_paths
from tests.machines.test_machines import compare
from tests.support import machine
from tests.support.composed import member, on_leaves, only, with_address, with_fabric, with_ports, with_tables

GOLDEN = machine.MACHINES / "composed"
RAILS = tuple(f"mlx5_{rail}" for rail in range(8))


def ask(pair: tuple[Snapshot, Snapshot], src: str, dst: str, comparison: Comparison = AS_USUAL) -> PathAnswer:
    nodes = {snapshot.node.node_id: snapshot for snapshot in pair}
    return find_paths(nodes, src, dst, explain=True, candidates=4, comparison=comparison)


def two(name: str, other: str = "") -> tuple[Snapshot, Snapshot]:
    return member(name, "a", 0), member(other or name, "b", 1)


def h100() -> tuple[Snapshot, Snapshot]:
    """Two HGX H100 with eight InfiniBand rails, and a management network."""
    a, b = (only(one, *RAILS) for one in two("hgx-h100"))
    return with_address(a, "eno1", "10.0.0.1/24"), with_address(b, "eno1", "10.0.0.2/24")


def on_rails(snapshot: Snapshot) -> Snapshot:
    """Every rail is a fabric of its own."""
    return with_ports(snapshot, lambda place, port: replace(port, sm_lid=10 + place))


def changed(snapshot: Snapshot, place: int, **fields: object) -> Snapshot:
    """Change the port of one device."""

    def change(here: int, port: HcaPort) -> HcaPort:
        return replace(port, **fields) if here == place else port  # type: ignore[arg-type] # the caller names fields

    return with_ports(snapshot, change)


def same_rail() -> PathAnswer:
    return ask(h100(), "a/gpu3", "b/gpu3")


def isolated_rails() -> PathAnswer:
    a, b = h100()
    return ask((on_rails(a), on_rails(b)), "a/gpu3", "b/gpu5")


def rail_optimised() -> PathAnswer:
    a, b = h100()
    leaves = {f"mlx5_{rail}:1": f"leaf-{rail}" for rail in range(8)}
    return ask((on_leaves(a, leaves, 1), on_leaves(b, leaves, 2)), "a/gpu3", "b/gpu5")


def port_down() -> PathAnswer:
    a, b = h100()
    return ask((changed(a, 3, state="down", physical_state="polling"), b), "a/gpu3", "b/gpu3")


def port_degraded() -> PathAnswer:
    a, b = h100()
    return ask((changed(a, 3, rate_bytes_per_second=12_500_000_000), b), "a/gpu3", "b/gpu3")


def no_gpudirect_at_one_end() -> PathAnswer:
    a, b = h100()
    return ask((a, replace(b, hcas=tuple(replace(hca, dmabuf=False) for hca in b.hcas))), "a/gpu3", "b/gpu3")


def acs_at_one_end() -> PathAnswer:
    a, b = h100()
    above = {device.parent for device in a.pci if device.address in {gpu.pci_address for gpu in a.gpus}}
    pci = (replace(device, acs_redirects=True) if device.address in above else device for device in a.pci)
    return ask((replace(a, pci=tuple(pci)), b), "a/gpu3", "b/gpu3")


def nvlink_domain() -> PathAnswer:
    return ask((member("gb200-nvl72-host0", "a", 0), member("gb200-nvl72-host1", "b", 1)), "a/gpu0", "b/gpu3")


def nvlink_cliques() -> PathAnswer:
    a, b = member("gb200-nvl72-host0", "a", 0), member("gb200-nvl72-host1", "b", 1)
    return ask((a, with_fabric(b, clique_id=1)), "a/gpu0", "b/gpu3")


def nvlink_without_imex() -> PathAnswer:
    a, b = member("gb200-nvl72-host0", "a", 0), member("gb200-nvl72-host1", "b", 1)
    assert b.gpu_driver is not None
    return ask((a, replace(b, gpu_driver=replace(b.gpu_driver, imex_channels=()))), "a/gpu0", "b/gpu3")


def infiniband_and_roce() -> PathAnswer:
    a, _ = h100()
    return ask((a, with_address(member("gcp-a3-ultra", "b", 1), "enp0s12", "10.0.0.2/24")), "a/gpu0", "b/gpu0")


def azure() -> PathAnswer:
    return ask(two("azure-nd-h100-v5"), "a/gpu3", "b/gpu3")


def aws() -> PathAnswer:
    a, b = two("aws-p5")
    return ask((with_address(a, "ens32", "10.0.0.1/24"), with_address(b, "ens32", "10.0.0.2/24")), "a/gpu3", "b/gpu3")


def google() -> PathAnswer:
    return ask(two("gcp-a3-ultra"), "a/gpu3", "b/gpu5")


def rails_with_tables() -> PathAnswer:
    """Eight RoCE rails behind routers, each with a routing table of its own; the main table leads nowhere."""
    a, b = (with_tables(member("gcp-a3-ultra", name, number)) for name, number in (("a", 0), ("b", 2)))
    return ask((a, b), "a/gpu3", "b/gpu3")


def google_tcp() -> PathAnswer:
    pair = []
    for at, one in enumerate(two("gcp-a3-mega"), start=1):
        for net, card in enumerate(card for card in one.interfaces if card.driver == "gve"):
            one = with_address(one, card.name, f"10.{net}.0.{at}/24")
        pair.append(one)
    return ask((pair[0], pair[1]), "a/gpu3", "b/gpu3")


def slingshot() -> PathAnswer:
    a, b = (
        with_address(with_address(one, "hsn1", f"10.249.0.{at}/16"), "nmn0", f"10.100.0.{at}/24")
        for at, one in enumerate(two("perlmutter"), start=1)
    )
    return ask((a, b), "a/gpu0", "b/gpu0")


def internet() -> PathAnswer:
    a = with_address(member("l40s-8x", "a", 0), port_of("l40s-8x"), "198.35.26.10/24", gateway="198.35.26.1")
    b = with_address(member("aws-p5", "b", 1), "ens32", "52.95.110.7/20", gateway="52.95.110.1")
    return ask((only(a), b), "a/gpu0", "b/gpu0")


def port_of(name: str) -> str:
    """The first card's interface."""
    return next(one.name for one in member(name, "x", 0).interfaces if one.kind is InterfaceKind.PHYSICAL)


#: Scene: the best path's transport, ports, relay, GPUDirect at its ends, and bandwidth.
SCENES: dict[Callable[[], PathAnswer], tuple[object, ...]] = {
    same_rail: ("infiniband", "mlx5_3:1", "mlx5_3:1", "", (True, True), 50e9),
    isolated_rails: ("infiniband", "mlx5_5:1", "mlx5_5:1", "a/gpu5", (True, True), 50e9),
    rail_optimised: ("infiniband", "mlx5_5:1", "mlx5_5:1", "a/gpu5", (True, True), 50e9),
    port_down: ("infiniband", "mlx5_0:1", "mlx5_3:1", "a/gpu0", (True, True), 50e9),
    port_degraded: ("infiniband", "mlx5_0:1", "mlx5_3:1", "a/gpu0", (True, True), 50e9),
    no_gpudirect_at_one_end: ("infiniband", "mlx5_3:1", "mlx5_3:1", "", (True, False), 50e9),
    acs_at_one_end: ("infiniband", "mlx5_3:1", "mlx5_3:1", "", (True, True), 50e9),
    nvlink_domain: ("nvlink", "gpu0", "gpu3", "", (None, None), 956.25e9),
    nvlink_cliques: ("infiniband", "mlx5_0:1", "mlx5_3:1", "", (True, True), 50e9),
    nvlink_without_imex: ("infiniband", "mlx5_0:1", "mlx5_3:1", "", (True, True), 50e9),
    infiniband_and_roce: ("ethernet", "eno1", "enp0s12", "", (False, False), 1.25e9),
    azure: ("infiniband", "mlx5_ib3:1", "mlx5_ib3:1", "", (True, True), 50e9),
    aws: ("efa", "rdmap134s22:1", "rdmap134s22:1", "", (False, False), 12.5e9),
    google: ("roce", "rocep198s0:1", "rocep198s0:1", "a/gpu4", (True, True), 50e9),
    rails_with_tables: ("roce", "rocep152s0:1", "rocep152s0:1", "", (True, True), 50e9),
    google_tcp: ("ethernet", "enp51s0", "enp51s0", "", (False, False), 12.5e9),
    slingshot: ("slingshot", "hsn1", "hsn1", "", (None, None), 16e9),
    internet: ("internet", "ens0f0np0", "ens32", "", (False, False), None),
}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_best_path_and_its_explanation(
    scene: Callable[[], PathAnswer], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    answer = scene()
    best = answer.paths[0]
    near, far = best.ends
    ports = (near.port.removeprefix("a/"), far.port.removeprefix("b/"))
    figures = (near.relay, (near.gdr, far.gdr), best.bandwidth_bytes_per_second)
    assert (best.transport, *ports, *figures) == SCENES[scene]
    assert [path.rank for path in answer.paths] == list(range(1, len(answer.paths) + 1))
    show_explained(answer)
    compare(capsys.readouterr().out, GOLDEN / f"{scene.__name__.replace('_', '-')}.txt", request)


def test_policies_and_what_counts_for_them() -> None:
    # The fastest InfiniBand path is slower than RoCE here: its cards have trained down.
    a, b = (with_ports(one, lambda place, port: replace(port, rate_bytes_per_second=10**9) if place < 8 else port)
            for one in two("hgx-h100"))  # fmt: skip
    roled = [replace(one, gpus=()) for one in (a, b)]  # without GPUs nothing says that the others are for storage
    fast = ask((roled[0], roled[1]), "a", "b")
    strict = ask((roled[0], roled[1]), "a", "b", Comparison(policy=Policy.PRIORITY))
    assert (fast.paths[0].transport, strict.paths[0].transport) == (Transport.ROCE, Transport.INFINIBAND)
    assert (fast.policy, strict.policy) == (Policy.FASTEST, Policy.PRIORITY)
    (roce,) = [path for path in strict.paths if path.transport is Transport.ROCE][:1]
    assert roce.because[-1].startswith("by policy priority, infiniband comes before roce; by time alone it would lead")


def test_small_messages_go_straight_and_large_ones_stay_on_their_leaf() -> None:
    a, b = h100()
    leaves = {f"mlx5_{rail}:1": f"leaf-{rail}" for rail in range(8)}
    pair = (on_leaves(a, leaves, 1), on_leaves(b, leaves, 2))
    small = ask(pair, "a/gpu3", "b/gpu5", Comparison(bytes=4096)).paths[0]
    assert (small.ends[0].port, small.ends[0].relay) == ("a/mlx5_3:1", "")
    assert small.cautions == (
        "it goes from leaf-3 to leaf-5, over links between switches that others share",
        "it goes from rail 3 to rail 5",
    )


def test_a_spine_is_crossed_rather_than_data_copied_in_host_memory() -> None:
    # mlx5_6 of a has trained down, so gpu4 passes the data on; it may arrive on rail 4, far from gpu6, or on rail 6.
    a, b = h100()
    a = changed(a, 6, rate_bytes_per_second=25 * 10**9)
    leaves = {f"mlx5_{rail}:1": f"leaf-{rail}" for rail in range(8)}
    best = ask((on_leaves(a, leaves, 1), on_leaves(b, leaves, 2)), "a/gpu6", "b/gpu6").paths[0]
    assert [(end.port, end.gdr) for end in best.ends] == [("a/mlx5_4:1", True), ("b/mlx5_6:1", True)]
    assert best.ends[0].relay == "a/gpu4"


def test_flows_divide_the_bottleneck() -> None:
    alone, shared = (ask(h100(), "a/gpu3", "b/gpu3", Comparison(flows=flows)).paths[0] for flows in (1, 4))
    assert alone.estimate is not None
    assert shared.estimate is not None
    assert shared.estimate.share_bytes_per_second == 12.5e9
    assert shared.estimate.transfer_seconds == pytest.approx(4 * (alone.estimate.transfer_seconds or 0))
    assert shared.bandwidth_bytes_per_second == 50e9


def test_a_bond_counts_once_and_carries_one_flow_by_one_card() -> None:
    pair = []
    for at, one in enumerate(two("hgx-h100"), start=1):
        cards = [card for card in one.interfaces if card.name.startswith("ens3f")]
        members = [replace(card, controller="bond0", addresses=()) for card in cards]
        address = (IpAddress(address=f"10.9.0.{at}", prefix_length=24, family=4),)
        bond = replace(
            cards[0], name="bond0", kind=InterfaceKind.BOND, members=tuple(card.name for card in cards), pci_address="",
            addresses=address, driver="bonding", bond_mode="802.3ad", rdma_device="",
        )  # fmt: skip
        pair.append(replace(only(one), interfaces=(*members, bond)))
    nodes = {snapshot.node.node_id: snapshot for snapshot in pair}
    answer = find_paths(nodes, "a", "b", with_capacity=True)
    (path,) = answer.paths
    assert [end.port for end in path.ends] == ["a/bond0", "b/bond0"]
    assert [hop.dst for hop in path.hops if hop.link == "port"] == ["a/bond0", "b/0000:e1:00.0"]
    assert {one.reason for one in answer.rejected} == {"it carries bond0, which has the address"}


def test_nothing_starts_at_a_lost_gpu_and_none_passes_on_by_it() -> None:
    a, b = two("h100-gpu-lost")
    answer = ask((a, b), "a/gpu3", "b/gpu0")
    assert answer.paths == ()
    assert [(one.name, one.reason) for one in answer.rejected] == [("a/gpu3", "the GPU is failed: GPU is lost")]
    # Only the port beside that GPU is up; its NVLinks are as they were.
    alone = with_ports(a, lambda place, port: port if place == 3 else replace(port, state="down"))
    alone = replace(alone, gpus=tuple(replace(gpu, links=a.gpus[0].links) for gpu in alone.gpus))
    found = ask((alone, b), "a/gpu0", "b/gpu0").paths
    assert {end.relay for path in found for end in path.ends} == {""}
    whole = replace(alone, gpus=tuple(replace(gpu, outcome=Outcome.OK) for gpu in alone.gpus))
    assert "a/gpu3" in {end.relay for path in ask((whole, b), "a/gpu0", "b/gpu0").paths for end in path.ends}


KINDS = (
    "hgx-h100", "gb200-nvl72-host0", "azure-nd-h100-v5", "aws-p5", "gcp-a3-ultra", "gcp-a3-mega", "perlmutter",
    "l40s-8x", "h100-gpu-lost",
)  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_answers_between_any_two_of_these_machines_hold_together(name: str) -> None:
    for other in KINDS:
        a, b = two(name, other)
        nodes = {snapshot.node.node_id: snapshot for snapshot in (a, b)}
        for src, dst in (("a/gpu0", "b/gpu1"), ("b/gpu0", "a"), ("a", "b")):
            answer = find_paths(nodes, src, dst, explain=True, candidates=8)
            assert answer.paths or answer.rejected
            assert from_json(to_json(answer), PathAnswer) == answer
            for path in answer.paths:
                assert (path.hops[0].src, path.hops[-1].dst) == (path.src, path.dst)
                assert all(before.dst == after.src for before, after in pairwise(path.hops))
                widths = [hop.bandwidth_bytes_per_second for hop in path.hops if hop.bandwidth_bytes_per_second]
                assert path.bandwidth_bytes_per_second in (None, min(widths))
                assert path.because
            strict = find_paths(nodes, src, dst, comparison=Comparison(policy=Policy.PRIORITY))
            assert bool(strict.paths) == bool(answer.paths)
