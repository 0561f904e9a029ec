"""Files that say where nodes stand, of schedulers and clouds."""

from fabricd.errors import ParseError
from fabricd.model.codec import from_json, to_json
from fabricd.model.placement import Position
from fabricd.placement.read import read_placement
from tests.fuzz.target import Target


def check(data: bytes) -> None:
    try:
        imported = read_placement(data, "it")
    except ParseError:
        return
    for position in imported.positions.values():
        assert from_json(to_json(position), Position) == position
    names = list(imported.positions)[:3]
    for name in names:
        assert imported.of((name,)) is not None


TARGET = Target(
    check=check,
    seeds=lambda: [
        b"SwitchName=s0 Nodes=n[0-3,07-09]\nSwitchName=s1 Nodes=n[4-7]\nSwitchName=top Switches=s[0-1]\n",
        b"BlockName=b0 Nodes=a[01-18] # a rack\nBlockName=b1 Nodes=a[19-36]\nBlockSizes=18,36\n",
        b"---\n- topology: t\n  cluster_default: true\n  tree:\n    switches:\n      - switch: s0\n"
        b"        children: s[1-2]\n"
        b"      - switch: s1\n        nodes: n[0-3]\n      - switch: s2\n        nodes: n4,n5\n",
        b"- topology: b\n  block:\n    block_sizes: [4]\n    blocks:\n      - block: b1\n        nodes: n[1-4]\n",
        b'{"items":[{"kind":"Node","metadata":{"name":"a","labels":{"topology.kubernetes.io/zone":"z",'
        b'"network.topology.nvidia.com/leaf":"l0","network.topology.nvidia.com/spine":"s0",'
        b'"nvidia.com/gpu.clique":"u.1"}}}],"kind":"List"}',
        b'{"instances":[{"id":"i-1","network_layers":["l","s"],"attributes":{"nvlink":"d1"}}]}',
        b'{"Instances":[{"InstanceId":"i-1","NetworkNodes":["n1","n2"],"AvailabilityZone":"z","CapacityBlockId":"c"}]}',
    ],
    words=(
        "SwitchName=", "BlockName=", "Switches=", "Nodes=", "BlockSizes=", "LinkSpeed=", "Include ", "[0-9]",
        "[001-100]", ",", "\n", "\\\n", "#", "- topology: ", "tree:", "block:", "blocks:", "switches:", "nodes: ",
        "children: ", "&a ", "*a", "<<: ", "!!python/object", "kind", "Node", "items", "instances", "Instances",
        "labels",
    ),
    max_bytes=1 << 14,
)  # fmt: skip
