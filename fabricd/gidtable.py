"""The GID table of an RDMA port, from sysfs. Standard library only: the local view and a probe read it alike."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fabricd.smallfile import names_in, printable, read_bytes

_GID = re.compile(r"^[0-9a-f]{4}(:[0-9a-f]{4}){7}$")
_NO_GID = ":".join(["0000"] * 8)
_MAX_INDEX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class GidEntry:
    """A valid entry."""

    index: int
    gid: str  #: 8 groups of 4 hex digits
    type: str  #: "ib", "roce-v1", "roce-v2"; "" unknown
    interface: str  #: network device in this network namespace; "" for none


def read_gids(port: Path) -> Iterator[GidEntry]:
    """Return the valid entries in order of index.

    Args:
        port: folder of the port, /sys/class/infiniband/<device>/ports/<number>.

    Source: kernel Documentation/ABI/stable/sysfs-class-infiniband.
    """
    # An entry that is not in use, or whose network device is in another namespace, answers EINVAL.
    infiniband = _text(port / "link_layer").lower() == "infiniband"
    try:
        names = [name for name in names_in(port / "gids", _MAX_INDEX + 1) if name.isdecimal()]
    except OSError:
        return
    for index in sorted(int(name) for name in names if len(name) < 6):
        gid = _text(port / "gids" / str(index))
        if index <= _MAX_INDEX and _GID.match(gid) and gid != _NO_GID:
            told = _text(port / "gid_attrs/types" / str(index))
            interface = _text(port / "gid_attrs/ndevs" / str(index))
            yield GidEntry(index=index, gid=gid, type=_type(told, infiniband), interface=interface)


def _type(told: str, infiniband: bool) -> str:
    if told == "RoCE v2":
        return "roce-v2"
    if told == "IB/RoCE v1":  # one name for both
        return "ib" if infiniband else "roce-v1"
    return "ib" if infiniband and not told else ""


def _text(path: Path) -> str:
    try:
        return printable(read_bytes(path)).strip()
    except (OSError, ValueError):
        return ""
