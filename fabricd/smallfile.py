"""Reads small files of the kernel, and makes what they hold fit to be passed on and shown. Standard library only.

All reading goes through one door, ``Files``. By default that is the kernel; for a while, and for one thread, it can be
something that keeps what it lets through, or the recorded tree of another machine (``reading_through``).
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from typing import Protocol

#: sysfs hands out at most one page a file; /proc's short files are no longer.
SMALL_FILE_BYTES = 4096


class Files(Protocol):
    """Where files come from. Every method raises OSError as the kernel would, ValueError for a null in a path."""

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return at most ``limit`` bytes of a regular file; EINVAL for what is no regular file."""

    def names(self, directory: Path, limit: int) -> list[str]:
        """Return at most ``limit`` names in a directory, in no order."""

    def status(self, path: Path) -> os.stat_result:
        """Return the status of what a path leads to."""

    def link(self, path: Path) -> str:
        """Return where a symbolic link points; EINVAL for what is no link."""

    def real_path(self, path: Path) -> Path:
        """Return a path with all symbolic links followed."""


class _Kernel:
    """The files of the machine that this process runs on."""

    def read_bytes(self, path: Path, limit: int) -> bytes:
        # A tree may hold anything: O_NONBLOCK keeps a pipe from blocking the reader.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", str(path))
            if limit <= SMALL_FILE_BYTES:
                return os.read(descriptor, limit)  # the kernel hands out a file of this size at once
            parts: list[bytes] = []
            while limit > 0 and (part := os.read(descriptor, limit)):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)

    def names(self, directory: Path, limit: int) -> list[str]:
        with os.scandir(directory) as scan:
            return [entry.name for entry in islice(scan, limit)]

    def status(self, path: Path) -> os.stat_result:
        return path.stat()

    def link(self, path: Path) -> str:
        return os.readlink(path)  # noqa: PTH115 - as it stands there: a Path would tidy it

    def real_path(self, path: Path) -> Path:
        return Path(os.path.realpath(path, strict=True))


KERNEL: Files = _Kernel()
_door: ContextVar[Files] = ContextVar("files", default=KERNEL)


@contextmanager
def reading_through(files: Files) -> Iterator[None]:
    """Have this thread read through another door until the block ends."""
    token = _door.set(files)
    try:
        yield
    finally:
        _door.reset(token)


def read_bytes(path: Path, limit: int = SMALL_FILE_BYTES) -> bytes:
    """Return at most ``limit`` bytes of a regular file.

    Raises:
        OSError: as open and read raise it; EINVAL also for what is no regular file.
        ValueError: a path with a null character.
    """
    return _door.get().read_bytes(path, limit)


def names_in(directory: Path, limit: int) -> list[str]:
    """Return at most ``limit`` names in a directory, in no order.

    Raises:
        OSError: as the kernel raises it.
        ValueError: a path with a null character.
    """
    return _door.get().names(directory, limit)


def status_of(path: Path) -> os.stat_result:
    """Return the status of what a path leads to; raises as ``names_in``."""
    return _door.get().status(path)


def link_of(path: Path) -> str:
    """Return where a symbolic link points, EINVAL for what is none; raises as ``names_in``."""
    return _door.get().link(path)


def real_path_of(path: Path) -> Path:
    """Return a path with all symbolic links followed; raises as ``names_in``."""
    return _door.get().real_path(path)


def printable(value: object) -> str:
    r"""Return text that JSON can carry: names of files and interfaces may hold bytes that are no UTF-8.

    Such bytes become ``\xff`` and the like, whether they come as bytes or as Python's file names have them.
    """
    if not isinstance(value, bytes):
        text = "" if value is None else str(value)
        try:
            value = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            value = text.encode("utf-8", "backslashreplace")
    return value.decode("utf-8", "backslashreplace")


def escaped(text: str) -> str:
    r"""Return text for a terminal or a log: one line, whose control characters are shown (``\x1b``) and not obeyed."""
    # By ascii(), not by a codec: that is a module, which no process without a free file descriptor can load.
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
