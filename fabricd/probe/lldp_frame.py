"""Reads LLDP frames: what a switch says of itself. Source: IEEE 802.1AB, clause 8; IEEE 802.1Q, Annex D."""

import ipaddress
import struct
from collections.abc import Iterator

from fabricd.model.device import LldpNeighbor
from fabricd.smallfile import printable

_ETHERNET_HEADER, _TAG = 14, 4
_LLDP_ETHERTYPE, _TAG_ETHERTYPE = 0x88CC, 0x8100
_END, _CHASSIS, _PORT, _TTL, _PORT_DESCRIPTION, _SYSTEM_NAME, _ORGANISATION = 0, 1, 2, 3, 4, 5, 127
#: Subtypes of a chassis' and a port's id that hold a MAC or a network address; the others hold text.
_MAC_SUBTYPE = {_CHASSIS: 4, _PORT: 3}
_ADDRESS_SUBTYPE = {_CHASSIS: 5, _PORT: 4}
_PORT_VLAN_ID = b"\x00\x80\xc2\x01"
_RESERVED_VLAN = 4095  # Source: IEEE 802.1Q, table 9-2


def parse_frame(interface: str, frame: bytes) -> LldpNeighbor | None:
    """Return the neighbour that a frame tells of, with its Ethernet header; None for one that says good-bye.

    Raises:
        ValueError: not an LLDP frame.
    """
    found: dict[int, bytes] = {}
    vlan = None
    for kind, value in _fields(_payload(frame)):
        if kind == _ORGANISATION and value.startswith(_PORT_VLAN_ID) and len(value) >= 6:
            vlan = valid_vlan(struct.unpack_from(">H", value, 4)[0])
        elif kind != _ORGANISATION:
            found.setdefault(kind, value)
    if not {_CHASSIS, _PORT, _TTL} <= found.keys():
        raise ValueError("an LLDP frame without chassis, port or time to live")
    if not any(found[_TTL][:2]):
        return None
    return LldpNeighbor(
        interface=interface,
        chassis_id=_identifier(_CHASSIS, found[_CHASSIS]),
        system_name=_text(found.get(_SYSTEM_NAME, b"")),
        port_id=_identifier(_PORT, found[_PORT]),
        port_description=_text(found.get(_PORT_DESCRIPTION, b"")),
        vlan_id=vlan,
    )


def valid_vlan(number: int) -> int | None:
    """Return a port's VLAN id; None for 0, by which a switch says that it has none, and for what no VLAN can be."""
    return number if 0 < number < _RESERVED_VLAN else None


def _payload(frame: bytes) -> bytes:
    if len(frame) >= _ETHERNET_HEADER and struct.unpack_from(">H", frame, 12)[0] == _TAG_ETHERTYPE:
        frame = frame[:12] + frame[12 + _TAG :]
    if len(frame) < _ETHERNET_HEADER or struct.unpack_from(">H", frame, 12)[0] != _LLDP_ETHERTYPE:
        raise ValueError("not an LLDP frame")
    return frame[_ETHERNET_HEADER:]


def _fields(payload: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 2 <= len(payload):
        header = struct.unpack_from(">H", payload, offset)[0]
        kind, length = header >> 9, header & 0x1FF
        if kind == _END:
            return
        if offset + 2 + length > len(payload):
            raise ValueError("an LLDP frame that ends in the middle")
        yield kind, payload[offset + 2 : offset + 2 + length]
        offset += 2 + length


def _identifier(kind: int, value: bytes) -> str:
    if len(value) < 2:
        raise ValueError("an LLDP frame with an empty id")
    subtype, rest = value[0], value[1:]
    if subtype == _MAC_SUBTYPE[kind]:
        return rest.hex(":")
    if subtype == _ADDRESS_SUBTYPE[kind] and len(rest) in (5, 17):  # a family, then 4 or 16 bytes
        return str(ipaddress.ip_address(rest[1:]))
    return _text(rest)


def _text(value: bytes) -> str:
    return printable(value).strip("\0 \r\n\t")
