"""A cluster in a file, plain or compressed: lines, bounds, and that what was read can be written and read again."""

import gzip
from io import BufferedReader, BytesIO

from fabricd.errors import ParseError
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.cluster_file import Head, is_cluster, lines_of, read_cluster
from fabricd.model.codec import to_json
from tests.fuzz.target import Target
from tests.support.nodes import hgx, node


def check(data: bytes) -> None:
    is_cluster(data[:4096])
    try:
        cluster = _read(data)
    except ParseError:
        return
    assert not any(one.this_node or (one.snapshot and one.snapshot.this_host) for one in cluster.nodes)
    written = b"".join(lines_of(Head(nodes=len(cluster.nodes)), cluster.nodes))
    assert _read(written).nodes == cluster.nodes


def _read(data: bytes) -> ClusterStatus:
    return read_cluster(BufferedReader(BytesIO(data)), what="it")


_NODES = [
    NodeStatus(node_id=one.node.node_id, name=one.node.name, state="ok", snapshot=one)
    for one in (node("a"), hgx("b", gpus=2))
]
_FILE = b"".join(lines_of(Head(nodes=len(_NODES), source="a test", redacted=True), _NODES))
TARGET = Target(
    check=check,
    seeds=lambda: [
        _FILE,
        gzip.compress(_FILE, mtime=0),
        to_json(ClusterStatus(instance="i", generation=1, nodes=tuple(_NODES))),
    ],
    words=(
        '{"format":"fabricd-cluster","version":1,"nodes":', '"node_id":"id-a"', '"snapshot":null', "\n",
        "\x1f\x8b\x08",
    ),
    json=True,
)  # fmt: skip
