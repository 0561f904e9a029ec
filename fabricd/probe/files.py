"""Reading small kernel files: bounded, never blocking on a pipe, and saying why a value is missing."""

import errno
import fnmatch
import re
from functools import lru_cache
from pathlib import Path, PurePosixPath

from fabricd.smallfile import SMALL_FILE_BYTES, link_of, names_in, printable, read_bytes, real_path_of, status_of

_MAX_ENTRIES = 20_000
_MAX_CPUS = 65_536
_MAX_NOTES = 1000
_CPU_RANGE = re.compile(r"^(\d{1,6})(?:-(\d{1,6}))?$")

# What a kernel file may answer when the device has no such value, is gone, or is not for us.
_WHY = {
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EINVAL: "not offered by the driver",
    errno.EOPNOTSUPP: "not offered by the driver",
    errno.ENXIO: "device is gone",
    errno.ENODEV: "device is gone",
    errno.ELOOP: "symbolic links in a circle",
}


@lru_cache(maxsize=256)  # every device of a node has one of few lists
def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list such as ``"0-3,8,10-11"``, ascending.

    Raises:
        ValueError: not a CPU list, or one with absurd numbers.

    Source: kernel Documentation/admin-guide/cputopology.rst.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        if not part:
            continue
        match = _CPU_RANGE.match(part)
        if match is None:
            raise ValueError(f"not a CPU list: {text[:60]!r}")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < _MAX_CPUS:
            raise ValueError(f"not a range of CPUs: {part!r}")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


class FieldReader:
    """Reads single values. A missing file is None; any other trouble is None and a note, and never an exception.

    Attributes:
        notes: what could not be read, "path: why"; bounded.
    """

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, where: Path | str, why: str) -> None:
        """Add a note."""
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(printable(f"{where}: {why}"))

    def text(self, path: Path, limit: int = SMALL_FILE_BYTES) -> str | None:
        """Return a file's text without the white space around it; None when there is none to be had."""
        try:
            data = read_bytes(path, limit)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self._note_error(path, error)
            return None
        return data.decode("utf-8", "backslashreplace").strip("\0 \t\r\n")

    def integer(
        self, path: Path, *, base: int = 10, low: int = 0, high: int = 2**63 - 1, missing: int | None = None
    ) -> int | None:
        """Return a file's number if it lies in ``low..high``.

        Args:
            path: the file.
            base: 10, 16, or 0 for a prefix such as ``0x``.
            low: least credible value.
            high: greatest credible value.
            missing: the number by which this file says "not known", which is no fault.
        """
        text = self.text(path)
        if not text:
            return None
        try:
            value = int(text, base) if len(text) <= 40 else None
        except ValueError:
            value = None
        if value is not None and value == missing:
            return None
        if value is None or not low <= value <= high:
            self.note(path, f"not a credible number: {text[:40]!r}")
            return None
        return value

    def cpu_list(self, path: Path) -> tuple[int, ...]:
        """Return a file's CPU list; empty when there is none."""
        try:
            return parse_cpu_list(self.text(path, 64 * 1024) or "")
        except ValueError as error:
            self.note(path, str(error))
            return ()

    def entries(self, directory: Path) -> list[str]:
        """Return the names in a directory, sorted; empty when it is missing. At most 20,000."""
        try:
            return sorted(names_in(directory, _MAX_ENTRIES))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except (OSError, ValueError) as error:
            self._note_error(directory, error)
            return []

    def matching(self, directory: Path, pattern: str) -> list[Path]:
        """Return what is below a directory and fits a relative path with ``*`` and the like, sorted.

        Folders that cannot be listed hold nothing; what is wrong with a file is told when it is read.
        """
        quiet = FieldReader()
        found = [directory]
        for part in PurePosixPath(pattern).parts:
            if any(mark in part for mark in "*?["):
                found = [at / name for at in found for name in fnmatch.filter(quiet.entries(at), part)][:_MAX_ENTRIES]
            else:
                found = [at / part for at in found if quiet.exists(at / part)]
        return found

    def exists(self, path: Path) -> bool:
        """Tell whether something is there; where that is denied, False and a note."""
        try:
            status_of(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError) as error:
            self._note_error(path, error)
            return False
        return True

    def link_target(self, path: Path) -> str:
        """Return the last part of where a symbolic link points, e.g. a driver's name; "" when it is no link."""
        return next(reversed(self.link_parts(path)), "")

    def link_parts(self, path: Path) -> tuple[str, ...]:
        """Return the parts of where a symbolic link points; empty when it is no link."""
        try:
            return PurePosixPath(link_of(path)).parts
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except (OSError, ValueError) as error:
            if getattr(error, "errno", None) != errno.EINVAL:
                self._note_error(path, error)
            return ()

    def real_path(self, path: Path) -> Path | None:
        """Return a path with all symbolic links followed; None when it does not lead anywhere."""
        try:
            return real_path_of(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            self._note_error(path, error)
            return None

    def _note_error(self, path: Path, error: Exception) -> None:
        number = getattr(error, "errno", None)
        self.note(path, _WHY.get(number or 0) or getattr(error, "strerror", None) or str(error))
