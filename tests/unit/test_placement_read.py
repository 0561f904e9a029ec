"""Files that say where nodes stand: each form as its documentation has it, and what is wrong with bad ones."""

import json
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import FabricError, ParseError, UnavailableError
from fabricd.model.identity import NodeIdentity
from fabricd.model.placement import Position
from fabricd.placement.imported import names_of
from fabricd.placement.labels import position_of
from fabricd.placement.read import read_placement
from tests.support.nodes import node

TREE = """
# Two leaves below one spine, and a spine below the core
SwitchName=core Switches=spine[0-1]
SwitchName=spine0 Switches=leaf[0-1] LinkSpeed=100
switchname=spine1 switches=leaf2
SwitchName=leaf0 Nodes=gpu[001-002],login \\
  LinkSpeed=50
SwitchName=leaf1 Nodes="gpu003"
SwitchName=leaf2 Nodes=gpu[004-005]
"""
DYNAMIC = "BlockLevels=0,1\nSwitchName=top Switches=s1,s2\nSwitchName=s1\nSwitchName=s2 Nodes=\nBlockName=b\n"
BLOCKS = "BlockName=su1 Nodes=gpu[1-18]\nBlockName=su2 Nodes=gpu[19-36] # spare\nBlockSizes=18,36\n"
YAML = """
---
- topology: racks
  cluster_default: false
  tree:
    switches:
      - switch: other
        nodes: gpu[1-4]
- topology: fabric
  cluster_default: true
  tree:
    switches:
      - switch: top
        children: s[1-2]
      - switch: s1
        nodes: gpu[1-2]
      - {switch: s2, nodes: "gpu[3-4]"}
- topology: units
  cluster_default: false
  block:
    block_sizes: [2, 4]
    blocks:
      - block: b1
        nodes: gpu[1-2]
      - block: b2
        nodes: gpu[3-4]
      - block: spare
- topology: plain
  flat: true
"""


def positions(text):
    return read_placement(text.encode(), "the file").positions


def test_a_tree_of_topology_conf():
    found = positions(TREE)
    assert {name: one.switches for name, one in found.items()} == {
        "gpu001": ("leaf0", "spine0", "core"),
        "gpu002": ("leaf0", "spine0", "core"),
        "login": ("leaf0", "spine0", "core"),
        "gpu003": ("leaf1", "spine0", "core"),
        "gpu004": ("leaf2", "spine1", "core"),
        "gpu005": ("leaf2", "spine1", "core"),
    }
    assert {one.source for one in found.values()} == {"slurm"}


def test_blocks_of_topology_conf():
    found = positions(BLOCKS)
    assert len(found) == 36
    assert (found["gpu18"].block, found["gpu19"].block, found["gpu1"].switches) == ("su1", "su2", ())


def test_switches_that_wait_for_dynamic_nodes_place_none_yet():
    assert positions(DYNAMIC) == {}


def test_topology_yaml_takes_the_default_tree_and_the_blocks():
    imported = read_placement(YAML.encode(), "topology.yaml")
    assert imported.positions["gpu3"] == Position(source="slurm", switches=("s2", "top"), block="b2")
    assert set(imported.positions) == {"gpu1", "gpu2", "gpu3", "gpu4"}
    assert imported.notes == (
        "topology racks is not used: fabric is taken",
        "topology plain is not used: flat places no node",
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2", "line 2: switch a is defined already at line 1"),
        ("SwitchName=a Nodes=n1\n\nSwitchName=b Nodes=n[1-2]", "line 3: node n1 is below b, and below a at line 1"),
        ("SwitchName=a Switches=b", "line 1: switch b below a is not defined"),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a", "stand in a circle"),
        ("SwitchName=l Nodes=n\nSwitchName=a Switches=b,l\nSwitchName=b Switches=a", "stand in a circle"),
        ("SwitchName=a Nodes=n1 Switches=b", "line 1: switch a has either nodes or switches"),
        ("SwitchName=", "line 1: '' is no name of a switch"),
        ("SwitchName=a Nodes=n[1-", "line 1: 'n\\[1-': a bracket is not closed"),
        ("SwitchName=a Knots=n1", "knots does not belong here: linkspeed, nodes, switches, switchname do"),
        ("SwitchName=a Nodes=n1 what", "'what' is no KEY=VALUE"),
        ("SwitchName=a SwitchName=b Nodes=n", "SwitchName stands twice"),
        ("RingName=r Nodes=n1", "a line begins with SwitchName, BlockName or BlockSizes, not ringname"),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1", "node n1 is below b, and below a"),
        ("- topology: a\n  tree: []", "line 2: expected a mapping with switches"),
        ("- topology: a\n  tree: {switches: [{switch: s, nodes: [n1]}]}", "line 2: nodes must be a word"),
        ("- topology: a\n  tre: {}", "line 2: tre does not belong here"),
        ("- topology: a\n", "line 1: a topology is one of tree, block, flat, ring"),
        ("- topology: a\n  tree: {switches: [", "no YAML"),
        ("- topology: " + "[" * 5000, "no YAML"),
        ('{"kind": "Pod"}', "neither items"),
        ('{"items": [{"metadata": {}}]}', r"missing required field `name` - at `\$.items\[0\].metadata`"),
        ('{"instances": [{"id": 5}]}', "Expected `str`"),
        ("{", "the file: "),
        ("hello", "the file does not say where nodes stand"),
        ("\xff", "does not say"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text, says):
    with pytest.raises(ParseError, match=says):
        positions(text)


def test_without_a_parser_of_yaml_the_line_that_installs_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UnavailableError, match="no parser is installed") as caught:
        positions(YAML)
    assert "pip install" in caught.value.hint


