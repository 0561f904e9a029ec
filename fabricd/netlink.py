"""Asks the kernel for things by netlink. Standard library only: the local view and the probes ask alike.

Only what is wanted is taken out of an answer: a host has interfaces by the thousand where SR-IOV is in use, and each
one's message has some fifty attributes, the most of them nested.
"""

import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from typing import NamedTuple

# Source: kernel include/uapi/linux/{netlink,genetlink}.h and include/uapi/rdma/rdma_netlink.h
_NLM_F_REQUEST, _NLM_F_MULTI, _NLM_F_DUMP_INTR, _NLM_F_DUMP = 0x1, 0x2, 0x10, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NLA_F_NESTED = 0x8000
_NLA_TYPE_MASK = 0x3FFF
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_NUMBER = struct.Struct("=i")
_GENERIC_HEADER = struct.Struct("=BBxx")
_NO_BODY = struct.Struct("=")
_NETLINK_GENERIC, _NETLINK_RDMA = 16, 20
_RDMA_NL_NLDEV = 5
_GENL_ID_CTRL, _CTRL_CMD_GETFAMILY, _CTRL_ATTR_FAMILY_ID, _CTRL_ATTR_FAMILY_NAME = 0x10, 3, 1, 2
#: The kernel fills at most 32 KiB at a time, more only for virtual functions' details, which nobody asks for here.
_BUFFER_BYTES = 1 << 18
_TIMEOUT_SECONDS = 2.0
_TRIES = 5

Attributes = dict[int, bytes]


class Item(NamedTuple):
    """One object of an answer."""

    fields: tuple[int, ...]  #: of the fixed part
    attributes: Attributes  #: by type; those that were wanted


class Dump(NamedTuple):
    """All objects of a kind."""

    items: list[Item]
    consistent: bool  #: False: they changed at each try to list them, and some may lack


def dump(kind: int, body: struct.Struct, wanted: Collection[int], *, limit: int) -> Dump:
    """Return all objects of a kind that rtnetlink knows.

    Args:
        kind: of the request, ``RTM_GETLINK``; the objects' own is two less.
        body: fixed part of request and objects.
        wanted: types of the attributes to keep.
        limit: stop after so many objects and one more, by which the caller sees that there are more.

    Raises:
        OSError: netlink is not to be had (a sandbox without it), does not answer, or the kernel refused.
        ValueError: not a netlink message.
    """
    message = _request(kind, bytes(body.size), _NLM_F_DUMP)
    return _ask(socket.NETLINK_ROUTE, message, kind - 2, body, wanted, limit)


def generic(
    family: str, command: int, request: bytes, wanted: Collection[int], *, limit: int, every: bool = True
) -> Dump:
    """Return objects that a family of generic netlink knows.

    Args:
        family: its name, ``"ethtool"``.
        command: of the request.
        request: its attributes.
        wanted: types of the attributes to keep.
        limit: see ``dump``.
        every: ask for all objects; else for what the request names.

    Raises:
        OSError: as ``dump`` raises it; ENOENT where the kernel has no such family.
        ValueError: not a netlink message.
    """
    number = _family_number(family)
    message = _request(number, _GENERIC_HEADER.pack(command, 1) + request, _NLM_F_DUMP if every else 0)
    return _ask(_NETLINK_GENERIC, message, number, _GENERIC_HEADER, wanted, limit)


def rdma(command: int, wanted: Collection[int], *, limit: int) -> Dump:
    """Return all objects that the kernel's RDMA devices' own netlink lists, as ``rdma dev`` asks it. Needs no rights.

    Args:
        command: RDMA_NLDEV_CMD_*.
        wanted: types of the attributes to keep.
        limit: see ``dump``.

    Raises:
        OSError: as ``dump`` raises it; EPROTONOSUPPORT where the kernel knows no RDMA.
        ValueError: not a netlink message.
    """
    kind = _RDMA_NL_NLDEV << 10 | command
    return _ask(_NETLINK_RDMA, _request(kind, b"", _NLM_F_DUMP), kind, _NO_BODY, wanted, limit)


