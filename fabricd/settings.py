"""What one setting may be: from TOML's values, and from the text of environment and command line."""

import ipaddress
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fabricd.errors import InputError
from fabricd.nearest import nearest

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
#: sun_path holds 108 bytes with the final zero (unix(7)).
_SOCKET_PATH_MAX_BYTES = 107
_PREFIX = re.compile(r"(?=.{3,128}$)/(?:[A-Za-z0-9._-]+/)+")
#: Peers in a list at most, and how many may be without map nodes: beyond that, each asking each is the wrong shape.
MAX_PEERS, MAX_EQUAL_PEERS = 16_384, 64
_DNS = "dns://"
_FILE_PATTERN = re.compile(r"(?=.{2,1024}$)(?:/[^/\0\n]+)+")
_MAX_PATTERNS = 64


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value.

    Attributes:
        check: takes a value of TOML's types and returns the setting's; raises InputError saying what is expected.
        parse: makes a value of TOML's types of a text; raises ValueError.
    """

    check: Callable[[Any], Any]
    parse: Callable[[str], Any] = str


@dataclass(frozen=True, slots=True)
class Rule:
    """What a setting may be, what it is for, and whether SIGHUP can change it."""

    kind: Kind
    told: str
    reload: bool = True


def integer(lowest: int, highest: int) -> Kind:
    """Return the kind of whole numbers between two bounds, both included."""

    def check(value: Any) -> int:
        if type(value) is not int or not lowest <= value <= highest:
            raise _expected(value, f"a whole number from {lowest} to {highest}")
        return value

    return Kind(check, int)


def seconds(lowest: float, highest: float) -> Kind:
    """Return the kind of durations between two bounds, both included."""

    def check(value: Any) -> float:
        if type(value) not in (int, float) or not math.isfinite(value) or not lowest <= value <= highest:
            raise _expected(value, f"seconds from {lowest:g} to {highest:g}")
        return float(value)

    return Kind(check, float)


def choice(*values: str) -> Kind:
    """Return the kind that is one of several words."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in values:
            raise _expected(value, f"one of {', '.join(values)}{nearest(value, values)}")
        return value

    return Kind(check)


def name() -> Kind:
    """Return the kind of node names and ids; "" is none."""

    def check(value: Any) -> str | None:
        if not isinstance(value, str) or (value and not _NAME.fullmatch(value)):
            raise _expected(value, "at most 128 letters, digits and ._- between letters or digits")
        return value or None

    return Kind(check)


def address() -> Kind:
    """Return the kind of addresses to listen at."""

    def check(value: Any) -> str:
        try:
            return "127.0.0.1" if value == "localhost" else str(ipaddress.ip_address(_text(value)))
        except ValueError:
            raise _expected(value, "an IP address such as 127.0.0.1, 0.0.0.0 or ::, or localhost") from None

    return Kind(check)


def path(*, socket: bool = False) -> Kind:
    """Return the kind of absolute paths; "" is none."""

    def check(value: Any) -> Path | None:
        if value == "":
            return None
        text = str(value) if isinstance(value, Path) else value
        if not isinstance(text, str) or not text.startswith("/") or "\0" in text:
            raise _expected(value, "an absolute path")
        if socket and len(text.encode(errors="surrogateescape")) > _SOCKET_PATH_MAX_BYTES:
            raise _expected(value, f"a path of at most {_SOCKET_PATH_MAX_BYTES} bytes, for that is what a socket has")
        return Path(text)

    return Kind(check)


def url() -> Kind:
    """Return the kind of a daemon's URL; "" is none."""

    def check(value: Any) -> str | None:
        return check_url(value) if value != "" else None

    return Kind(check)


def urls(*, least: int = 0, names: bool = False) -> Kind:
    """Return the kind of lists of URLs.

    Args:
        least: how many there must be.
        names: whether ``dns://NAME:PORT`` may stand for all addresses that a name has.
    """

    def check(value: Any) -> tuple[str, ...]:
        found = tuple(check_peer(item) if names else check_url(item) for item in _list(value))
        if not least <= len(found) <= MAX_PEERS:
            raise InputError(f"{len(found)} URLs, expected {least} to {MAX_PEERS}")
        twice = sorted(one for one, count in Counter(found).items() if count > 1)
        if twice:
            raise InputError(f"listed twice: {', '.join(twice[:20])}")
        return found

    return Kind(check, _split)


def prefix() -> Kind:
    """Return the kind of prefixes of keys."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not _PREFIX.fullmatch(value):
            raise _expected(value, "a prefix such as /fabricd/, of at most 128 letters, digits and ._-/")
        return value

    return Kind(check)


def file_patterns() -> Kind:
    """Return the kind of lists of absolute paths of files, with ``*``, ``?`` and ``[...]`` in them."""

    def check(value: Any) -> tuple[str, ...]:
        patterns = _list(value)
        for item in patterns:
            if not isinstance(item, str) or not _FILE_PATTERN.fullmatch(item) or ".." in item or "**" in item:
                raise _expected(item, "an absolute path of a file, or a pattern such as /opt/*/topo.xml, without ..")
        if len(patterns) > _MAX_PATTERNS:
            raise InputError(f"{len(patterns)} paths, expected at most {_MAX_PATTERNS}")
        return tuple(patterns)

    return Kind(check, _split)


def files() -> Kind:
    """Return the kind of lists of absolute paths of files."""

    def check(value: Any) -> tuple[str, ...]:
        paths = file_patterns().check(value)
        for item in paths:
            if any(mark in item for mark in "*?["):
                raise _expected(item, "an absolute path of one file")
        return tuple(paths)

    return Kind(check, _split)


def host_names() -> Kind:
    """Return the kind of lists of host names."""

    def check(value: Any) -> tuple[str, ...]:
        names = tuple(_list(value))
        for item in names:
            if not isinstance(item, str) or not _HOST.fullmatch(item):
                raise _expected(item, "a host name without port")
        return tuple(item.lower() for item in names)

    return Kind(check, _split)


def _expected(value: Any, what: str) -> InputError:
    return InputError(f"{_shown(value)} is not {what}")


def _shown(value: Any) -> str:
    shown = repr(str(value) if isinstance(value, Path) else value)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("not a text")  # ip_address takes numbers too
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise _expected(value, "a list")
    return list(value)


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def check_peer(value: Any) -> str:
    """Return a peer's URL, or ``dns://NAME:PORT``, in lower case.

    Raises:
        InputError: it is neither.
    """
    if not isinstance(value, str) or not value.lower().startswith(_DNS):
        return check_url(value)
    plain = check_url("http://" + value[len(_DNS) :]).removeprefix("http://")
    if not re.search(r":\d+$", plain):
        raise _expected(value, "a name with a port, e.g. dns://fabricd.cluster.local:7470")
    return _DNS + plain


def check_url(value: Any) -> str:
    """Return a daemon's URL, in lower case and without a slash at the end.

    Raises:
        InputError: it is none.
    """
    what = "a peer's URL, e.g. http://10.0.0.2:7470"
    if not isinstance(value, str):
        raise _expected(value, what)
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise _expected(value, what) from None
    if parts.username or parts.password:
        raise InputError("a peer's URL holds a password; use token_file")
    fine = parts.scheme in ("http", "https") and parts.hostname and value.isascii() and value.isprintable()
    if not fine or parts.path not in ("", "/") or not set(value).isdisjoint(" ?#") or port == 0 or len(value) > 300:
        raise _expected(value, what)
    return value.rstrip("/").lower()
