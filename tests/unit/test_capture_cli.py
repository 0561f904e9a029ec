"""``fabricd capture`` of the machine that runs the tests, and what reads it."""

import json
import re
import socket
from dataclasses import replace

import pytest

from fabric_client.cli.main import run as run_client
from fabricd.capture import read_capture, record
from fabricd.cli.main import run
from fabricd.model.codec import from_json, without_counters
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeContext
from fabricd.probe.runner import take_snapshot
from tests.support.command_line import told


def still(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without what is another each time."""
    reports = tuple(replace(report, duration_seconds=0.0) for report in snapshot.probes)
    return replace(snapshot, probes=reports, taken_at=0.0, content_hash="", this_host=False)


def test_this_machine_replayed_is_this_machine():
    """Counters too: each is read once, and recorded as it was then."""
    recording, live = record(ProbeContext())
    assert live.this_host
    assert still(take_snapshot(recording.context())) == still(live)


def test_a_capture_and_all_that_reads_it(capsys, monkeypatch, tmp_path):
    file = tmp_path / "box.json"
    assert told(capsys, monkeypatch, run, "capture", "--raw", str(file))[0] == 0
    status, out, _ = told(capsys, monkeypatch, run, "probe", "--json", "--replay", str(file))
    replayed, inside = from_json(out, Snapshot), read_capture(file).snapshot
    assert (status, replayed.this_host) == (0, False)
    assert still(replayed) == still(inside)
    assert replayed.taken_at == inside.taken_at > 1e9
    now = from_json(told(capsys, monkeypatch, run, "probe", "--json")[1], Snapshot)
    assert without_counters(still(replayed)).pci == still(now).pci
    assert replayed.node == now.node
    status, out, err = told(capsys, monkeypatch, run_client, "topo", "--from", str(file))
    assert (status, err) == (0, "")
    assert out.startswith(f"{now.node.name}: ")
    assert "(a replay)" in out


def test_a_capture_names_neither_machine_nor_user(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("USER", "payroll-admin")
    file, again = tmp_path / "box.json", tmp_path / "again.json"
    assert told(capsys, monkeypatch, run, "capture", str(file))[1].endswith("look through it before you pass it on\n")
    now = from_json(told(capsys, monkeypatch, run, "probe", "--json")[1], Snapshot)
    secrets = {now.node.node_id, now.node.boot_id, socket.gethostname(), *(nic.mac for nic in now.interfaces)}
    secrets |= {one.address for nic in now.interfaces if nic.kind != "loopback" for one in nic.addresses}
    text = file.read_text()
    shown = [one for one in secrets if re.search(rf"(?<![\w.:]){re.escape(one)}(?![\w.:])", text) and one.strip("0:")]
    assert shown == []
    assert json.loads(text)["redacted"] is True
    assert told(capsys, monkeypatch, run, "capture", str(again), "--replay", str(file))[0] == 0
    assert read_capture(again).snapshot.node.boot_id != read_capture(file).snapshot.node.boot_id


def test_captures_under_one_key_fit_together(capsys, monkeypatch, tmp_path):
    key, raw = tmp_path / "key", tmp_path / "raw.json"
    key.write_text("a secret of this cluster\n".replace(" ", "-"))
    key.chmod(0o600)
    assert told(capsys, monkeypatch, run, "capture", "--raw", str(raw))[0] == 0
    ids = []
    for name in ("a", "b"):
        made = tmp_path / f"{name}.json"
        arguments = ("capture", str(made), "--key", str(key), "--replay", str(raw))
        assert told(capsys, monkeypatch, run, *arguments)[0] == 0
        ids.append(read_capture(made).snapshot)
    assert still(ids[0]) == still(ids[1])
    assert ids[0].node.node_id != read_capture(raw).snapshot.node.node_id


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--raw", "--key", "k"), "exclude each other"),
        (("--root", "/", "--replay", "x"), "exclude each other"),
        (("--replay", "/nonexistent"), "cannot read"),
        (("--key", "/nonexistent"), "cannot read the file of --key"),
        (("--root", "/nonexistent"), "no directory"),
    ],
)
def test_bad_usage(capsys, monkeypatch, tmp_path, arguments, part):
    status, _, err = told(capsys, monkeypatch, run, "capture", str(tmp_path / "f"), *arguments)
    assert status == (1 if "--key" in arguments and "--raw" not in arguments else 2)
    assert part in err
    assert not (tmp_path / "f").exists()


def test_a_file_that_exists_is_left_alone(capsys, monkeypatch, tmp_path):
    file = tmp_path / "f"
    file.write_text("precious")
    status, _, err = told(capsys, monkeypatch, run, "capture", str(file))
    assert (status, "File exists" in err, file.read_text()) == (2, True, "precious")
