"""What earlier versions sent or wrote is read, and nothing of it lost; what a later one may send is read or refused."""

import io
import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from fabricd.capture import from_text, source_of
from fabricd.cluster.etcd_record import unseal
from fabricd.cluster.groups_limits import Limits, check_join, check_keys
from fabricd.cluster.groups_record import GroupRecord, GroupStore, state_of
from fabricd.errors import ParseError
from fabricd.graph.networks import find_networks
from fabricd.model import capture, cluster_file
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.cluster_file import read_cluster
from fabricd.model.codec import check_snapshot, from_json, to_json, without_counters
from fabricd.model.collective import CollectivePlan
from fabricd.model.device import InterfaceKind
from fabricd.model.event import EventKind, EventPage
from fabricd.model.observation import Evidence, Outcome
from fabricd.model.path import PathAnswer, PathType, Transport
from fabricd.model.problem import Problem
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import SCHEMA, Snapshot
from fabricd.model.wire import (
    FenceAnswer,
    FenceRequest,
    GroupPhase,
    GroupStatus,
    JoinAnswer,
    JoinRequest,
    WatchEvent,
)
from fabricd.paths.query import find_paths
from fabricd.plan.export import NODE_FORMATS, export_node
from fabricd.plan.group import plan_group

RECORDED = Path(__file__).parent / "v1"
KINDS: dict[str, type] = {
    "snapshot": Snapshot, "cluster": ClusterStatus, "networks": ClusterStatus, "events": EventPage, "paths": PathAnswer,
    "plan": CollectivePlan, "problem": Problem, "join_request": JoinRequest, "join_answer": JoinAnswer,
    "group_status": GroupStatus, "fence_request": FenceRequest, "fence_answer": FenceAnswer, "watch_event": WatchEvent,
    "group_record": GroupRecord,
}  # fmt: skip
DOCUMENTS = sorted(path for path in RECORDED.glob("*/*.json") if path.stem != "capture")
STATES = sorted(path for path in RECORDED.iterdir())
KEY, TOKEN = b"/fabricd/nodes/a", "token"


