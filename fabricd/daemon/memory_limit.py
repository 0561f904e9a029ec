"""How near this daemon is to the memory that its control groups allow: a unit's, a container's, a job's.

Beyond that no allocation fails: the kernel ends a process, unasked. So whoever wants more is refused before.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fabricd.smallfile import read_bytes

#: This part of a limit is left for what runs already, and no more than that: of a host's memory, which jobs fill and
#: which a group around this one may be limited to, a sixteenth is more than this daemon ever takes.
_SPARE = 1 / 16
_MOST_SPARE = 256 << 20
#: The files are not read more often: a fast crowd takes 10 MB meanwhile.
_LOOK_SECONDS = 0.1
_STAT_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class _Kind:
    """The files of one version of control groups (Linux, cgroup-v2.rst and cgroup-v1/memory.rst)."""

    limits: tuple[str, ...]
    usage: str
    idle_cache: str  #: in memory.stat: pages of files that the kernel takes back first


_V1 = _Kind(("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
#: Above memory.high the kernel holds the process up instead of ending it, which is no better.
_V2 = _Kind(("memory.max", "memory.high"), "memory.current", "inactive_file")


@dataclass(frozen=True, slots=True)
class _Group:
    folder: Path
    kind: _Kind

    def near(self) -> str:
        """Say how near the limit is when it is; "" when it is not, or there is none."""
        limits = [limit for name in self.kind.limits if (limit := self._number(name)) is not None]
        used = self._number(self.kind.usage)
        if not limits or used is None:
            return ""
        limit = min(limits)
        most = limit - min(int(limit * _SPARE), _MOST_SPARE)
        if used <= most:
            return ""
        used -= self._idle_cache()
        return f"{used >> 20} of {limit >> 20} MiB" if used > most else ""

    def _number(self, name: str) -> int | None:
        with suppress(OSError, ValueError):  # "max", or another process has removed the group
            return int(read_bytes(self.folder / name))
        return None

    def _idle_cache(self) -> int:
        with suppress(OSError, ValueError):
            for line in read_bytes(self.folder / "memory.stat", _STAT_BYTES).decode("ascii").splitlines():
                name, _, value = line.partition(" ")
                if name == self.kind.idle_cache:
                    return int(value)
        return 0


class MemoryLimit:
    """Looks at the limits of this process's control groups.

    Args:
        proc: of this process.
        mounted: where control groups are.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        proc: Path = Path("/proc/self"),
        mounted: Path = Path("/sys/fs/cgroup"),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._groups: Sequence[_Group] = tuple(_groups(proc, mounted))
        self._clock = clock
        self._looked_at = float("-inf")
        self._near = ""

    def near(self) -> str:
        """Say how near the nearest limit is ("990 of 1024 MiB"); "" when there is enough left.

        May be called as often as one likes.
        """
        now = self._clock()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._near = next((told for group in self._groups if (told := group.near())), "")
        return self._near


def _groups(proc: Path, mounted: Path) -> Iterator[_Group]:
    """Yield the process's own group for memory, and those around it.

    In a container the path may be the host's, of which nothing is mounted: then the mount is the container's own group.
    """
    try:
        lines = read_bytes(proc / "cgroup").decode().splitlines()
    except (OSError, ValueError):
        return
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        if "memory" in controllers.split(","):
            kind, root = _V1, mounted / "memory"
        elif path and not controllers:
            kind, root = _V2, mounted
        else:
            continue
        folder = root / path.lstrip("/")
        while folder != root:
            yield _Group(folder, kind)
            folder = folder.parent
        yield _Group(root, kind)
