"""Models to JSON and back. Unknown fields are ignored, missing ones take their defaults."""

import hashlib
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from fabricd.errors import ParseError
from fabricd.model.snapshot import Snapshot

T = TypeVar("T")


def to_json(value: Any) -> bytes:
    """Return the JSON of a model, a mapping or a sequence, UTF-8."""
    return msgspec.json.encode(value)


def to_builtins(value: Any) -> Any:
    """Return a model as dicts, lists, strings and numbers."""
    return msgspec.to_builtins(value)


def from_json(data: bytes | str, kind: type[T], *, what: str = "message") -> T:
    """Decode and validate.

    Raises:
        ParseError: not JSON, or not of that shape; says where.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParseError(f"{what} is not a valid {kind.__name__}: {error}") from error


def without_counters(snapshot: Snapshot) -> Snapshot:
    """Return a snapshot without what counts up: bytes and errors of interfaces, ports and links."""
    return replace(
        snapshot,
        interfaces=tuple(replace(nic, rx_bytes=None, tx_bytes=None) for nic in snapshot.interfaces),
        hcas=tuple(
            replace(hca, ports=tuple(replace(port, counters=(), hw_counters=()) for port in hca.ports))
            for hca in snapshot.hcas
        ),
        gpus=tuple(replace(gpu, links=tuple(replace(link, errors=()) for link in gpu.links)) for gpu in snapshot.gpus),
    )


def content_hash(snapshot: Snapshot) -> str:
    """Return a hash over a snapshot's facts; times, counters and durations do not count."""
    facts = replace(
        without_counters(snapshot),
        generation=0,
        instance="",
        content_hash="",
        taken_at=0.0,
        probes=tuple(replace(report, duration_seconds=0.0) for report in snapshot.probes),
    )
    return hashlib.blake2b(to_json(facts), digest_size=16).hexdigest()
