"""A recorded file tree in memory, read through the same door as the kernel's files.

Nothing of it ever lies on a disk: paths and links cannot lead out of it, and it answers with the very errors that were
met when it was recorded. Links are followed as the kernel follows them.
"""

import errno
import os
import stat
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

#: As the kernel has it. Source: kernel include/linux/namei.h, MAXSYMLINKS.
MAX_LINKS = 40
#: Links followed, a path on a real machine has a hundred parts.
_MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Link:
    """A symbolic link, as it stands."""

    target: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Something whose reading ended in an error."""

    number: int  #: errno


#: A file's content (as much as was read), a link, an error, or None for what is there and was not read.
Entry = bytes | Link | Refused | None


class RecordedTree:
    """The files of a machine. Implements ``fabricd.smallfile.Files``.

    Args:
        entries: by path, relative to the root, without "." and "..". Folders need no entry of their own.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)
        self._folders: dict[str, set[str]] = defaultdict(set)
        self._numbers = {path: number for number, path in enumerate(self._entries, 1)}
        for path in self._entries:
            while path:
                folder, _, name = path.rpartition("/")
                known = folder in self._folders
                self._folders[folder].add(name)
                if known:
                    break
                path = folder

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return what was recorded of a file."""
        place = self._resolve(path)
        entry = self._entries.get(place)
        if isinstance(entry, Refused):
            raise OSError(entry.number, os.strerror(entry.number), str(path))
        if isinstance(entry, bytes):
            return entry[:limit]
        if place in self._folders:
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        raise FileNotFoundError(errno.ENOENT, "was not read when it was recorded", str(path))

    def names(self, directory: Path, limit: int) -> list[str]:
        """Return the names in a folder."""
        place = self._resolve(directory)
        entry = self._entries.get(place)
        if isinstance(entry, Refused) and place not in self._folders:
            raise OSError(entry.number, os.strerror(entry.number), str(directory))
        if isinstance(entry, bytes):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
        return sorted(self._folders.get(place, ()))[:limit]

    def status(self, path: Path) -> os.stat_result:
        """Return kind and size; times are zero."""
        place = self._resolve(path)
        entry = self._entries.get(place)
        kind = stat.S_IFDIR if place in self._folders or entry is None else stat.S_IFREG
        size = len(entry) if isinstance(entry, bytes) else 0
        return os.stat_result((kind | 0o444, self._numbers.get(place, 0), 0, 1, 0, 0, size, 0, 0, 0))

    def link(self, path: Path) -> str:
        """Return where a link points."""
        entry = self._entries.get(self._resolve(path, last=False))
        if isinstance(entry, Link):
            return entry.target
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))

    def real_path(self, path: Path) -> Path:
        """Return a path without links."""
        return Path("/", self._resolve(path))

    def _resolve(self, path: Path, *, last: bool = True) -> str:
        """Return where a path leads, relative to the root; a link at its end is followed if ``last``."""
        left, at, followed, steps = deque(_parts(str(path))), "", 0, 0
        while left:
            part = left.popleft()
            steps += 1
            if steps > _MAX_STEPS:
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(path))
            if part == "..":
                at = at.rpartition("/")[0]
                continue
            place = f"{at}/{part}" if at else part
            entry = self._entries.get(place)
            if isinstance(entry, Link) and (left or last):
                followed += 1
                if followed > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                if entry.target.startswith("/"):
                    at = ""
                left.extendleft(reversed(_parts(entry.target)))
                continue
            if place not in self._entries and place not in self._folders:
                raise self._missing(at, path)
            at = place
        return at

    def _missing(self, folder: str, path: Path) -> OSError:
        entry = self._entries.get(folder)
        if isinstance(entry, Refused) and entry.number in (errno.EACCES, errno.EPERM) and folder not in self._folders:
            return OSError(entry.number, os.strerror(entry.number), str(path))
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def _parts(path: str) -> list[str]:
    return [part for part in PurePosixPath(path).parts if part != "/"]
