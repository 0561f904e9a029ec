"""``python -m tests.wire.record FOLDER``: record what this version sends and writes, for the versions that follow."""

import contextlib
import http.client
import json
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fabricd.capture import take, to_text
from fabricd.cluster.etcd_record import Record, seal
from fabricd.localview import LocalView, ViewInterface
from fabricd.model.cluster import NodeState, NodeStatus
from fabricd.model.cluster_file import Head, lines_of
from fabricd.model.codec import from_json, to_json
from fabricd.model.snapshot import Snapshot
from fabricd.model.wire import CLAIM_HEADER, SECRET_HEADER, FenceRequest, JoinRequest
from tests.support.machine import load
from tests.support.machine_run import FAST, context_of, snapshot_of
from tests.wire.versions import HERE

_NODE_ID, _NAME, _CLAIM = "0123456789abcdef" * 2, "gh200", "ab" * 16
_HEADERS = {SECRET_HEADER: "0123456789abcdef", CLAIM_HEADER: _CLAIM}
_VIEW = LocalView(
    hostname="a",
    boot_id="b",
    net_namespace="1",
    ipc_namespace="2",
    pid_namespace="3",
    shm_device="0:4",
    shm_bytes=1 << 30,
    cpus=(0, 1),
    interfaces=(ViewInterface(name="eth0", mac="02:00:00:00:00:01", up=True, addresses=("10.0.0.1/24",)),),
    versions=(("mpich", "5.0.2"),),
)
_JOIN = JoinRequest(world_size=1, claim=_CLAIM, view=_VIEW, engine="mpi")
_FENCE = FenceRequest(rank=0, keys={"-bc-0": "x#y$"})


def main() -> int:
    """Record into a new folder."""
    if len(sys.argv) != 2:
        print("usage: python -m tests.wire.record FOLDER", file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="fabricd-record-", dir=FAST) as place:
        folder = Path(place)
        snapshot, _ = snapshot_of(load(_NAME), folder)
        (folder / "machine.json").write_bytes(to_json(snapshot))
        replay = ["--replay", str(folder / "machine.json"), "--node-id", _NODE_ID, "--name", _NAME]
        with HERE.daemon("d", folder, *replay) as daemon:
            daemon.wait_ready()
            _ask_all(daemon.socket, out)
            for path in folder.rglob("*.group.json"):
                (out / "group_record.json").write_bytes(path.read_bytes())
        _write_files(out, folder)
    return 0


def _ask_all(path: str, out: Path) -> None:
    """Record a daemon's answers, and what a rank sends."""
    group = "/v1/groups/g"
    for name, method, target, body in (
        ("snapshot", "GET", "/v1/node", None),
        ("cluster", "GET", "/v1/cluster?summary=1", None),
        ("networks", "GET", "/v1/cluster?summary=1&networks=1", None),
        ("paths", "GET", "/v1/paths?src=gpu0&dst=numa0&explain=1", None),
        ("events", "GET", "/v1/events", None),
        ("problem", "GET", "/v1/nodes/nobody", None),
        ("plan", "POST", "/v1/plans", b"{}"),
        ("join_answer", "PUT", f"{group}/members/0?wait=30", to_json(_JOIN)),
        ("watch_event", "GET", f"{group}/members/0/watch", None),
        ("group_status", "GET", group, None),
        ("fence_answer", "POST", f"{group}/fence/0?wait=10", to_json(_FENCE)),
    ):
        _write(out, name, _asked(path, method, target, body, _HEADERS))
    _write(out, "join_request", to_json(_JOIN))
    _write(out, "fence_request", to_json(_FENCE))


def _asked(path: str, method: str, target: str, body: bytes | None, headers: Mapping[str, str]) -> bytes:
    """Return an answer; of a stream its first line."""
    with socket.socket(socket.AF_UNIX) as connected:
        connected.settimeout(60)
        connected.connect(path)
        with contextlib.closing(http.client.HTTPConnection("fabricd")) as connection:
            connection.sock = connected
            connection.request(method, target, body=body, headers=dict(headers))
            answer = connection.getresponse()
            return answer.readline() if target.endswith("/watch") else answer.read()


def _write_files(out: Path, folder: Path) -> None:
    """Record what is kept in files and in etcd."""
    snapshot = from_json((out / "snapshot.json").read_bytes(), Snapshot)
    record = Record(instance="i", url="http://10.0.0.1:7470", snapshot=snapshot)
    (out / "etcd_record.bin").write_bytes(seal(record, b"/fabricd/nodes/a", "token"))
    node = NodeStatus(node_id=_NODE_ID, name=_NAME, state=NodeState.OK, snapshot=snapshot)
    (out / "cluster_file.jsonl").write_bytes(b"".join(lines_of(Head(nodes=1), [node])))
    context, probes, _ = context_of(load("rtx3090-bridge"), folder / "captured")
    (out / "capture.json").write_text(to_text(take(context, probes=probes)))


def _write(out: Path, name: str, data: bytes) -> None:
    (out / f"{name}.json").write_text(json.dumps(json.loads(data), separators=(",", ":")) + "\n")


if __name__ == "__main__":
    sys.exit(main())