def test_aliases_that_multiply_cost_no_more_than_their_text():
    lines = [f"x{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 9)}]" if at else "x0: &a0 [1]" for at in range(20)]
    begun = time.monotonic()
    with pytest.raises(ParseError):
        positions("- topology: t\n  tree:\n    " + "\n    ".join(lines))
    assert time.monotonic() - begun < 20


def test_bytes_that_are_no_text_are_refused():
    with pytest.raises(ParseError, match="no text in UTF-8"):
        read_placement(b"SwitchName=\xff\xfe", "f")


def kubernetes(**labels_of):
    items = [
        {"kind": "Node", "metadata": {"name": name, "labels": labels, "uid": "x"}} for name, labels in labels_of.items()
    ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def test_labels_of_kubernetes_nodes():
    found = positions(
        kubernetes(
            a={
                "network.topology.nvidia.com/leaf": "l1",
                "network.topology.nvidia.com/spine": "s1",
                "topology.kubernetes.io/zone": "z",
                "topology.kubernetes.io/region": "r",
                "nvidia.com/gpu.clique": "u.1",
                "network.topology.nvidia.com/accelerator": "rack7",
            },
            b={"kubernetes.io/hostname": "b"},
        )
    )
    assert found["a"] == Position(source="kubernetes", switches=("l1", "s1"), zone="z", region="r", nvlink_domain="u.1")
    assert found["b"] == Position(source="kubernetes")


@pytest.mark.parametrize(
    ("labels", "switches"),
    [
        ({"fabric.topograph.run/tier-0": "a", "fabric.topograph.run/tier-2": "c"}, ("a", "", "c")),
        ({f"topology.k8s.aws/network-node-layer-{at}": f"n{at}" for at in (1, 2, 3)}, ("n3", "n2", "n1")),
        ({f"topology.k8s.aws/network-node-layer-{at}": f"n{at}" for at in (1, 2, 3, 4)}, ("n4", "n3", "n2", "n1")),
        ({"cloud.google.com/gce-topology-block": "b", "cloud.google.com/gce-topology-subblock": "s"}, ("s", "b")),
        (
            {
                "oci.oraclecloud.com/rdma.local_block_id": "l",
                "oci.oraclecloud.com/rdma.network_block_id": "n",
                "oci.oraclecloud.com/rdma.hpc_island_id": "i",
            },
            ("l", "n", "i"),
        ),
        ({"backend.coreweave.cloud/leafgroup": "7", "backend.coreweave.cloud/fabric": "f"}, ("7", "", "f")),
    ],
)
def test_each_family_of_labels_is_put_nearest_first(labels, switches):
    assert position_of(labels).switches == switches


def test_one_node_of_kubernetes_and_no_label_of_a_known_kind():
    imported = read_placement(b'{"kind": "Node", "metadata": {"name": "a.example", "labels": {"x": "y"}}}', "n.json")
    assert imported.notes == ("n.json: no node has a label of a known kind",)
    assert imported.of(("a",)) == Position(source="kubernetes", origin="n.json")


def test_topographs_graph_and_the_topology_of_ec2():
    graph = '{"instances": [{"id": "i1", "type": "H100", "network_layers": ["l", "s"], "attributes": {"nvlink": "n"}}]}'
    assert positions(graph)["i1"] == Position(
        source="topograph", switches=("l", "s"), nvlink_domain="n", instance_id="i1"
    )
    ec2 = {
        "Instances": [
            {
                "InstanceId": "i-0abc",
                "InstanceType": "p5.48xlarge",
                "NetworkNodes": ["nn-far", "nn-mid", "nn-near"],
                "AvailabilityZone": "us-west-2a",
                "ZoneId": "usw2-az1",
            }
        ],
        "NextToken": "x",
    }
    assert positions(json.dumps(ec2))["i-0abc"] == Position(
        source="aws", switches=("nn-near", "nn-mid", "nn-far"), zone="us-west-2a", instance_id="i-0abc"
    )


def test_a_node_is_found_by_any_of_its_names():
    imported = read_placement(b"SwitchName=l Nodes=gpu1,gpu2", "topology.conf")
    identity = NodeIdentity(node_id="id", name="other", hostname="gpu1.cluster.local")
    assert imported.of(names_of(node(node=identity))) == Position(
        source="slurm", switches=("l",), origin="topology.conf"
    )
    assert imported.of(("gpu3", "GPU1")) is None
    by_instance = node(positions=(Position(source="aws", instance_id="gpu2"),))
    assert imported.of(names_of(by_instance)) is not None


WORDS = st.sampled_from(
    [
        *("SwitchName=", "BlockName=", "Nodes=", "Switches=", "n[0-3]", *'a,[]#\\"-:{} \n\0é', "*a", "&a", "null"),
        *("- topology: t\n", "  tree:\n", "    switches:\n", "      - switch: s\n", "        nodes: n[1-2]\n"),
        *('{"items":[', '{"metadata":{"name":"n"}}', '{"instances":[', '{"id":"i"}', "]}"),
    ]
)


@given(st.lists(WORDS, max_size=30))
def test_any_text_is_positions_or_an_error_that_says_so(words):
    try:
        imported = read_placement("".join(words).encode(), "f")
    except FabricError:
        return
    assert all(name and isinstance(one, Position) for name, one in imported.positions.items())
