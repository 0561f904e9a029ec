"""What a test session left behind on this machine: processes, MPI's shared memory, interfaces, named namespaces.

A process is ours when it inherited the mark that ``Watch`` puts into the environment; so other programs on the machine
do not count. Interfaces, namespaces and shared memory bear no mark: there, what is new counts, and for shared memory
only what no living process has mapped.
"""

import os
import secrets
import signal
import time
from contextlib import suppress
from pathlib import Path

MARK = "TEST_SESSION_MARK"
_GRACE_SECONDS = 3.0
_MEMORY = "mpich_shm_*"


def _named_things() -> set[str]:
    """Interfaces and named namespaces of this machine."""
    found = {f"interface {path.name}" for path in Path("/sys/class/net").glob("*")}
    return found | {f"namespace {path.name}" for path in Path("/run/netns").glob("*")}


def abandoned_memory(*patterns: str) -> set[str]:
    """Return files of /dev/shm, by name, that no living process has mapped. Source: proc(5), /proc/<pid>/maps."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # it may end meanwhile
            mapped |= {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "/dev/shm/" in line}
    return {str(path) for pattern in patterns for path in Path("/dev/shm").glob(pattern)} - mapped


def mpi_memory() -> set[str]:
    """Return what ranks of MPICH over UCX have left in /dev/shm."""
    return abandoned_memory(_MEMORY, "ucx_shm_*")


class Watch:
    """Remembers how the machine was, marks this process's future children, and tells what they left."""

    def __init__(self) -> None:
        self._mark = f"{MARK}={secrets.token_hex(8)}".encode()
        name, value = self._mark.decode().split("=")
        os.environ[name] = value
        self._named = _named_things()
        self._memory = {str(path) for path in Path("/dev/shm").glob(_MEMORY)}

    def processes(self) -> dict[int, str]:
        """Return the command lines of the processes that bear the mark, by pid, but for this one and dead ones."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if int(entry.name) != os.getpid() and self._mark in (entry / "environ").read_bytes().split(b"\0"):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    found[int(entry.name)] = b" ".join(words).decode(errors="replace")[:200]
        return found

    def end(self) -> None:
        """End the processes that bear the mark: nobody else would, after a session that was broken off."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)

    def left_behind(self, *, whole_machine: bool) -> list[str]:
        """Return what is left, after a grace for what is about to end.

        Args:
            whole_machine: also judge what bears no mark; right where nothing else runs on the machine.
        """
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            found = [f"process {pid}: {command}" for pid, command in self.processes().items()]
            if whole_machine:
                found += sorted(_named_things() - self._named)
                found += [f"shared memory {path}" for path in sorted(abandoned_memory(_MEMORY) - self._memory)]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)
