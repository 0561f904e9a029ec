"""Captured machines: reading the file, running the real probes over what is in it, redacting, writing it again."""

from fabricd.capture import Capture, decoded, finished, from_text, redacted, to_text
from fabricd.errors import ParseError
from fabricd.model.codec import from_json, to_json
from fabricd.model.snapshot import Snapshot
from tests.fuzz.machine_seeds import captures
from tests.fuzz.target import Target

_KEY = bytes(32)


def check(data: bytes) -> None:
    try:
        capture = from_text(data, what="it")
    except ParseError:
        return
    again = from_text(to_text(capture).encode(), what="again")
    assert _files(again) == _files(capture)
    if capture.recording is None:
        shown = redacted(capture, key=_KEY).snapshot
    else:
        replayed = finished(capture.recording, capture.snapshot)
        assert not replayed.snapshot.this_host
        shown = redacted(replayed, key=_KEY).snapshot
    assert from_json(to_json(shown), Snapshot) == shown


def _files(capture: Capture) -> object:
    """Return what a capture holds; answers by their meaning, for JSON may be written in several ways."""
    told = capture.recording
    return capture.snapshot if told is None else (told.taken_at, told.entries, decoded(told.answers))


TARGET = Target(check=check, seeds=captures, json=True)
