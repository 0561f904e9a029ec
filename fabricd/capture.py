"""A captured machine: a snapshot in a file, to be looked at elsewhere. What comes out of one is never this host."""

import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fabricd import __version__
from fabricd.errors import InputError, ParseError
from fabricd.model.codec import content_hash, from_json, to_json
from fabricd.model.snapshot import Snapshot
from fabricd.redact import redact

FORMAT = "fabricd-capture"
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """The file's content."""

    format: str = FORMAT
    version: int = 1
    fabricd: str = __version__  #: version that wrote it
    redacted: bool  #: names, addresses and serial numbers are replaced
    snapshot: Snapshot


class Replay:
    """Stands in for the probes of a machine that was captured.

    Args:
        snapshot: what was captured.
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


def read_capture(file: Path) -> Snapshot:
    """Return the snapshot in a capture, or in what ``fabricd probe --json`` printed.

    Raises:
        InputError: the file cannot be read, or is too large.
        ParseError: it is neither.
    """
    try:
        with file.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {file}: {error.strerror or error}") from error
    if len(data) > _MAX_BYTES:
        raise InputError(f"{file} is larger than {_MAX_BYTES} bytes, so it is no capture")
    try:
        is_capture = msgspec.json.decode(data, type=_Head).format == FORMAT
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{file} is neither a capture nor a snapshot: {error}") from error
    if is_capture:
        return from_json(data, Capture, what=str(file)).snapshot
    return from_json(data, Snapshot, what=str(file))


def write_capture(file: Path, snapshot: Snapshot, *, raw: bool = False) -> None:
    """Write a capture, indented for reviewers, readable by its owner only.

    Args:
        file: must not exist.
        snapshot: of the machine.
        raw: keep names, addresses and ids as they are.

    Raises:
        InputError: the file exists or cannot be written.
    """
    capture = Capture(redacted=not raw, snapshot=snapshot if raw else redact(snapshot))
    text = msgspec.json.format(to_json(capture), indent=1) + b"\n"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    format: str = ""
