"""A captured machine in one text file: what its probes read and were answered, and the snapshot that comes of it.

``{"format": "fabricd-capture", "version": 2, ..., "answers": {...}, "tree": {...}, "snapshot": {...}}``: the answers of
netlink, NVML, the verbs library and the like by name (``fabricd.probe.answers``), the files that were read
(``fabricd.capture_tree``), and the snapshot for those who have no probes. A replay runs the real probes over answers
and files; what comes out of one is never this host.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from fabricd import __version__
from fabricd.capture_redact import redact_recording
from fabricd.capture_tree import Folders, from_folders, to_folders
from fabricd.errors import InputError, ParseError
from fabricd.model.capture import FORMAT, VERSION, read_head, read_snapshot
from fabricd.model.codec import content_hash, from_json
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import Probe, ProbeContext
from fabricd.probe.recorder import Recorder
from fabricd.probe.registry import PROBES, replayed_probes
from fabricd.probe.runner import Runner, take_snapshot
from fabricd.probe.tree import Entry, RecordedTree
from fabricd.readable import lean, readable
from fabricd.redact import redact

#: A node with 20,000 virtual functions has 11 MB.
MAX_BYTES = 32 << 20
#: Sources that can hang; their answer's name is the probe's with ".json".
_LIVE = frozenset({"nvml", "verbs", "netlink", "instance"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What was read of a machine, and answered."""

    entries: Mapping[str, Entry]  #: see ``fabricd.probe.tree``
    answers: Mapping[str, bytes]  #: by name; JSON
    taken_at: float = 0.0  #: Unix time

    def context(self) -> ProbeContext:
        """Return what makes probes see that machine."""
        return ProbeContext(
            this_host=False, files=RecordedTree(self.entries), answers=self.answers, taken_at=self.taken_at
        )

    def probes(self) -> tuple[Probe, ...]:
        """Return the probes that have something to replay."""
        return replayed_probes(self.answers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The file's content."""

    snapshot: Snapshot  #: what a replay gave when it was written; names no place of the machine that wrote it
    recording: Recording | None = None  #: None for a snapshot alone
    redacted: bool = False  #: names, addresses and serial numbers are replaced


class Replay:
    """Stands in for the probes of a machine of which there is only a snapshot.

    Args:
        snapshot: what is known.
        node_id: identity instead of the captured one.
        name: display name instead of the captured one.
    """

    names: tuple[str, ...] = ()  #: there is no probe to run

    def __init__(self, snapshot: Snapshot, *, node_id: str | None = None, name: str | None = None) -> None:
        node = snapshot.node
        if node_id:
            node = replace(node, node_id=node_id, id_source="configured")
        if name:
            node = replace(node, name=name)
        replayed = replace(snapshot, node=node, this_host=False)
        self._snapshot = replace(replayed, content_hash=content_hash(replayed))

    def refresh(self, _names: Collection[str] | None = None) -> Snapshot:
        """Return the snapshot, always the same."""
        return self._snapshot


def source_of(capture: Capture, *, node_id: str | None = None, name: str | None = None) -> Runner | Replay:
    """Return what looks at a captured machine: the real probes where their sources were recorded."""
    if capture.recording is None:
        return Replay(capture.snapshot, node_id=node_id, name=name)
    return Runner(capture.recording.context(), probes=capture.recording.probes(), node_id=node_id, name=name)


def record(ctx: ProbeContext, *, probes: Sequence[Probe] = PROBES) -> tuple[Recording, Snapshot]:
    """Look at a machine once; return all that it showed, as it is, and what the probes made of it.

    Args:
        ctx: where to look.
        probes: which ones.
    """
    recorder = Recorder(ctx.files, ctx.roots.top)
    snapshot = take_snapshot(replace(ctx, recording=recorder), probes=probes)
    answers = recorder.answers.copy()
    for report in snapshot.probes:
        if report.name in _LIVE and report.outcome is Outcome.FAILED:  # also where it has not come to an end
            answers.setdefault(f"{report.name}.json", {"stopped": report.outcome, "reason": report.reason})
    told = _below_root(dict(sorted(answers.items())), str(ctx.roots.top))
    return Recording(entries=recorder.tree(), answers=_encoded(told), taken_at=round(time.time(), 3)), snapshot


def _below_root(value: Any, top: str) -> Any:
    """Return answers whose reasons and notes name files as they are called on their own machine."""
    if isinstance(value, dict):
        return {name: _below_root(one, top) for name, one in value.items()}
    if isinstance(value, list):
        return [_below_root(one, top) for one in value]
    return value.replace(f"{top}/", "/") if isinstance(value, str) and top != "/" else value


def _encoded(answers: Mapping[str, Any]) -> dict[str, bytes]:
    return {name: msgspec.json.encode(answer) for name, answer in answers.items()}


def decoded(answers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return answers as dicts, lists and strings."""
    return {name: msgspec.json.decode(answer) for name, answer in answers.items()}


def take(ctx: ProbeContext, *, probes: Sequence[Probe] = PROBES) -> Capture:
    """Look at a machine, and return what a replay makes of it."""
    return finished(*record(ctx, probes=probes))


def redacted(capture: Capture, *, key: bytes | None = None) -> Capture:
    """Return a capture without what identifies its machine.

    Args:
        capture: as it is.
        key: as for ``fabricd.redact.redact``.
    """
    if capture.recording is None:
        return replace(capture, snapshot=redact(capture.snapshot, key=key), redacted=True)
    entries, answers = redact_recording(capture.recording.entries, decoded(capture.recording.answers), key=key)
    recording = replace(capture.recording, entries=entries, answers=_encoded(answers))
    return replace(finished(recording, capture.snapshot), redacted=True)


def finished(recording: Recording, seen: Snapshot) -> Capture:
    """Return a capture with the snapshot that a replay gives now.

    Args:
        recording: what was recorded.
        seen: the live look, or an earlier replay; tells how long each probe took.
    """
    snapshot = take_snapshot(recording.context(), probes=recording.probes())
    took = {report.name: report.duration_seconds for report in seen.probes}
    probes = tuple(replace(report, duration_seconds=round(took.get(report.name, 0.0), 4)) for report in snapshot.probes)
    return Capture(snapshot=replace(snapshot, probes=probes), recording=recording)


def to_text(capture: Capture) -> str:
    """Return the file's content, in lines that can be reviewed."""
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "fabricd": __version__,
        "redacted": capture.redacted,
    }
    if capture.recording is not None:
        head |= {
            "taken_at": capture.recording.taken_at,
            "answers": decoded(capture.recording.answers),
            "tree": to_folders(capture.recording.entries),
        }
    return readable({**head, "snapshot": lean(capture.snapshot)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    redacted: bool = False
    taken_at: float = 0.0
    answers: dict[str, msgspec.Raw] = field(default_factory=dict)
    tree: Folders | None = None


def from_text(data: bytes, *, what: str) -> Capture:
    """Return a capture from a file's content; also what ``fabricd probe --json`` printed.

    Args:
        data: the content.
        what: for errors.

    Raises:
        ParseError: it is neither, or holds what no machine can have shown; says what.
    """
    try:
        data.decode()  # JSON's decoder passes over bytes that are no text in what it is not asked for
    except UnicodeDecodeError as error:
        raise ParseError(f"{what} is no text in UTF-8: {error.reason} at byte {error.start}") from error
    snapshot = read_snapshot(data, what=what)
    if not read_head(data, what=what).format:
        return Capture(snapshot=snapshot)
    parts = from_json(data, _Parts, what=what)
    if parts.tree is None:
        return Capture(snapshot=snapshot, redacted=parts.redacted)
    if not 0 <= parts.taken_at < 2**40:
        raise ParseError(f"{what}: taken_at is not a time: {parts.taken_at}")
    entries = from_folders(parts.tree, what=what)
    answers = {name: msgspec.json.format(bytes(answer), indent=-1) for name, answer in parts.answers.items()}
    recording = Recording(entries=entries, answers=answers, taken_at=parts.taken_at)
    return Capture(snapshot=snapshot, recording=recording, redacted=parts.redacted)


def read_capture(file: Path) -> Capture:
    """Return the capture in a file.

    Raises:
        InputError: the file cannot be read, or is too large.
        ParseError: see ``from_text``.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise InputError(f"{file} is larger than {MAX_BYTES} bytes, so it is no capture")
    return from_text(data, what=str(file))


def write_capture(file: Path, capture: Capture) -> None:
    """Write a capture, readable by its owner only.

    Args:
        file: must not exist.
        capture: of a machine.

    Raises:
        InputError: the file exists or cannot be written.
    """
    text = to_text(capture).encode()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from error
