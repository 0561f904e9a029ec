"""The file of a captured machine: what it keeps, and what it refuses."""

import errno
import json
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.capture import Capture, Recording, from_text, read_capture, record, redacted, source_of, to_text
from fabricd.capture import write_capture as write
from fabricd.capture_tree import from_folders, to_folders
from fabricd.errors import InputError, ParseError
from fabricd.model.capture import read_snapshot
from fabricd.model.codec import from_json, to_builtins, to_json
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeContext, Roots
from fabricd.probe.recorder import Recorder
from fabricd.probe.runner import take_snapshot
from fabricd.probe.tree import Link, RecordedTree, Refused
from fabricd.readable import lean, readable
from fabricd.smallfile import KERNEL
from tests.support.nodes import hgx, node
from tests.support.tree import Tree

# --- the tree in memory


def kept(root: Path, *paths: str) -> RecordedTree:
    """Return what is recorded while all that can be done with these paths is done."""
    recorder = Recorder(KERNEL, root)
    for path in paths:
        for look in (door := recorder.door).status, door.link, door.real_path:
            answered(look, root / path)
        answered(door.read_bytes, root / path, 100)
        answered(door.names, root / path, 100)
    return RecordedTree(recorder.tree())


def answered(look, path, *more):
    """Return what a look gives, or the number of its error."""
    try:
        told = look(path, *more)
    except OSError as error:
        return error.errno
    if isinstance(told, os.stat_result):
        return stat.S_IFMT(told.st_mode)
    return sorted(told) if isinstance(told, list) else told


PLACES = (
    "a",
    "a/b",
    "a/b/file",
    "a/up",
    "a/up/file",
    "a/away",
    "loop",
    "a/gone",
    "abs",
    "abs/file",
    "nothing",
    "a/fifo",
)


def test_a_recorded_tree_answers_as_the_kernel(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/file").write_text("text\n")
    (tmp_path / "a/up").symlink_to("../a/b")
    (tmp_path / "a/away").symlink_to("../../../../../nowhere")
    (tmp_path / "a/gone").symlink_to("b/gone")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "abs").symlink_to(tmp_path / "a/b")
    os.mkfifo(tmp_path / "a/fifo")
    tree = kept(tmp_path, *PLACES)
    for place in PLACES:
        here, there = tmp_path / place, Path("/", place)
        if not place.startswith("abs"):  # it leads to where the machine's root is not
            if place != "a/fifo":
                assert answered(tree.names, there, 9) == answered(KERNEL.names, here, 9), place
            assert answered(tree.read_bytes, there, 9) == answered(KERNEL.read_bytes, here, 9), place
            real = answered(KERNEL.real_path, here)
            told = Path("/", real.relative_to(tmp_path)) if isinstance(real, Path) else real
            assert answered(tree.real_path, there) == told, place
        if place not in ("a/away", "a/fifo", "abs", "abs/file"):
            assert answered(tree.link, there) == answered(KERNEL.link, here), place
            assert answered(tree.status, there) == answered(KERNEL.status, here), place
    assert tree.link(Path("/a/away")) == "../nowhere"


def test_what_was_denied_is_denied_again():
    tree = RecordedTree({"a": Refused(errno.EACCES), "b/c": Refused(errno.EINVAL), "b/d": None})
    assert answered(tree.names, Path("/a"), 9) == errno.EACCES
    assert answered(tree.status, Path("/a/inside")) == errno.EACCES
    assert answered(tree.status, Path("/a")) == stat.S_IFREG
    assert answered(tree.read_bytes, Path("/b/c"), 9) == errno.EINVAL
    assert answered(tree.read_bytes, Path("/b/d"), 9) == errno.ENOENT
    assert tree.names(Path("/b"), 9) == ["c", "d"]


