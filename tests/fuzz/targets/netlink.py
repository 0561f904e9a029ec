"""Netlink's messages, LLDP frames and what is taken out of them: bytes of the kernel's, and of whoever sends frames."""

import struct
from contextlib import suppress

from fabricd.model.codec import from_json, to_json
from fabricd.model.device import LldpNeighbor
from fabricd.netlink import Item, attribute, attributes, messages, nested
from fabricd.probe.lldp_frame import parse_frame
from fabricd.probe.netlink_dump import LinkFacts, address_facts, link_facts, team_mode
from fabricd.probe.netlink_routes import route_facts, rule_facts
from tests.fuzz.target import Target

_LINK, _ADDRESS, _ROUTE = struct.Struct("=BxHiII"), struct.Struct("=BBBBi"), struct.Struct("=8BI")
_ALL = frozenset(range(64))


def check(data: bytes) -> None:
    with suppress(ValueError):
        neighbour = parse_frame("eth0", data)
        assert neighbour is None or from_json(to_json(neighbour), LldpNeighbor) == neighbour
    with suppress(ValueError):
        for _, _, payload in messages(data):
            _use(payload)
    _use(data)


def _use(payload: bytes) -> None:
    assert sum(len(value) + 4 for _, value in nested(payload)) <= len(payload)
    if len(payload) >= _LINK.size:
        link = link_facts(Item(_LINK.unpack_from(payload), attributes(payload[_LINK.size :], _ALL)))
        assert from_json(to_json(link), LinkFacts) == link
    if len(payload) >= _ADDRESS.size:
        address_facts(Item(_ADDRESS.unpack_from(payload), attributes(payload[_ADDRESS.size :], _ALL)))
    if len(payload) >= _ROUTE.size:
        route = Item(_ROUTE.unpack_from(payload), attributes(payload[_ROUTE.size :], _ALL))
        to_json([list(route_facts(route)), rule_facts(route)])
    team_mode([Item((), attributes(payload, _ALL))])


def _message(kind: int, payload: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(payload), kind, 2, 1, 0) + payload


_VIA_TWO = struct.pack("=HBBi", 16, 0, 0, 3) + attribute(5, bytes(4))
_INFO = attribute(1, b"vlan\0") + attribute(2, attribute(1, b"\x64\x00"), nested=True)
_OF_LINK = (
    attribute(3, b"eth0\0") + attribute(1, bytes(6)) + attribute(18, _INFO) + attribute(4, b"\xdc\5\0\0")
    + attribute(23, bytes(200)) + attribute(16, b"\6")
)  # fmt: skip
_TLVS = b"\2\7\4\0\x11\x22\x33\x44\x55\4\5\1swp1\6\2\0\x78\x0a\4leaf\xfe\6\0\x80\xc2\1\0\x64\0\0"
TARGET = Target(
    check=check,
    seeds=lambda: [
        _message(16, _LINK.pack(0, 1, 2, 0x1003, 0) + _OF_LINK),
        _message(20, _ADDRESS.pack(2, 24, 0, 0, 2) + attribute(2, b"\x0a\0\0\x01")),
        _message(24, _ROUTE.pack(2, 16, 0, 0, 254, 3, 0, 1, 0) + attribute(1, b"\x0a\1\0\0") + attribute(4, b"\2")),
        _message(32, _ROUTE.pack(2, 0, 32, 0, 101, 0, 0, 1, 0) + attribute(2, b"\x0a\1\0\5")),
        _message(24, _ROUTE.pack(10, 0, 0, 0, 254, 3, 0, 1, 0) + attribute(9, _VIA_TWO)),
        b"\x01\x80\xc2\0\0\x0e" + bytes(6) + b"\x88\xcc" + _TLVS,
        b"\x01\x80\xc2\0\0\x0e" + bytes(6) + b"\x81\x00\0\x05\x88\xcc" + _TLVS,
    ],
    max_bytes=4096,
)  # fmt: skip
