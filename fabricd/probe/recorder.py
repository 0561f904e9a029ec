"""Keeps what probes read and are answered, for a capture: exactly that, and nothing that nobody asked for."""

import errno
import os
import threading
from collections import deque
from pathlib import Path, PurePosixPath
from typing import Any

from fabricd.probe.tree import MAX_LINKS, Entry, Link, Refused
from fabricd.smallfile import Files, printable

#: What is not there is not in the recording either.
_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)


class Recorder:
    """What was met of a machine. May be used from several threads.

    Args:
        inner: the door behind which the files are.
        top: the root of the machine's tree; what is read elsewhere is not kept.
    """

    def __init__(self, inner: Files, top: Path) -> None:
        self.entries: dict[str, Entry] = {}  #: see ``fabricd.probe.tree``
        self.answers: dict[str, Any] = {}
        self.door: Files = _RecordingDoor(self, inner)
        self._inner = inner
        self._top = top
        self._lock = threading.Lock()
        self._plain: set[str] = set()  #: places that are no links

    def tree(self) -> dict[str, Entry]:
        """Return what was kept, without the folders that what is in them tells of."""
        with self._lock:
            above = {path.rpartition("/")[0] for path in self.entries}
            return {path: entry for path, entry in self.entries.items() if entry is not None or path not in above}

    def keep(self, path: Path, entry: Entry) -> None:
        """Keep what a path led to: None when it was only seen to be there."""
        place = self._place(path)
        if not place:
            return
        with self._lock:
            known = self.entries.setdefault(place, entry)
            longer = not isinstance(known, bytes) or (isinstance(entry, bytes) and len(entry) > len(known))
            if entry is not None and longer:
                self.entries[place] = entry

    def keep_names(self, directory: Path, names: list[str]) -> None:
        """Keep that these are in a folder."""
        place = self._place(directory)
        if place is None:
            return
        with self._lock:
            for name in map(printable, names):
                inside = f"{place}/{name}" if place else name
                if inside not in self.entries:
                    self.entries[inside] = self._link_at(inside)

    def keep_error(self, path: Path, error: OSError) -> None:
        """Keep that a path could not be read, unless it is simply not there."""
        if error.errno is not None and error.errno not in _NOT_THERE:
            self.keep(path, Refused(error.errno))

    def keep_way(self, path: Path, error: OSError | None = None) -> None:
        """Keep the links on the way to a path and at its end, and that a folder lets nobody look into it."""
        self._place(path)
        if error is not None and error.errno in (errno.EACCES, errno.EPERM):
            self.keep_error(path.parent, error)

    def _place(self, path: Path) -> str | None:
        """Return where a path leads below the root, and keep the links on the way; None when it leads elsewhere."""
        if not path.is_relative_to(self._top):
            return None
        left, at, followed = deque(path.relative_to(self._top).parts), list[str](), 0
        while left:
            part = printable(left.popleft())
            if part == "..":
                at = at[:-1]
                continue
            place = "/".join([*at, part])
            link = self._link(place)
            if link is None:
                at.append(part)
                continue
            followed += 1
            if followed > MAX_LINKS:
                return None
            target = PurePosixPath(link.target)
            if target.is_absolute():
                at = []
            left.extendleft(reversed([one for one in target.parts if one != "/"]))
        return "/".join(at)

    def _link(self, place: str) -> Link | None:
        with self._lock:
            if place in self._plain:
                return None
            link = self._link_at(place)
            if link is not None:
                self.entries[place] = link
            return link

    def _link_at(self, place: str) -> Link | None:
        known = self.entries.get(place)
        if isinstance(known, Link):
            return known
        try:
            target = printable(self._inner.link(self._top / place))
        except (OSError, ValueError):
            self._plain.add(place)
            return None
        return Link(_below_root(place, target))


def _below_root(place: str, target: str) -> str:
    """Return where a link points without the dots that lead above the root, which lead nowhere."""
    depth = 0 if target.startswith("/") else place.count("/")
    kept = []
    for part in target.split("/"):
        if part == ".." and depth == 0:
            continue
        depth += -1 if part == ".." else part not in ("", ".")
        kept.append(part)
    return "/".join(kept) or "."


class _RecordingDoor:
    """Lets everything through, and keeps it."""

    def __init__(self, recorder: Recorder, inner: Files) -> None:
        self._recorder = recorder
        self._inner = inner

    def read_bytes(self, path: Path, limit: int) -> bytes:
        try:
            data = self._inner.read_bytes(path, limit)
        except OSError as error:
            self._recorder.keep_error(path, error)
            raise
        self._recorder.keep(path, data)
        return data

    def names(self, directory: Path, limit: int) -> list[str]:
        try:
            names = self._inner.names(directory, limit)
        except OSError as error:
            self._recorder.keep_error(directory, error)
            raise
        self._recorder.keep(directory, None)
        self._recorder.keep_names(directory, names)
        return names

    def status(self, path: Path) -> os.stat_result:
        try:
            status = self._inner.status(path)
        except OSError as error:
            self._recorder.keep_way(path, error)
            raise
        self._recorder.keep(path, None)
        return status

    def link(self, path: Path) -> str:
        try:
            target = self._inner.link(path)
        except OSError as error:
            self._recorder.keep_way(path, error)
            raise
        self._recorder.keep_way(path)
        return target

    def real_path(self, path: Path) -> Path:
        try:
            real = self._inner.real_path(path)
        except OSError as error:
            self._recorder.keep_way(path, error)
            raise
        self._recorder.keep(path, None)
        return real
