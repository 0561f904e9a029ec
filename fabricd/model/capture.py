"""A captured machine's file, as far as whoever looks at the map needs it: the finished snapshot in it.

What else it holds, and how it comes about, is ``fabricd.capture``'s.
"""

from dataclasses import dataclass, replace

import msgspec

from fabricd.errors import ParseError
from fabricd.model.codec import check_snapshot, content_hash, from_json
from fabricd.model.snapshot import Snapshot

FORMAT = "fabricd-capture"
#: History: 1 (2026-11-30) a snapshot alone; 2 (2026-11-30) with the files and answers that it was made from.
VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What kind of file it is."""

    format: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finished:
    snapshot: Snapshot


def read_head(data: bytes, *, what: str) -> Head:
    """Return what kind of file this is; ``format`` is "" for a snapshot.

    Raises:
        ParseError: neither a capture nor a snapshot, or a capture of a later version.
    """
    try:
        head = msgspec.json.decode(data, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{what} is neither a capture nor a snapshot: {error}") from error
    if head.format not in ("", FORMAT):
        raise ParseError(f"{what} is neither a capture nor a snapshot, but a {head.format[:40]!r}")
    if head.format and not 1 <= head.version <= VERSION:
        raise ParseError(f"{what} is a capture of version {head.version}", hint=f"this program reads up to {VERSION}")
    return head


def read_snapshot(data: bytes, *, what: str) -> Snapshot:
    """Return the snapshot in a capture, or in what ``fabricd probe --json`` printed. It is not this host's.

    Raises:
        ParseError: it is neither, or does not say whose it is.
    """
    captured = read_head(data, what=what).format
    snapshot = from_json(data, _Finished, what=what).snapshot if captured else from_json(data, Snapshot, what=what)
    try:
        check_snapshot(snapshot)
    except ParseError as error:
        raise ParseError(f"{what}: {error.message}") from error
    replayed = replace(snapshot, this_host=False)
    return replace(replayed, content_hash=content_hash(replayed))
