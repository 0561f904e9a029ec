"""Walk and probe on simulated fabrics: real ``ibnetdiscover``, real packets, and its other reports as witness."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from fabricd.model.observation import Outcome
from fabricd.probe import ibnetdiscover
from fabricd.probe.base import ProbeContext, ProbeFailed, Roots
from fabricd.probe.facts import Left, leave_facts
from fabricd.probe.ibfabric import LEFT_FACTS, IbFabricProbe
from fabricd.probe.ibnet import IbKind, IbNet, group_digits, parse_ibnet
from fabricd.probe.ibnetdiscover import Port, active_ports, walk
from tests.support.ibsim import DEVICE, EXAMPLES, fabric
from tests.support.tree import Tree

pytestmark = pytest.mark.ibsim

NETS = ("net", "net.1", "net.2sw2path", "net.2sw2path4hca", "net.2sw2path4hca2port")
#: Two rails that nothing joins, and one adapter of our node on each.
RAILS = """
Switch 8 "RailA"
[1] "Ours0"[1]
[2] "Theirs"[1]

Switch 8 "RailB"
[3] "Ours1"[1]

Hca 2 "Ours0"
[1] "RailA"[1]

Hca 1 "Ours1"
[1] "RailB"[3]

Hca 2 "Theirs"
[1] "RailA"[2]
"""


def node(root: Path, *ports: tuple[str, str, str]) -> ProbeContext:
    """Return a node that has these ports active: device, node GUID, port."""
    tree = Tree()
    for device, guid, port in ports:
        files = {"state": "4: ACTIVE\n", "link_layer": "InfiniBand\n"}
        tree.update(f"sys/class/infiniband/{device}", {"node_guid": f"{guid}\n"})
        tree.update(f"sys/class/infiniband/{device}/ports/{port}", files)
    return ProbeContext(roots=Roots.under(tree.write(root)))


def run(*command: str, env: dict[str, str]) -> str:
    return subprocess.run(command, env=env, check=True, timeout=30, capture_output=True, text=True).stdout


def left(ctx: ProbeContext, env: dict[str, str]) -> Left:
    """Have the facts left, and return what became of the walk."""
    return leave_facts(ctx, (ctx.roots.run / LEFT_FACTS).parent, ib_fabric=True, environment=env)[-1]


def reported_links(env: dict[str, str]) -> set[frozenset[tuple[str, int]]]:
    """Return the links of ``ibnetdiscover -p``, as pairs of (port GUID, port)."""
    end = r"(?:SW|CA|RT) +\d+ +(\d+) 0x([0-9a-f]{16})"
    found = re.findall(rf"^{end} \S+ \S+ - {end} ", run("ibnetdiscover", "-p", env=env), re.MULTILINE)
    return {frozenset({(group_digits(a), int(m)), (group_digits(b), int(n))}) for m, a, n, b in found}


def known_links(net: IbNet) -> set[frozenset[tuple[str, int]]]:
    """Return the same of a net. A switch's ports have its GUID, an adapter's one of their own."""

    def end(node_id: str, number: int) -> tuple[str, int]:
        return net.nodes[node_id].ports[number].guid or net.nodes[node_id].guid, number

    return {frozenset({end(*here), end(*there)}) for here, there in net.links()}


def reported_nodes(kind: str, env: dict[str, str]) -> set[tuple[str, int, str]]:
    """Return GUID, number of ports and name of ``ibnetdiscover -S`` (switches) or ``-H`` (adapters)."""
    lines = re.findall(r'0x([0-9a-f]{16}) ports (\d+) .*"(.*)"', run("ibnetdiscover", kind, env=env))
    return {(group_digits(guid), int(ports), name) for guid, ports, name in lines}


def _guid(adapter: str, env: dict[str, str]) -> str:
    return next(guid for guid, _, name in reported_nodes("-H", env) if name == adapter)


@pytest.mark.parametrize("name", NETS)
def test_what_the_probe_finds_is_what_the_tool_reports(tmp_path: Path, name: str) -> None:
    with fabric(EXAMPLES / name) as on_node:
        env = on_node("Hca1")
        ctx = node(tmp_path, (DEVICE, _guid("Hca1", env), "1"))
        assert left(ctx, env).outcome is Outcome.OK
        net = parse_ibnet((tmp_path / "run" / LEFT_FACTS).read_text())
        switches = {(one.guid, one.port_count, one.name) for one in net.nodes.values() if one.kind is IbKind.SWITCH}
        adapters = {(one.guid, one.port_count, one.name) for one in net.nodes.values() if one.kind is IbKind.HCA}
        assert (switches, adapters) == (reported_nodes("-S", env), reported_nodes("-H", env))
        links = reported_links(env)
        assert known_links(net) == links
    result = IbFabricProbe().run(ctx)
    assert result.notes == ()
    (found,) = result.facts["ib_fabrics"]
    assert (found.switch_count, found.hca_count, found.link_count) == (len(switches), len(adapters), len(links))
    assert {(one.guid, one.port_count, one.name) for one in found.switches} <= switches
    nearest = [one for one in found.switches if one.hops == 1]
    assert [one.name for one in nearest] == ["Switch1"]
    assert f"{DEVICE}:1" in {link.local_port for link in nearest[0].links}
    assert {(link.width, link.speed) for link in nearest[0].links} == {(4, "SDR")}


def test_several_rails_are_several_fabrics(tmp_path: Path) -> None:
    """The simulator shows a program one port, so a script of the tool's name turns it to the one that is asked for."""
    rails = tmp_path / "rails.net"
    rails.write_text(RAILS)
    with fabric(rails) as on_node:
        tool = tmp_path / "ibnetdiscover"
        tool.write_text('#!/bin/sh\n[ "$2" = mlx5_9 ] && exit 5\nSIM_HOST=Ours${2#mlx5_} exec ibnetdiscover\n')
        tool.chmod(0o755)
        ours = [_guid("Ours0", on_node("Ours0")), _guid("Ours1", on_node("Ours1")), "0000:0000:0000:0099"]
        names = ("mlx5_0", "mlx5_1", "mlx5_9")
        ctx = node(tmp_path, *((name, guid, "1") for name, guid in zip(names, ours, strict=True)))
        text, failures = walk(active_ports(ctx), str(tool), on_node("Ours0"))
    assert failures == ("mlx5_9:1: the ibnetdiscover process ended with status 5 without an answer",)
    (tmp_path / "run" / LEFT_FACTS).parent.mkdir(parents=True)
    (tmp_path / "run" / LEFT_FACTS).write_bytes(text)
    found = IbFabricProbe().run(ctx).facts["ib_fabrics"]
    own = {one.switches[0].name: [link.local_port for link in one.switches[0].links] for one in found}
    assert own == {"RailA": ["mlx5_0:1"], "RailB": ["mlx5_1:1"]}


