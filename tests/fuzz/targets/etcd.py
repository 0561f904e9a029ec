"""What a daemon reads from etcd: records that others wrote, sealed or not, and the messages of etcd itself."""

import hashlib
import hmac
import zlib

from fabricd.cluster.etcd_messages import (
    ErrorMessage,
    EtcdError,
    Lease,
    Range,
    Streamed,
    Transaction,
    WatchAnswer,
    convert,
    decode,
    refusal,
)
from fabricd.cluster.etcd_record import Record, seal, unseal
from fabricd.errors import AccessError, InputError
from fabricd.model.shared import SharedParts
from tests.fuzz.target import Target
from tests.support.nodes import node

_KEY = b"/fabricd/nodes/id-a"
_MESSAGES = (Range, Transaction, WatchAnswer, Lease, ErrorMessage, Streamed)


def check(data: bytes) -> None:
    for kind in _MESSAGES:
        try:
            message = decode(data, kind)
        except EtcdError:
            continue
        if isinstance(message, ErrorMessage):
            refusal(message)
        elif isinstance(message, Streamed):
            try:
                convert(message.result, WatchAnswer)
            except EtcdError:
                continue
    for value in (data, _sealed(data), _sealed(zlib.compress(data, 1))):
        try:
            record = unseal(value, _KEY, "token", SharedParts())
        except (InputError, AccessError):
            continue
        try:
            written = seal(record, _KEY, "token")
        except InputError:  # larger than etcd takes
            continue
        assert unseal(written, _KEY, "token", SharedParts()).url == record.url


def _sealed(packed: bytes) -> bytes:
    """Return a record as somebody writes it who has the token, whatever is packed in it."""
    secret = hashlib.blake2b(b"token", person=b"fabricd etcd").digest()
    mac = hmac.digest(secret, len(_KEY).to_bytes(4, "big") + _KEY + packed, "sha256")
    return b"fabricd1" + mac + packed


_RECORD = Record(instance="i", url="http://10.0.0.1:7470", snapshot=node("a"))
TARGET = Target(
    check=check,
    seeds=lambda: [
        seal(_RECORD, _KEY, "token"),
        zlib.decompress(seal(_RECORD, _KEY, "token")[40:]),
        b'{"header":{"cluster_id":"1","revision":"7"},"kvs":[{"key":"L2ZhYg==","value":"e30=","mod_revision":"5"}],"more":true}',
        b'{"result":{"header":{"revision":"9"},"created":true,"events":[{"type":"DELETE","kv":{"key":"L2E=","mod_revision":"9"}}]}}',
        b'{"result":{"canceled":true,"compact_revision":"12","cancel_reason":"compacted"}}',
        b'{"error":{"grpc_code":11,"http_code":400,"message":"out of range"}}',
        b'{"error":"etcdserver: requested lease not found","code":5,"message":"gone"}',
        b'{"header":{},"responses":[{"response_range":{"kvs":[{"key":"L2E="}]}}],"TTL":"12"}',
    ],
    json=True,
)
