"""Leaf and spine of nodes on a simulated InfiniBand fabric: real walks, each node's own, put together."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.graph.networks import find_networks
from fabricd.graph.placement import placement
from fabricd.model.device import Hca, HcaPort
from fabricd.model.observation import Evidence, Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.facts import leave_facts
from fabricd.probe.ibfabric import LEFT_FACTS, IbFabricProbe
from fabricd.probe.ibnet import parse_ibnet
from tests.support.ibsim import DEVICE, fabric
from tests.support.nodes import mapping, node
from tests.support.tree import Tree

pytestmark = pytest.mark.ibsim

LEAVES = {"LeafA": ("NodeA", "NodeB"), "LeafB": ("NodeC",), "LeafC": ("NodeD",)}
SPINES = {"SpineA": ("LeafA", "LeafB"), "SpineB": ("LeafA", "LeafB"), "SpineC": ("LeafC",)}


def net_file() -> str:
    """Two leaves below two spines, and a leaf below a third one; in ``ibsim``'s form, each link at both of its ends."""
    ends: dict[str, list[str]] = {name: [] for name in (*LEAVES, *SPINES)}
    hosts = []
    for leaf, nodes in LEAVES.items():
        for at, name in enumerate(nodes, start=1):
            ends[leaf].append(f'[{at}] "{name}"[1]')
            hosts.append(f'Hca 1 "{name}"\n[1] "{leaf}"[{at}]\n')
    for number, (spine, leaves) in enumerate(SPINES.items()):
        for at, leaf in enumerate(leaves, start=1):
            ends[spine].append(f'[{at}] "{leaf}"[{4 + number}]')
            ends[leaf].append(f'[{4 + number}] "{spine}"[{at}]')
    switches = ["\n".join([f'Switch 8 "{name}"', *links, ""]) for name, links in ends.items()]
    return "\n".join([*switches, *hosts])


def walked(root: Path, name: str, environment: dict[str, str], guid: str) -> Snapshot:
    """Return a node with what a walk from it has met."""
    tree = Tree()
    tree.update(f"sys/class/infiniband/{DEVICE}", {"node_guid": f"{guid}\n"})
    port = {"state": "4: ACTIVE\n", "link_layer": "InfiniBand\n"}
    tree.update(f"sys/class/infiniband/{DEVICE}/ports/1", port)
    ctx = ProbeContext(roots=Roots.under(tree.write(root)))
    left = leave_facts(ctx, (ctx.roots.run / LEFT_FACTS).parent, ib_fabric=True, environment=environment)[-1]
    assert left.outcome is Outcome.OK, left.reason
    hca = Hca(name=DEVICE, kind="infiniband", ports=(HcaPort(port=1, state="active", link_layer="infiniband"),))
    return replace(node(name, hcas=(hca,)), ib_fabrics=IbFabricProbe().run(ctx).facts["ib_fabrics"])


def test_each_nodes_own_walk_places_all_of_them(tmp_path: Path) -> None:
    net = tmp_path / "net"
    net.write_text(net_file())
    with fabric(net) as on_node:
        guids = _guids(on_node("NodeA")) | _guids(on_node("NodeD"))
        names = ("NodeA", "NodeB", "NodeC", "NodeD")
        snapshots = [walked(tmp_path / name, name, on_node(name), guids[name]) for name in names]
    places = placement(mapping(*snapshots))
    assert [(place.leaf, place.spine) for place in places.values()] == [
        ("LeafA", "SpineA"),
        ("LeafA", "SpineA"),
        ("LeafB", "SpineA"),
        ("LeafC", "SpineC"),
    ]
    assert {place.evidence for place in places.values()} == {Evidence.REPORTED}
    networks = find_networks(mapping(*snapshots)).networks
    assert [len(network.ports) for network in networks] == [3, 1]


def _guids(environment: dict[str, str]) -> dict[str, str]:
    """Return the GUID of each node of a fabric, by name, as the tool reports it."""
    text = subprocess.run(
        ["ibnetdiscover"], env=environment, check=True, timeout=30, capture_output=True, text=True
    ).stdout
    return {one.name: one.guid for one in parse_ibnet(text, what="the fabric").nodes.values()}
