"""Netlink itself: messages and attributes, whatever their bytes are, and what the kernel answers."""

import errno
import socket
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.netlink import attribute, attributes, dump, generic, messages, nested, unsigned

IFINFOMSG = struct.Struct("=BxHiII")
RTM_GETLINK, IFLA_IFNAME = 18, 3


@given(st.lists(st.tuples(st.integers(1, 0x3FFF), st.binary(max_size=40)), max_size=8))
def test_attributes_come_back_as_they_were_put(parts: list[tuple[int, bytes]]) -> None:
    data = b"".join(attribute(kind, value, nested=len(value) % 2 == 1) for kind, value in parts)
    assert list(nested(data)) == parts
    assert attributes(data, {kind for kind, _ in parts[:2]}) == {
        kind: value for kind, value in parts if kind in {kind for kind, _ in parts[:2]}
    }


@given(st.binary(max_size=200))
def test_any_bytes_are_read_to_an_end(data: bytes) -> None:
    taken = sum(len(value) + 4 for _, value in nested(data))
    assert taken <= len(data)
    with suppress(ValueError):  # one that is shorter than its own header
        assert sum(len(payload) + 16 for _, _, payload in messages(data)) <= len(data)


def test_numbers_of_any_width() -> None:
    assert [unsigned(struct.pack(form, 7)) for form in ("=B", "=H", "=I", "=Q")] == [7, 7, 7, 7]
    assert unsigned(b"") is unsigned(None) is None


def test_links_are_those_of_this_namespace() -> None:
    found = dump(RTM_GETLINK, IFINFOMSG, (IFLA_IFNAME,), limit=1000)
    names = {link.fields[2]: link.attributes[IFLA_IFNAME].rstrip(b"\0").decode() for link in found.items}
    assert found.consistent
    assert names == dict(socket.if_nameindex())
    assert all(set(link.attributes) == {IFLA_IFNAME} for link in found.items)


def test_a_limit_shows_that_there_are_more() -> None:
    assert len(dump(RTM_GETLINK, IFINFOMSG, (), limit=0).items) == 1


def test_what_the_kernel_refuses_or_does_not_have() -> None:
    with pytest.raises(OSError, match="not supported") as refused:
        dump(998, IFINFOMSG, (), limit=1)
    assert refused.value.errno == errno.EOPNOTSUPP
    with pytest.raises(FileNotFoundError):
        generic("no-such-family", 1, b"", (), limit=1)
