"""Clusters in files: what is written is read; what is hostile, cut off or none is refused, and told why."""

import gzip
import io
from dataclasses import replace

import pytest

from fabricd.errors import ParseError
from fabricd.model import cluster_file, shared
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.cluster_file import Head, is_cluster, lines_of, read_cluster
from fabricd.model.codec import content_hash, from_json, to_json
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import hgx, node, nvl_tray


def status(snapshot: Snapshot, **fields: object) -> NodeStatus:
    made = replace(snapshot, this_host=False)
    made = replace(made, content_hash=content_hash(made))
    base = NodeStatus(
        node_id=made.node.node_id,
        name=made.node.name,
        state=NodeState.OK,
        content_hash=made.content_hash,
        schema=made.schema,
        snapshot=made,
    )
    return replace(base, **fields)  # type: ignore[arg-type] # the caller names fields of NodeStatus


NODES = (status(hgx("a")), status(hgx("b", lid=20)), status(nvl_tray(1), state=NodeState.STALE, reason="silent"))


def read(data: bytes) -> ClusterStatus:
    return read_cluster(io.BufferedReader(io.BytesIO(data)), what="f")


def written(*nodes: NodeStatus, **fields: object) -> bytes:
    head = replace(Head(nodes=len(nodes)), **fields)  # type: ignore[arg-type] # the caller names fields of Head
    return b"".join(lines_of(head, nodes))


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_what_is_written_is_read(pack):
    data = pack(written(*NODES))
    assert is_cluster(data[:4096])
    assert read(data).nodes == NODES


def test_equal_parts_of_nodes_are_one_object():
    first, second, _ = (one.snapshot for one in read(written(*NODES)).nodes)
    assert first.pci is second.pci
    assert first.gpus[0].links is second.gpus[7].links
    assert first.gpus[0] is not second.gpus[0]


def test_an_answer_of_a_daemon_is_read_and_none_of_it_is_this_host():
    here = NodeStatus(
        node_id="id-a",
        name="a",
        state=NodeState.OK,
        this_node=True,
        age_seconds=3.0,
        url="http://x:1",
        snapshot=hgx("a"),
    )
    answer = ClusterStatus(instance="i", generation=3, nodes=(here, NODES[1]), conflicts=("c",))
    pretty = to_json(answer).replace(b",", b",\n")
    assert is_cluster(pretty)
    for data in (to_json(answer), pretty):
        cluster = read(data)
        first = cluster.nodes[0]
        assert (first.this_node, first.url, first.age_seconds, cluster.conflicts) == (False, "", None, ("c",))
        assert not first.snapshot.this_host
        assert first.snapshot.content_hash == content_hash(first.snapshot)


def test_of_nodes_that_claim_one_node_id_in_an_answer_none_is_taken():
    answer = ClusterStatus(instance="i", generation=3, nodes=(NODES[0], NODES[1], NODES[0]))
    nodes = read(to_json(answer)).nodes
    assert [one.snapshot is None for one in nodes] == [True, False, True]
    assert nodes[0].reason == "2 nodes claim this node_id"
    assert read(written(*nodes)).nodes == nodes


def test_a_snapshot_is_no_cluster():
    assert not is_cluster(to_json(hgx()))
    assert not is_cluster(b"<system/>")
    assert not is_cluster(gzip.compress(to_json(hgx())))
    assert not is_cluster(b"\x1f\x8b damaged")


def without_end(data: bytes) -> bytes:
    return b"\n".join(data.split(b"\n")[:-2]) + b"\n"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (without_end(written(*NODES)), "has 2 of 3 nodes"),
        (written(*NODES)[:-400], "line 4 is not a valid NodeStatus"),
        (gzip.compress(written(*NODES))[:-40], "cut off or damaged"),
        (gzip.compress(written(*NODES))[:60] + b"x" * 60, "cut off or damaged"),
        (written(*NODES, NODES[0]), "line 5: node_id 'id-a' stands there twice"),
        (written(status(node("a"), node_id="other")), "has the snapshot of another node"),
        (written(replace(NODES[0], node_id="", snapshot=node("x\n"))), "does not say who it is"),
        (written(NODES[0]).replace(b'"version":1', b'"version":2'), "version 2"),
        (written(NODES[0]).replace(b'"pci":[{', b'"pci":[3,{'), "Expected `object`, got `int` - at `$[0]`, in `pci`"),
        (written(NODES[0]).replace(b'"gpus":[{', b'"gpus":[3,{'), "line 2 is not a valid NodeStatus"),
        (written(NODES[0]) + b"\x00\n", "not a valid NodeStatus"),
        (b"[" * 100_000, "not a valid ClusterStatus"),
        (b"", "not a valid ClusterStatus"),
    ],
)
def test_what_is_wrong_is_told(data, told):
    with pytest.raises(ParseError) as caught:
        read(data)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("bound", "value", "told"),
    [
        ("MAX_LINE_BYTES", 3000, "too large, after line 1"),
        ("MAX_BYTES", 40_000, "too large, after line"),
        ("MAX_NODES", 2, "more than 2 nodes"),
    ],
)
def test_files_are_bounded_after_decompression(monkeypatch, bound, value, told):
    monkeypatch.setattr(cluster_file, bound, value)
    with pytest.raises(ParseError, match=told):
        read(gzip.compress(written(*NODES)))


def test_blank_lines_without_end_are_not_read():
    blank = gzip.compress(written(*NODES) + b"\n" * (1 << 22))
    with pytest.raises(ParseError, match="more than 131072 lines"):
        read(blank)


def test_a_saved_answer_is_bounded(monkeypatch):
    monkeypatch.setattr(cluster_file, "MAX_ANSWER_BYTES", 1000)
    with pytest.raises(ParseError, match="too large"):
        read(to_json(ClusterStatus(instance="i", generation=0, nodes=NODES)))


@pytest.mark.parametrize("long", [1, 1 << 18])
def test_sharing_decodes_as_the_codec_does_and_forgets(monkeypatch, long):
    monkeypatch.setattr(shared, "_LONG_BYTES", long)
    monkeypatch.setattr(shared, "_MAX_PARTS", 2)
    parts = SharedParts()
    for one in (hgx("a"), nvl_tray(2), node("c"), hgx("a")):
        data = to_json(one)
        assert parts.decode(data, Snapshot) == from_json(data, Snapshot) == one
        assert len(parts._known) <= 2
    assert parts.decode(b'{"node":{"node_id":"i","name":"n"},"new":[1]}', Snapshot) == from_json(
        b'{"node":{"node_id":"i","name":"n"}}', Snapshot
    )


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"node":{"node_id":3}}', b'{"node":', b'{"node":{},"pci":{}}'])
def test_sharing_refuses_what_the_codec_refuses(data):
    for decode in (SharedParts().decode, from_json):
        with pytest.raises(ParseError):
            decode(data, Snapshot)
