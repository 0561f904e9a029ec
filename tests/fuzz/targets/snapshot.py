"""A node's snapshot, as another daemon or a file tells it, and everything that is derived from it."""

from dataclasses import replace
from itertools import pairwise

from fabricd.errors import InputError
from fabricd.graph.networks import find_networks
from fabricd.graph.snapshot import graph_of
from fabricd.model.codec import check_snapshot, content_hash, from_json, to_json
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import Snapshot
from fabricd.paths.query import find_paths
from fabricd.plan.export import NODE_FORMATS, export_node
from fabricd.redact import redact
from tests.fuzz.machine_seeds import snapshots
from tests.fuzz.target import Target
from tests.support.nodes import hgx

_OTHER = hgx("other")


def check(data: bytes) -> None:
    try:
        snapshot = from_json(data, Snapshot)
        check_snapshot(snapshot)
    except InputError:
        return
    assert from_json(to_json(snapshot), Snapshot) == snapshot
    assert SharedParts().decode(data, Snapshot) == snapshot
    assert content_hash(replace(snapshot, taken_at=1.0)) == content_hash(snapshot)
    redact(snapshot, key=bytes(32))
    nodes = {snapshot.node.node_id: snapshot, _OTHER.node.node_id: _OTHER}
    for use in (_export, _graph):
        try:
            use(snapshot)
        except InputError:
            continue
    find_networks(nodes)
    ends = [f"gpu{gpu.index}" for gpu in snapshot.gpus[:2]] + [nic.name for nic in snapshot.interfaces[:1]]
    for src, dst in pairwise([*ends, f"{_OTHER.node.name}/gpu0"]):
        try:
            find_paths(nodes, src, dst, explain=True)
        except InputError:
            continue


def _export(snapshot: Snapshot) -> None:
    for form in NODE_FORMATS:
        export_node(form, snapshot)


def _graph(snapshot: Snapshot) -> None:
    graph_of(snapshot)


TARGET = Target(check=check, seeds=snapshots, json=True)