def _family_number(family: str) -> int:
    name = attribute(_CTRL_ATTR_FAMILY_NAME, family.encode() + b"\0")
    message = _request(_GENL_ID_CTRL, _GENERIC_HEADER.pack(_CTRL_CMD_GETFAMILY, 1) + name, 0)
    found = _ask(_NETLINK_GENERIC, message, _GENL_ID_CTRL, _GENERIC_HEADER, (_CTRL_ATTR_FAMILY_ID,), 1)
    number = unsigned(found.items[0].attributes.get(_CTRL_ATTR_FAMILY_ID)) if found.items else None
    if number is None:
        raise ValueError(f"generic netlink tells no number of its family {family}")
    return number


def attribute(kind: int, value: bytes, *, nested: bool = False) -> bytes:
    """Return an attribute of a request."""
    header = _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind | (_NLA_F_NESTED if nested else 0))
    return header + value + bytes(-len(value) % 4)


def attributes(data: bytes, wanted: Collection[int]) -> Attributes:
    """Return the wanted ones of a sequence of attributes; of several of one type the last. Stops at a damaged one."""
    return {kind: data[start:end] for kind, start, end in _parts(data) if kind in wanted}


def nested(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield a sequence of attributes, in order: of a list they all have one type."""
    for kind, start, end in _parts(data):
        yield kind, data[start:end]


def unsigned(value: bytes | None) -> int | None:
    """Return an attribute's number; None where there is none, or where it is longer than any number of the kernel's."""
    return int.from_bytes(value, sys.byteorder) if value and len(value) <= 8 else None


def _parts(data: bytes) -> Iterator[tuple[int, int, int]]:
    offset, size = 0, len(data)
    while offset + 4 <= size:
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < 4:
            return
        yield kind & _NLA_TYPE_MASK, offset + 4, min(offset + length, size)
        offset += length + 3 & ~3


def _request(kind: int, payload: bytes, flags: int) -> bytes:
    return _HEADER.pack(_HEADER.size + len(payload), kind, _NLM_F_REQUEST | flags, 1, 0) + payload


def _ask(protocol: int, message: bytes, answer: int, body: struct.Struct, wanted: Collection[int], limit: int) -> Dump:
    found = Dump([], False)
    for _ in range(_TRIES):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
            kernel.settimeout(_TIMEOUT_SECONDS)
            kernel.bind((0, 0))
            kernel.send(message)
            found = _receive(kernel, answer, body, wanted, limit)
        if found.consistent:
            break
    return found


def _receive(kernel: socket.socket, answer: int, body: struct.Struct, wanted: Collection[int], limit: int) -> Dump:
    """Read until the answer's end, or until there are more objects than wanted."""
    items: list[Item] = []
    consistent = True
    while True:
        for kind, flags, payload in messages(kernel.recv(_BUFFER_BYTES)):
            consistent = consistent and not flags & _NLM_F_DUMP_INTR
            if kind in (_NLMSG_ERROR, _NLMSG_DONE):
                number = -_NUMBER.unpack_from(payload)[0] if len(payload) >= _NUMBER.size else 0
                if number > 0:
                    raise OSError(number, os.strerror(number))
                return Dump(items, consistent)
            if kind == answer and len(payload) >= body.size:
                items.append(Item(body.unpack_from(payload), attributes(payload[body.size :], wanted)))
                if len(items) > limit:
                    return Dump(items, consistent)
            if not flags & _NLM_F_MULTI:
                return Dump(items, consistent)


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, flags and payload of each message.

    Raises:
        ValueError: one that is shorter than its own header.
    """
    offset = 0
    while offset + _HEADER.size <= len(data):
        length, kind, flags, _, _ = _HEADER.unpack_from(data, offset)
        if length < _HEADER.size:
            raise ValueError("a netlink message shorter than its header")
        yield kind, flags, data[offset + _HEADER.size : offset + length]
        offset += length + 3 & ~3