def test_one_walk_is_enough_for_ports_that_it_meets(tmp_path: Path) -> None:
    with fabric(EXAMPLES / "net") as on_node:
        env = on_node("Hca1")
        tool = tmp_path / "ibnetdiscover"
        tool.write_text(f"#!/bin/sh\necho walk >>{tmp_path}/walks\nexec ibnetdiscover\n")
        tool.chmod(0o755)
        ctx = node(tmp_path, ("a", _guid("Hca1", env), "1"), ("b", _guid("Hca2", env), "2"))
        _, failures = walk(active_ports(ctx), str(tool), env)
    assert failures == ()
    assert (tmp_path / "walks").read_text() == "walk\n"


def test_all_walks_together_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three fabrics of which none answers: the third is not even tried."""
    monkeypatch.setattr(ibnetdiscover, "_WALK_SECONDS", 0.3)
    monkeypatch.setattr(ibnetdiscover, "_ALL_WALKS_SECONDS", 0.5)
    ports = [Port(f"mlx5_{number}", f"0000:0000:0000:000{number}", 1) for number in range(1, 4)]
    tool = tmp_path / "ibnetdiscover"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    with pytest.raises(ProbeFailed, match=r"mlx5_1:1: .* within 0\.3 s.*mlx5_2:1: .*mlx5_3:1: no time left"):
        walk(ports, str(tool))


def test_no_walk_comes_to_an_end(tmp_path: Path) -> None:
    ctx = node(tmp_path, ("mlx5_0", "0000:0000:0000:0001", "1"))
    with pytest.raises(ProbeFailed, match=r"mlx5_0:1: the ibnetdiscover process ended with status \d+"):
        walk(active_ports(ctx), "/usr/sbin/ibnetdiscover", dict(os.environ))  # nothing simulates a device for it
    with pytest.raises(ProbeFailed, match=r"mlx5_0:1: .*names no InfiniBand node"):
        walk(active_ports(ctx), "/bin/true")
    kept = tmp_path / "run" / LEFT_FACTS
    kept.parent.mkdir(parents=True)
    kept.write_text("an earlier walk")
    assert left(ctx, dict(os.environ)).outcome is Outcome.FAILED
    assert kept.read_text() == "an earlier walk"


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["ibnetdiscover_manpage_sdr.txt", "topograph_example.out"])
def test_a_captured_cluster_simulated_and_discovered_is_itself(tmp_path: Path, name: str) -> None:
    """622 nodes of a real cluster: what the walk over its simulation tells is what the capture told."""
    capture = Path(os.environ["FABRICD_CORPUS"]) / "topologies/public/ibnet" / name
    before = parse_ibnet(capture.read_text())
    start = next(one for one in before.nodes.values() if one.kind is IbKind.HCA)
    with fabric(capture) as on_node:
        text, failures = walk([Port(DEVICE, start.guid, 1)], "ibnetdiscover", on_node(start.id))
    assert failures == ()
    after = parse_ibnet(text.decode())
    assert set(after.links()) == set(before.links())
    assert {one.id: (one.name, one.guid, one.port_count, one.lid) for one in after.nodes.values()} == {
        one.id: (one.name, one.guid, one.port_count, one.lid) for one in before.nodes.values()
    }