def shown(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def files(name: str) -> list[Path]:
    return sorted(RECORDED.glob(f"*/{name}"))


def lost(before: Any, after: Any, where: str = "$") -> list[str]:
    """Return what stands in one document and not, or otherwise, in the other."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [
            part
            for key, value in before.items()
            for part in (lost(value, after[key], f"{where}.{key}") if key in after else [f"{where}.{key}"])
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [part for at, (one, other) in enumerate(pairs) for part in lost(one, other, f"{where}[{at}]")]
    return [] if before == after else [f"{where}: {before!r} is now {after!r}"]


def with_more(value: Any) -> Any:
    """Return a document as a later version may send it: with a field more in every object."""
    if isinstance(value, dict):
        return {"of_a_later_version": [{"a": 1}], **{key: with_more(one) for key, one in value.items()}}
    return [with_more(one) for one in value] if isinstance(value, list) else value


def test_there_is_something_of_each_kind() -> None:
    assert {path.stem for path in DOCUMENTS} == set(KINDS)
    assert len(STATES) >= 4


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_nothing_is_lost(path: Path) -> None:
    told = json.loads(path.read_bytes())
    assert lost(told, json.loads(to_json(from_json(path.read_bytes(), KINDS[path.stem])))) == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_fields_of_a_later_version_are_passed_over(path: Path) -> None:
    told = json.loads(path.read_bytes())
    free = {"keys", "last_keys", "details"}  # mappings, whose keys are their content
    more = with_more(told) | {key: value for key, value in told.items() if key in free}
    kind = KINDS[path.stem]
    assert from_json(json.dumps(more), kind) == from_json(path.read_bytes(), kind)


@pytest.mark.parametrize("path", files("snapshot.json"), ids=shown)
def test_a_node_of_an_earlier_version_is_worked_with(path: Path) -> None:
    snapshot = SharedParts().decode(path.read_bytes(), Snapshot)
    check_snapshot(snapshot)
    assert all(export_node(form, snapshot).text for form in NODE_FORMATS)
    nodes = {snapshot.node.node_id: snapshot}
    find_networks(nodes)
    best = find_paths(nodes, "gpu0", "numa0").paths[0]
    then = from_json(path.with_name("paths.json").read_bytes(), PathAnswer).paths[0]
    assert (best.type, best.transport, best.dst) == (then.type, then.transport, then.dst)
    assert best.bandwidth_bytes_per_second == then.bandwidth_bytes_per_second


@pytest.mark.parametrize("path", files("join_request.json"), ids=shown)
def test_a_rank_of_an_earlier_version_gets_the_plan_that_it_got(path: Path) -> None:
    request = from_json(path.read_bytes(), JoinRequest)
    view = check_join(0, request, Limits())
    plan = plan_group(request.engine, {0: view}, {})
    then = from_json(path.with_name("join_answer.json").read_bytes(), JoinAnswer).plan
    assert [(one.name, one.value) for one in plan.ranks[0].settings] == [
        (one.name, one.value) for one in then.ranks[0].settings
    ]
    assert plan.process_mapping == then.process_mapping
    check_keys(0, from_json(path.with_name("fence_request.json").read_bytes(), FenceRequest), Limits())


@pytest.mark.parametrize("path", files("group_record.json"), ids=shown)
def test_a_daemon_goes_on_serving_the_groups_of_its_predecessor(path: Path, tmp_path: Path) -> None:
    kvsname = json.loads(path.read_bytes())["kvsname"]
    (tmp_path / f"{kvsname}.group.json").write_bytes(path.read_bytes())
    (record,) = GroupStore(tmp_path).load()
    assert state_of(record, 0.0, max_bytes=1 << 20).status().phase is GroupPhase.RUNNING


@pytest.mark.parametrize("path", files("etcd_record.bin"), ids=shown)
def test_what_stands_in_etcd(path: Path) -> None:
    record = unseal(path.read_bytes(), KEY, TOKEN, SharedParts())
    then = from_json(path.with_name("snapshot.json").read_bytes(), Snapshot)
    assert record.url == "http://10.0.0.1:7470"
    assert record.snapshot is not None
    assert record.snapshot == without_counters(then)


@pytest.mark.parametrize("path", files("capture.json"), ids=shown)
def test_captures(path: Path) -> None:
    source = source_of(from_text(path.read_bytes(), what="it"))
    assert source.refresh().gpus


@pytest.mark.parametrize("path", files("cluster_file.jsonl"), ids=shown)
def test_clusters_in_files(path: Path) -> None:
    with path.open("rb") as stream:
        (node,) = read_cluster(stream, what="it").nodes
    assert node.snapshot is not None
    assert node.snapshot.gpus


def test_a_summary_without_schemas_still_names_its_nodes() -> None:
    (node,) = from_json((RECORDED / "1-groups/cluster.json").read_bytes(), ClusterStatus).nodes
    assert (node.schema, node.was_seen) == (0, True)
    assert not NodeStatus(node_id="", name="", state=NodeState.UNKNOWN).was_seen


def test_a_later_schema_is_read_as_far_as_it_is_known() -> None:
    told = json.loads((STATES[-1] / "snapshot.json").read_bytes())
    later = from_json(json.dumps(with_more(told) | {"schema": SCHEMA + 1}), Snapshot)
    assert later.schema == SCHEMA + 1
    assert later.gpus


def test_a_later_form_of_a_file_is_refused_with_both_versions() -> None:
    text = (STATES[-1] / "capture.json").read_text().replace('"version": 2', f'"version": {capture.VERSION + 1}')
    with pytest.raises(
        ParseError, match=rf"version {capture.VERSION + 1} \(this program reads up to {capture.VERSION}"
    ):
        from_text(text.encode(), what="it")
    data = (STATES[-1] / "cluster_file.jsonl").read_bytes().replace(b'"version":1', b'"version":2')
    with pytest.raises(ParseError, match=rf"version 2 of its format \(this program reads {cluster_file.VERSION}"):
        read_cluster(io.BufferedReader(io.BytesIO(data)), what="it")


def test_groups_of_a_later_version_are_left_out(tmp_path: Path) -> None:
    told = json.loads((STATES[-1] / "group_record.json").read_bytes())
    (tmp_path / f"{told['kvsname']}.group.json").write_text(json.dumps(told | {"version": 2}))
    assert GroupStore(tmp_path).load() == []


@pytest.mark.parametrize(
    ("kind", "instead"),
    [
        (Transport, Transport.UNKNOWN),
        (PathType, PathType.OTHER),
        (GroupPhase, GroupPhase.OTHER),
        (EventKind, EventKind.OTHER),
        (NodeState, NodeState.UNKNOWN),
        (InterfaceKind, InterfaceKind.OTHER),
        (Outcome, Outcome.FAILED),
        (Evidence, Evidence.ASSUMED),
    ],
)
def test_words_of_a_later_version(kind: type[StrEnum], instead: StrEnum) -> None:
    assert from_json(b'"a-later-word"', kind) is instead
    with pytest.raises(ParseError):
        from_json(b"3", kind)
