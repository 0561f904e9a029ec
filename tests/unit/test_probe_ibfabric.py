"""Probe ``ibfabric``: of a walk over the fabric, the switches around this node."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.codec import content_hash, from_json, to_json
from fabricd.model.infiniband import IbLink
from fabricd.model.snapshot import Snapshot
from fabricd.probe import ibfabric
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeFailed, ProbeNotRun, ProbeResult, Roots
from fabricd.probe.ibfabric import LEFT_FACTS, IbFabricProbe
from fabricd.probe.ibnet import IbNet, parse_ibnet
from fabricd.probe.runner import take_snapshot
from fabricd.redact import redact
from tests.support.tree import Entry, Pipe, Tree

GUID, OTHER_GUID = "b8ce:f603:0000:0001", "b8ce:f603:0000:0002"


def node(
    kind: str, guid: int, name: str, ports: dict[int, tuple[str, int]], *, count: int = 8, speed: str = "NDR"
) -> str:
    """Return a record. Ports lead to "S-1"-like ids, which are written out."""
    letter = {"Switch": "S", "Ca": "H"}[kind]
    lines = [f"vendid=0x2c9\ndevid=0xd2f2\n{'switch' if letter == 'S' else 'ca'}guid={guid:#x}({guid:x})"]
    told = f" enhanced port 0 lid {guid % 100} lmc 0" if letter == "S" else ""
    lines.append(f'{kind}\t{count} "{letter}-{guid:016x}"\t\t# "{name}"{told}')
    for port, (peer, peer_port) in ports.items():
        letter, number = peer.split("-")
        lines.append(f'[{port}]\t"{letter}-{int(number, 16):016x}"[{peer_port}]\t\t# "peer" lid 5 4x{speed}')
    return "\n".join(lines) + "\n\n"


MINE, MINE_TOO, THEIRS, SHARP = (f"H-{number:x}" for number in (0xB8CEF60300000001, 0xB8CEF60300000002, 0xC1, 0xC2))
#: mlx5_0 on leaf-1, mlx5_1 on leaf-2; leaf-3 carries another node; one spine, two cables from leaf-1.
NET = (
    node("Switch", 0xA1, "leaf-1", {1: (MINE, 1), 2: (THEIRS, 1), 5: ("S-A9", 1), 6: ("S-A9", 2), 8: (SHARP, 1)})
    + node("Switch", 0xA2, "leaf-2", {1: (MINE_TOO, 1), 5: ("S-A9", 3)})
    + node("Switch", 0xA3, "leaf-3", {1: (THEIRS, 2), 5: ("S-AA", 1)})
    + node("Switch", 0xA9, "spine", {1: ("S-A1", 5), 2: ("S-A1", 6), 3: ("S-A2", 5), 4: ("S-AA", 2)})
    + node("Switch", 0xAA, "core", {1: ("S-A3", 5), 2: ("S-A9", 4)})
    + node("Ca", 0xB8CEF60300000001, "node-1 mlx5_0", {1: ("S-A1", 1)}, count=1)
    + node("Ca", 0xB8CEF60300000002, "node-1 mlx5_1", {1: ("S-A2", 1)}, count=1)
    + node("Ca", 0xC1, "node-2 HCA-1", {1: ("S-A1", 2), 2: ("S-A3", 1)}, count=2)
    + node("Ca", 0xC2, "Mellanox Technologies Aggregation Node", {1: ("S-A1", 8)}, count=1)
)
#: The same adapter and another node's on a switch that nothing joins with the rest.
RAIL = (
    node("Switch", 0x99, "rail", {1: (MINE, 2), 2: (THEIRS, 3)}, speed="HDR")
    + node("Ca", 0xB8CEF60300000001, "node-1 mlx5_0", {2: ("S-99", 1)}, count=2)
    + node("Ca", 0xC1, "node-2 HCA-1", {3: ("S-99", 2)}, count=3)
)


def machine(left: Entry = NET, *, layer: str = "InfiniBand") -> Tree:
    tree = Tree({f"run/{LEFT_FACTS}": left} if left is not None else {})
    for name, guid in (("mlx5_0", GUID), ("mlx5_1", OTHER_GUID)):
        tree.update(f"sys/class/infiniband/{name}", {"node_guid": f"{guid}\n", "ports/1/link_layer": f"{layer}\n"})
    return tree


def context(root: Path, tree: Tree, **options: bool) -> ProbeContext:
    return ProbeContext(roots=Roots.under(tree.write(root)), **{"this_host": False, **options})


def probe(root: Path, tree: Tree) -> ProbeResult:
    return IbFabricProbe().run(context(root, tree))


def test_the_switches_around_this_node(tmp_path: Path) -> None:
    result = probe(tmp_path, machine())
    assert result.notes == ()
    (fabric,) = result.facts["ib_fabrics"]
    assert (fabric.guid, fabric.switch_count, fabric.hca_count, fabric.link_count) == ("0000:0000:0000:00a1", 5, 3, 10)
    told = [(one.hops, one.name, one.hca_links, one.switch_links, one.aggregation) for one in fabric.switches]
    assert told == [(1, "leaf-1", 2, 2, True), (1, "leaf-2", 1, 1, False), (2, "spine", 0, 4, False)]
    leaf, _, spine = fabric.switches
    assert (leaf.guid, leaf.lid, leaf.port_count) == ("0000:0000:0000:00a1", 61, 8)
    assert (leaf.vendor_id, leaf.device_id) == (0x2C9, 0xD2F2)
    ndr = {"width": 4, "speed": "NDR", "rate_bytes_per_second": 50_000_000_000}
    assert leaf.links == (
        IbLink(port=1, peer=GUID, peer_port=1, local_port="mlx5_0:1", **ndr),
        IbLink(port=5, peer=spine.guid, peer_port=1, **ndr),
        IbLink(port=6, peer=spine.guid, peer_port=2, **ndr),
    )
    assert spine.links == ()


def test_an_adapter_joins_no_fabrics(tmp_path: Path) -> None:
    """Two fabrics, of which each has one port of mlx5_0."""
    rail, fabric = probe(tmp_path, machine(NET + RAIL)).facts["ib_fabrics"]
    assert [link.local_port for link in rail.switches[0].links] == ["mlx5_0:2"]
    assert (rail.guid, rail.switch_count, rail.hca_count, rail.link_count) == ("0000:0000:0000:0099", 1, 2, 2)
    assert rail.switches[0].links[0].rate_bytes_per_second == 25_000_000_000
    assert (fabric.guid, fabric.switch_count) == ("0000:0000:0000:00a1", 5)


def test_an_adapter_that_no_walk_has_met_is_noted(tmp_path: Path) -> None:
    assert probe(tmp_path, machine(RAIL)).notes == ("mlx5_1: no walk has met it",)


def test_fabrics_of_others_are_not_shown(tmp_path: Path) -> None:
    theirs = node("Switch", 0x11, "theirs", {1: (THEIRS, 4)}) + node("Ca", 0xC1, "node-2", {4: ("S-11", 1)})
    assert [one.guid for one in probe(tmp_path, machine(NET + theirs)).facts["ib_fabrics"]] == ["0000:0000:0000:00a1"]


def test_adapters_back_to_back_have_no_switch(tmp_path: Path) -> None:
    net = node("Ca", 0xB8CEF60300000001, "node-1", {1: (THEIRS, 1)}) + node("Ca", 0xC1, "node-2", {1: (MINE, 1)})
    assert probe(tmp_path, machine(net)).facts == {"ib_fabrics": ()}


def test_off_absent_and_failed(tmp_path: Path) -> None:
    with pytest.raises(ProbeAbsent, match="no InfiniBand port"):
        probe(tmp_path / "1", Tree({f"run/{LEFT_FACTS}": NET}))
    with pytest.raises(ProbeAbsent, match="no InfiniBand port"):
        probe(tmp_path / "2", machine(layer="Ethernet"))
    with pytest.raises(ProbeNotRun, match='off: needs ib_fabric = "on", and fabricd facts'):
        probe(tmp_path / "3", machine(None))
    with pytest.raises(ProbeFailed, match="shows 2 nodes, and no adapter of this machine"):
        probe(
            tmp_path / "4", machine(node("Switch", 1, "s", {1: ("H-C1", 1)}) + node("Ca", 0xC1, "n", {1: ("S-1", 1)}))
        )


@pytest.mark.parametrize(
    ("left", "why"),
    [
        ("", "names no InfiniBand node"),
        ("\x00\xff", "names no"),
        (b"\xff" * 5000, "names no"),
        (Pipe(), "not a regular"),
    ],
)
def test_what_is_no_walk(tmp_path: Path, left: Entry, why: str) -> None:
    with pytest.raises(ProbeFailed, match=why):
        probe(tmp_path, machine(left))


def test_it_is_read_again_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, one, reads = context(tmp_path, machine()), IbFabricProbe(), []

    def counted(text: str, *, what: str) -> IbNet:
        reads.append(what)
        return parse_ibnet(text, what=what)

    monkeypatch.setattr(ibfabric, "parse_ibnet", counted)
    first = one.run(ctx).facts
    assert one.run(ctx).facts == first
    assert len(reads) == 1
    (tmp_path / "run" / LEFT_FACTS).write_text(NET + RAIL)
    assert len(one.run(ctx).facts["ib_fabrics"]) == 2
    (tmp_path / "sys/class/infiniband/mlx5_0/node_guid").write_text("0000:0000:0000:00c1\n")  # the card was changed
    (rail, _) = one.run(ctx).facts["ib_fabrics"]
    assert [link.local_port for link in rail.switches[0].links] == ["mlx5_0:3"]
    assert len(reads) == 3


def test_an_old_walk_says_so(tmp_path: Path) -> None:
    ctx = context(tmp_path, machine(), this_host=True)
    assert IbFabricProbe().run(ctx).notes == ()
    os.utime(tmp_path / "run" / LEFT_FACTS, (0, time.time() - 90_000))
    assert "older than a day" in IbFabricProbe().run(ctx).notes[0]
    assert IbFabricProbe().run(replace(ctx, this_host=False)).notes == ()  # a replay is as old as it is


def test_in_a_snapshot(tmp_path: Path) -> None:
    ctx = context(tmp_path, machine(NET + '[3] "S-9"[1]\n'))
    snapshot = take_snapshot(ctx, probes=[IbFabricProbe()])
    assert from_json(to_json(snapshot), Snapshot) == snapshot
    redacted = redact(snapshot)
    text = to_json(redacted).decode()
    for secret in ("leaf-1", "spine", "node-2", "0000:00a1", "0300000001", "f603:0000:0001"):
        assert secret not in text, secret
    (fabric,) = redacted.ib_fabrics
    names = [one.name for one in fabric.switches]
    assert len(set(names)) == 3
    assert all(name.startswith("switch-") for name in names)
    assert fabric.switches[0].links[1].peer == fabric.switches[2].guid
    assert redacted.content_hash == content_hash(redacted)