NAMES = st.sampled_from(["a", "b", "0", "1", "2", "10", "[x]", "[0-2]", "eth0"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
ENTRIES = st.one_of(
    st.none(), st.binary(max_size=3), st.sampled_from([b"1\n", b"two\nlines\n"]), st.just(Refused(errno.EINVAL)),
    st.sampled_from([Link("b"), Link("/a/b")]),
)  # fmt: skip


@given(st.dictionaries(PATHS, ENTRIES, max_size=12))
def test_any_tree_comes_back_from_its_text(entries):
    files = {path: entry for path, entry in entries.items() if not any(one.startswith(f"{path}/") for one in entries)}
    text = readable({"tree": to_folders(files)})
    again = from_json(text, _tree_type(), what="it")["tree"]
    assert from_folders(again, what="it") == files


def _tree_type():
    from fabricd.capture_tree import Folders

    return dict[str, Folders]


def test_files_of_one_content_in_a_row_are_one_line():
    tree = {f"pkeys/{number}": b"0x0000\n" for number in range(1, 128)} | {"pkeys/0": b"0xffff\n"}
    assert to_folders(tree) == {"pkeys": {"0": "0xffff\n", "[1-127]": "0x0000\n"}}


# --- the file


def test_a_capture_is_for_its_owner_and_can_be_read_again(tmp_path):
    file = tmp_path / "c.json"
    write(file, Capture(snapshot=hgx()))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert lean(read_capture(file).snapshot)["gpus"] == lean(hgx())["gpus"]
    told = json.loads(file.read_text())
    assert (told["format"], told["version"], told["redacted"]) == ("fabricd-capture", 2, False)
    with pytest.raises(InputError, match="File exists"):
        write(file, Capture(snapshot=hgx()))


def test_what_is_left_out_of_a_lean_model_are_defaults():
    assert from_json(readable(lean(hgx())), Snapshot) == hgx()


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=40,
), st.integers(min_value=10, max_value=80))  # fmt: skip
def test_readable_json_is_the_same_json(value, width):
    assert json.loads(readable(value, width=width)) == value


def test_older_files_are_read(tmp_path):
    plain = to_json(hgx())
    first = b'{"format":"fabricd-capture","version":1,"redacted":true,"snapshot":' + plain + b"}"
    for data in (plain, first):
        capture = from_text(data, what="old")
        assert capture.recording is None
        told = source_of(capture, node_id="n", name="x").refresh()
        assert (told.this_host, told.node.node_id, told.node.id_source, told.node.name) == (
            False,
            "n",
            "configured",
            "x",
        )
        assert len(told.gpus) == 8
        assert read_snapshot(data, what="old").this_host is False
        assert redacted(capture).snapshot.node.node_id != hgx().node.node_id


def captured(tmp_path: Path) -> dict:
    """Return a small capture as its file has it."""
    tree = Tree({"etc/machine-id": "4b0f1c7ae9a14c6f8a9f6b2d8d3a7c11\n", "proc/sys/kernel/hostname": "box\n"})
    tree.net("eth0", index=2)
    recording, live = record(ProbeContext(roots=Roots.under(tree.write(tmp_path / "root")), this_host=False))
    return json.loads(to_text(Capture(recording=recording, snapshot=live)))


@pytest.mark.parametrize(
    ("place", "entry", "why"),
    [
        ("../etc", {"passwd": "x"}, "not a path below the root"),
        ("sys/../../etc", {"passwd": "x"}, "not a path below the root"),
        ("/etc", {"passwd": "x"}, "not a path below the root"),
        ("etc", {"": "x"}, "not a path below the root"),
        ("etc", {"a/../../b": "x"}, "not a path below the root"),
        ("etc", {"a\0b": "x"}, "not a path below the root"),
        ("a/" * 3000, {"b": "x"}, "not a path below the root"),
        ("etc", {"a": {"link": "../../x"}}, "leads out of the tree"),
        ("etc", {"a": {"link": "/x/../.."}}, "leads out of the tree"),
        ("etc", {"a": {"link": ""}}, "is not a link"),
        ("etc", {"a": {"error": "EWHATEVER"}}, "not an error of the system"),
        ("etc", {"a": {"base64": "!!"}}, "not base64"),
        ("etc", {"[0-999999]": "x"}, "not a row of numbers"),
        ("etc", {"[0-499999]": "x"}, "more than 500000 files"),
        ("etc", {"[9-1]": "x"}, "not a row of numbers"),
        ("etc/machine-id", {"b": "x"}, "is a folder, and is none"),
        ("etc", {"a": 7}, r"\$\.tree"),
        ("etc", {"a": [["x"]]}, r"\$\.tree"),
    ],
)
def test_what_no_machine_can_have_shown_is_refused(tmp_path, place, entry, why):
    told = captured(tmp_path)
    told["tree"].setdefault(place, {}).update(entry)
    with pytest.raises(ParseError, match=why) as caught:
        from_text(json.dumps(told).encode(), what="evil.json")
    assert "evil.json" in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [
        ("version", 3, "version 3"),
        ("version", -1, "version -1"),
        ("format", "fabricd-cluster", "but a 'fabricd-cluster'"),
        ("taken_at", 1e300, "not a time"),
        ("answers", [], "answers"),
        ("snapshot", {"node": {"node_id": "", "name": "x"}}, "does not say who it is"),
        ("snapshot", {}, "node"),
    ],
)
def test_a_wrong_head_is_refused(tmp_path, field, value, why):
    told = captured(tmp_path) | {field: value}
    with pytest.raises(ParseError, match=why):
        from_text(json.dumps(told).encode(), what="it")


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 10**6, b'{"a"', b"\xff", b"<system/>"])
def test_what_is_no_capture_is_refused(data):
    with pytest.raises(ParseError):
        from_text(data, what="it")


