"""A capture of each kind of machine: its replay through the real probes is the machine, and tells nobody whose."""

import re
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.capture import Capture, Recording, decoded, from_text, record, redacted, source_of, to_text
from fabricd.capture_redact import redact_recording
from fabricd.graph.networks import find_networks
from fabricd.model.codec import to_json
from fabricd.model.snapshot import Snapshot
from fabricd.probe.runner import take_snapshot
from fabricd.redact import redact
from tests.support import machine
from tests.support.composed import member
from tests.support.golden import without_place
from tests.support.machine_run import FAST, context_of

#: One of each kind; the whole suite is swept by ``bench/capture.py``.
SOME = (
    "broken",
    "container-without-gpus",
    "dgx-a100",
    "gb200-nvl72-host0",
    "h100-gpu-lost",
    "levante",
    "power9-v100",
    "vm-flat",
)
KEY = b"one key for both"


@pytest.fixture(scope="module", params=SOME)
def recorded(request: pytest.FixtureRequest):
    """What was recorded of a machine, and the snapshot that was taken meanwhile."""
    with tempfile.TemporaryDirectory(prefix="fabricd-capture-", dir=FAST) as folder:
        context, probes, root = context_of(machine.load(request.param), Path(folder))
        recording, live = record(context, probes=probes)
        yield recording, without_place(live, str(root))


def replayed(recording: Recording) -> Snapshot:
    """Return what the real probes make of a recording."""
    return without_place(take_snapshot(recording.context()))


def test_the_replay_is_the_machine(recorded):
    recording, live = recorded
    assert replayed(recording) == live


def test_through_the_file(recorded):
    recording, live = recorded
    text = to_text(Capture(recording=recording, snapshot=live))
    again = from_text(text.encode(), what="capture")
    assert again.recording == recording
    assert without_place(source_of(again).refresh()) == replace(live, this_host=False)
    assert again.snapshot == replace(live, content_hash=again.snapshot.content_hash)
    assert max(map(len, text.splitlines())) < 3000, "lines that nobody can review"


def test_redacting_before_and_after_the_probes_is_the_same(recorded):
    """The law of redaction: files and answers are replaced as the snapshot that comes of them is."""
    recording, live = recorded
    entries, answers = redact_recording(recording.entries, decoded(recording.answers), key=KEY)
    told = {name: to_json(answer) for name, answer in answers.items()}
    before = replayed(replace(recording, entries=entries, answers=told))
    after = without_place(redact(live, key=KEY))
    # The id is a hash over what was replaced.
    same_id = replace(before, node=replace(before.node, node_id=after.node.node_id))
    assert same_id == after


IDENTITY = re.compile(
    r"GPU-[0-9a-f-]{36}|MIG-[0-9a-f-]{36}|(?:[0-9a-f]{2}:){5,19}[0-9a-f]{2}|(?<![\w:])(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?!:)"
    r"|(?<![\d.])(?:10|172|192)(?:\.\d{1,3}){3}"
)


def test_nothing_that_identifies_is_left(recorded):
    recording, live = recorded
    ids = {found for found in IDENTITY.findall(to_json(live).decode()) if re.search("[1-9a-f]", found)}
    ids |= {live.node.hostname, live.node.boot_id} - {""}
    text = to_text(redacted(Capture(recording=recording, snapshot=live)))
    assert [one for one in ids if one in text] == []


@pytest.mark.parametrize("name", ["hgx-h100", "gb200-nvl72-host0", "aws-p5", "azure-nd-h100-v5"])
def test_nodes_redacted_under_one_key_have_the_same_networks(name):
    """What joins nodes still joins them: subnets, InfiniBand prefixes, NVLink domains."""
    nodes = {number: member(name, f"n{number}", number) for number in (0, 1)}
    told = {number: redact(node, key=KEY) for number, node in nodes.items()}
    assert shape_of(told) == shape_of(nodes)
    apart = {number: redact(node) for number, node in nodes.items()}
    assert len(find_networks(apart).networks) >= len(find_networks(nodes).networks)


def shape_of(nodes) -> list[tuple[str, str, list[tuple[int, str]]]]:
    """Return the networks by what does not identify: transport, role, and which ports of which node."""
    number = {node.node.node_id: place for place, node in nodes.items()}
    by_id = {node.node.node_id: node for node in nodes.values()}
    return sorted(
        (network.transport, network.role, sorted((number[port.node], port.interface) for port in network.ports))
        for network in find_networks(by_id).networks
    )
