"""Reads small files of the kernel, and makes what they hold fit to be passed on and shown. Standard library only."""

import errno
import os
import stat
from pathlib import Path

#: sysfs hands out at most one page a file; /proc's short files are no longer.
SMALL_FILE_BYTES = 4096


def read_bytes(path: Path, limit: int = SMALL_FILE_BYTES) -> bytes:
    """Return at most ``limit`` bytes of a regular file.

    Raises:
        OSError: as open and read raise it; EINVAL also for what is no regular file.
        ValueError: a path with a null character.
    """
    # A captured tree may hold anything: O_NONBLOCK keeps a pipe from blocking the reader.
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