def test_a_file_beyond_all_bounds(tmp_path):
    file = tmp_path / "large"
    with file.open("wb") as stream:
        stream.truncate((32 << 20) + 1)
    with pytest.raises(InputError, match="larger than"):
        read_capture(file)
    with pytest.raises(InputError, match="No such file"):
        read_capture(tmp_path / "none")


def test_absurd_answers_and_loops_are_outcomes(tmp_path):
    told = captured(tmp_path)
    told["answers"] |= {"netlink.json": {"links": [{"index": "x"}]}, "lldp.json": {"stopped": "weird", "reason": "?"}}
    told["tree"]["sys/class/net"] = {"eth0": {"link": "eth0"}}
    told["tree"]["proc"] = {"cpuinfo": "9" * 100_000, "meminfo": "MemTotal: " + "9" * 40}
    snapshot = source_of(from_text(json.dumps(told).encode(), what="it")).refresh()
    outcomes = {report.name: report.outcome for report in snapshot.probes}
    assert outcomes["netlink"] is Outcome.FAILED
    assert outcomes["lldp"] is Outcome.FAILED
    assert outcomes["host"] is Outcome.OK
    assert snapshot.node.memory_bytes is None


def test_a_replay_asks_nothing_of_this_host(tmp_path):
    """All that it says comes from the file: an empty one says nothing."""
    snapshot = take_snapshot(Recording(entries={}, answers={}).context())
    assert not snapshot.this_host
    assert (snapshot.node.hostname, snapshot.node.boot_id, snapshot.node.cpu.logical) == ("", "", None)
    assert not any((snapshot.numa, snapshot.pci, snapshot.interfaces, snapshot.gpus, snapshot.hcas))
    assert Outcome.OK not in {report.outcome for report in snapshot.probes if report.name != "host"}


def test_nodes_of_a_cluster_are_replaced_alike_under_one_key():
    a, b = (redacted(Capture(snapshot=hgx(name)), key=b"k").snapshot for name in "aa")
    assert to_builtins(a) == to_builtins(b)
    assert redacted(Capture(snapshot=node("c")), key=b"k").snapshot.node != a.node


def test_paths_that_take_for_ever_end():
    """Forty links of a thousand steps each are no path of a machine."""
    tree = RecordedTree({f"l{number}": Link("x/../" * 500 + f"l{number + 1}") for number in range(39)} | {"x/y": None})
    assert answered(tree.status, Path("/l0")) == errno.ENAMETOOLONG


def test_a_source_that_hangs_is_recorded_as_such(tmp_path):
    class Hanging:
        name = "nvml"
        deadline_seconds = 0.05

        def run(self, _ctx):
            gate.wait()

    gate = threading.Event()
    try:
        context = ProbeContext(roots=Roots.under(tmp_path), this_host=False)
        recording, live = record(context, probes=[Hanging()])
    finally:
        gate.set()
    assert live.probes[0].outcome is Outcome.FAILED
    again = {report.name: report for report in take_snapshot(recording.context()).probes}["nvml"]
    assert (again.outcome, again.reason) == (Outcome.FAILED, live.probes[0].reason)
