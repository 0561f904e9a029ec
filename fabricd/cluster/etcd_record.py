"""What a daemon keeps in etcd: who it is, where it is asked, its snapshot; compressed, and sealed with the token.

Whoever may write into etcd could otherwise put nodes into the map, and have the cluster's token sent to an address of
its choice. The seal is an HMAC under the token, over the key's name too, so that nothing can be moved to another key.
"""

import hashlib
import hmac
import zlib
from dataclasses import dataclass, replace

from fabricd.errors import AccessError, InputError, ParseError
from fabricd.model.codec import check_snapshot, to_json, without_counters
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import Snapshot
from fabricd.settings import check_url

_MAGIC = b"fabricd1"
_SEAL_BYTES = 32
_MAX_BYTES = 32 << 20
#: Of what etcd takes in one request (--max-request-bytes, by default 1.5 MiB).
_MAX_SEALED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One daemon's record."""

    instance: str  #: of the daemon's process
    url: str = ""  #: where other daemons ask it; "" nowhere
    leaving: bool = False  #: it ends in peace: what follows is no failure
    snapshot: Snapshot | None = None


def seal(record: Record, key: bytes, token: str | None) -> bytes:
    """Return the bytes of a record under a key.

    Raises:
        InputError: too large for etcd.
    """
    lean = replace(record, snapshot=without_counters(record.snapshot) if record.snapshot else None)
    packed = zlib.compress(to_json(lean), 6)
    if len(packed) > _MAX_SEALED_BYTES:
        raise InputError(f"this node's snapshot has {len(packed)} bytes, more than etcd takes")
    return _MAGIC + _mac(packed, key, token) + packed


def unseal(data: bytes, key: bytes, token: str | None, parts: SharedParts) -> Record:
    """Return the record in the bytes under a key.

    Args:
        data: what ``seal`` made.
        key: where it stands.
        token: of the cluster.
        parts: decodes it.

    Raises:
        AccessError: it was not written with this cluster's token.
        ParseError: it is none.
    """
    head = len(_MAGIC)
    if data[:head] != _MAGIC or len(data) < head + _SEAL_BYTES:
        raise ParseError("it is no record of this version")
    mac, packed = data[head : head + _SEAL_BYTES], data[head + _SEAL_BYTES :]
    if not hmac.compare_digest(mac, _mac(packed, key, token)):
        raise AccessError(
            "it is not sealed with this daemon's token", hint="token_file must hold the same on all nodes"
        )
    record = parts.decode(_unpacked(packed), Record, what="it")
    if record.snapshot is not None:
        check_snapshot(record.snapshot)
    try:
        return replace(record, url=check_url(record.url) if record.url else "")
    except InputError as error:
        raise ParseError(f"its URL: {error.message}") from error


def _mac(packed: bytes, key: bytes, token: str | None) -> bytes:
    secret = hashlib.blake2b((token or "").encode(), person=b"fabricd etcd").digest()
    return hmac.digest(secret, len(key).to_bytes(4, "big") + key + packed, "sha256")


def _unpacked(packed: bytes) -> bytes:
    """Return what was compressed, bounded.

    Raises:
        ParseError: it was not, or it is too long.
    """
    unpacker = zlib.decompressobj()
    try:
        data = unpacker.decompress(packed, _MAX_BYTES)
    except zlib.error as error:
        raise ParseError(f"it is not compressed: {error}") from error
    if not unpacker.eof:
        raise ParseError(f"it is cut off, or has more than {_MAX_BYTES} bytes")
    return data
