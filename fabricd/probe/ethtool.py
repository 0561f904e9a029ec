"""What drivers tell of network interfaces: speed by ethtool's netlink, firmware by its ioctl."""

import array
import fcntl
import socket
import struct
from collections.abc import Iterable
from typing import NamedTuple

from fabricd.netlink import attribute, attributes, generic, unsigned
from fabricd.probe.files import FieldReader
from fabricd.smallfile import printable

# Source: kernel include/uapi/linux/{ethtool,ethtool_netlink,sockios}.h
_LINKMODES_GET, _LINKMODES_HEADER, _LINKMODES_SPEED, _LINKMODES_DUPLEX = 4, 1, 5, 6
_HEADER_INDEX, _HEADER_FLAGS, _COMPACT_BITSETS = 1, 3, 1
_SIOCETHTOOL = 0x8946
_GET_DRIVER_INFO = 0x00000003
_DRIVER_INFO = struct.Struct("=I32s32s32s32s32s12s5I")
_NAME_BYTES = 16
SPEED_UNKNOWN = 0xFFFFFFFF
DUPLEX: dict[int | None, str] = {0: "half", 1: "full"}
_NO_FIRMWARE = {"", "N/A", "n/a", "none"}
#: A query each, unlike all else: only for what may be hardware.
_MAX_DRIVERS = 256


class Speed(NamedTuple):
    """Of one link."""

    megabits_per_second: int | None
    duplex: str  #: "" unknown


class Driver(NamedTuple):
    """Of one link."""

    name: str
    firmware: str  #: "" unknown


def read_speeds(limit: int, read: FieldReader) -> dict[int, Speed]:
    """Ask for every link's speed in one dump, by index; the kernel leaves out links that have none (lo, ifb)."""
    header = attribute(_LINKMODES_HEADER, attribute(_HEADER_FLAGS, struct.pack("=I", _COMPACT_BITSETS)), nested=True)
    wanted = (_LINKMODES_HEADER, _LINKMODES_SPEED, _LINKMODES_DUPLEX)
    found: dict[int, Speed] = {}
    try:
        answer = generic("ethtool", _LINKMODES_GET, header, wanted, limit=limit)
    except (OSError, ValueError) as error:  # before Linux 5.6 the kernel has no ethtool over netlink
        read.note("ethtool", f"no speeds by netlink: {error}")
        return found
    for _, told in answer.items[:limit]:
        index = unsigned(attributes(told.get(_LINKMODES_HEADER, b""), (_HEADER_INDEX,)).get(_HEADER_INDEX))
        if index is not None:
            speed = unsigned(told.get(_LINKMODES_SPEED))
            duplex = DUPLEX.get(unsigned(told.get(_LINKMODES_DUPLEX)), "")
            found[index] = Speed(None if speed in (None, 0, SPEED_UNKNOWN) else speed, duplex)
    return found


def read_drivers(names: Iterable[str], read: FieldReader) -> dict[str, Driver]:
    """Ask for driver and firmware of links, by name; a link without an answer is left out."""
    found: dict[str, Driver] = {}
    wanted = list(names)
    if len(wanted) > _MAX_DRIVERS:
        read.note("ethtool", f"firmware is asked of the first {_MAX_DRIVERS} of {len(wanted)} interfaces only")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as kernel:
            for name in wanted[:_MAX_DRIVERS]:
                driver = _driver(kernel, name)
                if driver is not None:
                    found[name] = driver
    except OSError as error:
        read.note("ethtool", f"no drivers by ioctl: {error}")
    return found


def _driver(kernel: socket.socket, name: str) -> Driver | None:
    raw_name = name.encode()
    if len(raw_name) >= _NAME_BYTES:
        return None  # a name with bytes that are no UTF-8, shown longer than it is
    data = array.array("B", _DRIVER_INFO.pack(_GET_DRIVER_INFO, b"", b"", b"", b"", b"", b"", 0, 0, 0, 0, 0))
    request = bytearray(struct.pack("16sP16x", raw_name, data.buffer_info()[0]))
    try:
        fcntl.ioctl(kernel, _SIOCETHTOOL, request)
    except OSError:
        return None  # gone, or without ethtool
    _, driver, _, firmware, *_ = _DRIVER_INFO.unpack(data.tobytes())
    version = printable(firmware.partition(b"\0")[0]).strip()
    return Driver(printable(driver.partition(b"\0")[0]), "" if version in _NO_FIRMWARE else version)
