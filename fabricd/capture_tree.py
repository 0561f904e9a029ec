r"""A recorded file tree as text: folder by folder, a line for each file, and back.

::

    "sys/class/net": {
     "eth0": {"link": "../../devices/pci0000:00/0000:00:04.0/virtio1/net/eth0"},
     "lo": {"link": "../../devices/virtual/net/lo"}
    },
    "sys/devices/virtual/net/lo": {
     "address": "00:00:00:00:00:00\n",
     "ifindex": "1\n",
     "tun_flags": null,
     "speed": {"error": "EINVAL"}
    }

A text of several lines is a list of them, content that is no text stands in base64. ``null`` was seen to be there and
not read. ``"[0-127]"`` stands for as many files of one content, whose names are these numbers; a name that begins with
a bracket has it twice.
"""

import base64
import binascii
import errno
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fabricd.errors import ParseError
from fabricd.probe.tree import Entry, Link, Refused

_MAX_ENTRIES = 500_000
_MAX_PATH, _MAX_NAME = 4096, 1024
_MAX_CHARACTERS = 64 << 20  #: of all paths together
_RANGE = re.compile(r"^\[(\d{1,6})-(\d{1,6})\]$")
_NUMBER = re.compile(r"^(0|[1-9]\d{0,5})$")
_ERRORS = {name: number for number, name in errno.errorcode.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Special:
    """What is no text. One of the fields is set."""

    link: str | None = None  #: where a symbolic link points
    error: str | None = None  #: why it could not be read: "EACCES"
    base64: str | None = None  #: content


Content = str | list[str] | Special | None
#: By folder and name.
Folders = dict[str, dict[str, Content]]


def to_folders(entries: Mapping[str, Entry]) -> dict[str, dict[str, Any]]:
    """Return a tree in the form of the file, in order of path."""
    folders: dict[str, dict[str, Entry]] = {}
    for path in sorted(entries, key=lambda path: [_natural(part) for part in path.split("/")]):
        folder, _, name = path.rpartition("/")
        folders.setdefault(folder, {})[name] = entries[path]
    return {folder: dict(_grouped(files)) for folder, files in sorted(folders.items())}


def _natural(part: str) -> tuple[bool, int, str]:
    """Order numbers by their value, before other names."""
    return (False, int(part), part) if _NUMBER.match(part) else (True, 0, part)


def _grouped(files: Mapping[str, Entry]) -> Iterator[tuple[str, Any]]:
    """Yield the files of a folder, numbers in a row with the same content together."""

    def key(item: tuple[int, tuple[str, Entry]]) -> tuple[Any, ...]:
        position, (name, entry) = item
        # What a number lacks to its position is the same along a row.
        return (int(name) - position, entry) if _NUMBER.match(name) and not isinstance(entry, Link) else (name, None)

    for _, group in groupby(enumerate(files.items()), key=key):
        same = [item for _, item in group]
        if len(same) > 2:
            yield f"[{same[0][0]}-{same[-1][0]}]", _content(same[0][1])
        else:
            for name, entry in same:
                yield f"[{name}" if name.startswith("[") else name, _content(entry)


def _content(entry: Entry) -> Any:
    if entry is None:
        return None
    if isinstance(entry, Link):
        return {"link": entry.target}
    if isinstance(entry, Refused):
        return {"error": errno.errorcode.get(entry.number, "EIO")}
    try:
        text = entry.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(entry).decode()}
    lines = text.split("\n")
    return lines if len(lines) > 2 else text


def from_folders(folders: Folders, *, what: str) -> dict[str, Entry]:
    """Return the tree that a file holds.

    Args:
        folders: as decoded.
        what: for errors.

    Raises:
        ParseError: too many files, a path or link that leads out of the tree, content that is none; says where.
    """
    entries: dict[str, Entry] = {}
    characters = 0
    for folder, files in folders.items():
        if folder:
            _check_path(folder, what)
        for told, content in files.items():
            entry = _entry(content, f"{what}, {folder}/{told}"[:500])
            for name in _names(told, what):
                path = f"{folder}/{name}" if folder else name
                _check_path(path, what)
                if isinstance(entry, Link):
                    _check_link(path, entry, what)
                entries[path] = entry
                characters += len(path)
                if len(entries) > _MAX_ENTRIES or characters > _MAX_CHARACTERS:
                    raise ParseError(f"{what} has more than {_MAX_ENTRIES} files, or paths of immense length")
    for path in entries:
        folder = path.rpartition("/")[0]
        if isinstance(entries.get(folder), bytes | Link):
            raise ParseError(f"{what}: {folder[:200]!r} is a folder, and is none")
    return entries


def _names(told: str, what: str) -> Iterator[str]:
    numbers = _RANGE.match(told)
    if numbers is None:
        yield told[1:] if told.startswith("[[") else told
        return
    first, last = int(numbers[1]), int(numbers[2])
    if not 0 <= last - first < _MAX_ENTRIES:
        raise ParseError(f"{what}: not a row of numbers: {told!r}")
    yield from map(str, range(first, last + 1))


def _check_path(path: str, what: str) -> None:
    parts = path.split("/")
    fits = len(path) <= _MAX_PATH and all(0 < len(part) <= _MAX_NAME for part in parts)
    if not fits or "\0" in path or not {".", ".."}.isdisjoint(parts):
        raise ParseError(f"{what}: not a path below the root: {path[:200]!r}", hint='like "sys/class/net/eth0"')


def _check_link(path: str, link: Link, what: str) -> None:
    """Refuse a link whose own dots lead above the root. What it may lead to by way of others stays below it anyhow."""
    depth = 0 if link.target.startswith("/") else path.count("/")
    if not 0 < len(link.target) <= _MAX_PATH or "\0" in link.target:
        raise ParseError(f"{what}: {path[:200]!r} is not a link: {link.target[:200]!r}")
    for part in link.target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            raise ParseError(f"{what}: the link {path[:200]!r} leads out of the tree: {link.target[:200]!r}")


def _entry(content: Content, where: str) -> Entry:
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode()
    if isinstance(content, list):
        return "\n".join(content).encode()
    if content.link is not None:
        return Link(content.link)
    if content.error is not None:
        if content.error not in _ERRORS:
            raise ParseError(f"{where}: not an error of the system: {content.error[:40]!r}", hint="like EACCES")
        return Refused(_ERRORS[content.error])
    try:
        return base64.b64decode(content.base64 or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise ParseError(f"{where}: not base64: {error}") from error
