"""Records in etcd: what is sealed comes back, and nothing else does."""

import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.cluster import etcd_record
from fabricd.cluster.etcd_record import Record, seal, unseal
from fabricd.errors import AccessError, FabricError, InputError, ParseError
from fabricd.model.codec import content_hash, to_json
from fabricd.model.identity import NodeIdentity
from fabricd.model.shared import SharedParts
from tests.support.nodes import hgx, nic, node

KEY = b"/fabricd/nodes/a@x"
RECORD = Record(instance="i", url="http://10.0.0.1:7470", snapshot=hgx())
SEALED = seal(RECORD, KEY, "token")


def opened(data, key, token):
    return unseal(data, key, token, SharedParts())


def test_what_is_sealed_comes_back_without_its_counters():
    snapshot = node(interfaces=(nic("eth0", rx_bytes=5, tx_bytes=6),))
    back = opened(seal(replace(RECORD, snapshot=snapshot), KEY, "token"), KEY, "token")
    assert back.snapshot is not None
    assert back.snapshot.interfaces[0].rx_bytes is None
    assert content_hash(back.snapshot) == content_hash(snapshot)
    assert opened(SEALED, KEY, "token") == RECORD
    farewell = Record(instance="i", leaving=True)
    assert opened(seal(farewell, KEY, None), KEY, None) == farewell


def test_a_record_is_small():
    assert len(SEALED) < len(to_json(RECORD.snapshot)) / 5


@pytest.mark.parametrize(
    ("key", "token"), [(KEY, "other"), (KEY, None), (b"/fabricd/nodes/b@x", "token"), (b"", "token")]
)
def test_another_token_or_key_does_not_open_it(key, token):
    with pytest.raises(AccessError, match="not sealed with this daemon's token"):
        opened(SEALED, key, token)


@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_no_byte_can_be_changed(place, difference):
    data = bytearray(SEALED)
    data[place] ^= difference
    with pytest.raises(FabricError):
        opened(bytes(data), KEY, "token")


@given(st.binary(max_size=200))
def test_what_is_no_record_is_refused(data):
    with pytest.raises(FabricError):
        opened(data, KEY, "token")
    packed = zlib.compress(data)
    with pytest.raises(ParseError):
        opened(b"fabricd1" + etcd_record._mac(packed, KEY, "token") + packed, KEY, "token")


def sealed(packed: bytes) -> bytes:
    return b"fabricd1" + etcd_record._mac(packed, KEY, "token") + packed


def test_what_unpacks_to_too_much_is_refused_before_it_has():
    bomb = zlib.compress(b" " * (etcd_record._MAX_BYTES + 1))
    with pytest.raises(ParseError, match="more than"):
        opened(sealed(bomb), KEY, "token")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"url": "ftp://x"}, "its URL"),
        ({"url": "http://user:secret@x"}, "its URL"),
        ({"snapshot": replace(RECORD.snapshot, node=NodeIdentity(node_id="", name="x"))}, "who it is"),
        ({"snapshot": replace(RECORD.snapshot, node=NodeIdentity(node_id="x", name="a\nb"))}, "who it is"),
    ],
)
def test_what_another_daemon_says_is_checked(change, why):
    packed = zlib.compress(to_json(replace(RECORD, **change)))
    with pytest.raises(ParseError, match=why):
        opened(sealed(packed), KEY, "token")


def test_a_snapshot_that_etcd_would_not_take_is_told(monkeypatch):
    monkeypatch.setattr(etcd_record, "_MAX_SEALED_BYTES", 100)
    with pytest.raises(InputError, match="more than etcd takes"):
        seal(RECORD, KEY, None)
