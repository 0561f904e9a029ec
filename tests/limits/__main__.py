"""``python -m tests.limits``: a daemon in control groups that allow too little memory, and too few tasks.

It must live, say what it lacks, refuse with 503 what would take more, and be well again by itself. Needs root, and
control groups of either version that may be made; takes about a minute.
"""

import argparse
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx

from tests.rdma.image import CannotRunError
from tests.support.daemon import RunningDaemon, daemon

_ROOT = Path("/sys/fs/cgroup")
#: What a daemon with nothing to do takes is a third of it; streams that nobody reads are to fill the rest.
_MEMORY_BYTES = 150_000_000
_STREAMS = 5000
_STREAM = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
_LIVE_SECONDS = 10.0
#: A shortage counts as over after 10 s, a crowd as gone after 20.
_WELL_SECONDS = 60.0


class Group:
    """A control group for a daemon, with a limit.

    Args:
        controller: "memory" or "pids".
    """

    def __init__(self, controller: str) -> None:
        name = f"fabricd-limits-{os.getpid()}-{controller}"
        first = (_ROOT / controller).is_dir()
        if first:
            own = [line.split(":") for line in Path("/proc/self/cgroup").read_text().splitlines()]
            path = next(path for _, names, path in own if controller in names.split(","))
            self.folder = _ROOT / controller / path.lstrip("/") / name
            self._limit = {"memory": "memory.limit_in_bytes", "pids": "pids.max"}[controller]
        else:
            self.folder, self._limit = _ROOT / name, f"{controller}.max"
        try:
            if not first:
                (_ROOT / "cgroup.subtree_control").write_text(f"+{controller}")
            self.folder.mkdir()
        except OSError as error:
            raise CannotRunError(f"cannot make {self.folder}: {error.strerror}") from error

    def limit(self, most: int | None) -> None:
        """Set the limit; None: as much as it wants."""
        (self.folder / self._limit).write_text("max" if most is None else str(most))

    @property
    def tasks(self) -> int:
        return int((self.folder / "pids.current").read_text())

    def start(self, command: Sequence[str], output: IO[str]) -> "subprocess.Popen[str]":
        """Start a program that is in the group from its beginning."""
        into = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
        whole = ["/bin/sh", "-c", into, str(self.folder), *command]
        return subprocess.Popen(whole, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True)

    def remove(self) -> None:
        for _ in range(50):
            with suppress(OSError):  # what was in it ends a moment after it has ended for its parent
                self.folder.rmdir()
                return
            time.sleep(0.1)
        print(f"limits: {self.folder} stays", file=sys.stderr)


@contextmanager
def limited(controller: str, config: str = "") -> Iterator[tuple[RunningDaemon, Group]]:
    """Run a daemon in a group of its own."""
    group = Group(controller)
    try:
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "c.toml").write_text(config)
            with daemon(Path(name), "-c", f"{name}/c.toml", start=group.start) as running:
                yield running, group
    finally:
        group.remove()


def memory() -> str:
    """Let streams that nobody reads use the memory up."""
    with limited("memory") as (running, group), ExitStack() as crowd:
        group.limit(_MEMORY_BYTES)
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        worst = 0.0
        for number in range(_STREAMS):
            one = crowd.enter_context(socket.create_connection(address, timeout=_LIVE_SECONDS))
            with suppress(OSError):  # refused already
                one.sendall(_STREAM)
            if number % 250 == 249:
                worst = max(worst, lives(running))
        assert "short of" in running.get("/readyz").text
        assert "memory" in running.get("/readyz").text
        refused = running.get("/v1/node")
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        crowd.close()
        took = well(running)
        return f"{_STREAMS} streams: /livez within {worst:.2f} s, well again after {took:.1f} s"


def tasks() -> str:
    """Allow no thread more than there are, while each look at the machine needs some."""
    with limited("pids", "probe_interval_seconds = 1\n") as (running, group):
        group.limit(group.tasks)
        until, worst = time.monotonic() + _LIVE_SECONDS, 0.0
        while "threads" not in running.get("/readyz").text:
            assert time.monotonic() < until, "it does not say that it is short of threads"
            worst = max(worst, lives(running))
            time.sleep(0.2)
        assert running.get("/v1/node").status_code == 200
        group.limit(None)
        took = well(running)
        return f"/livez within {worst:.2f} s, well again after {took:.1f} s"


def lives(running: RunningDaemon) -> float:
    """Return how long ``/livez`` took, seconds; it must say that the daemon lives."""
    begun = time.monotonic()
    answer = running.get("/livez", seconds=_LIVE_SECONDS)
    assert answer.text == "alive\n", answer.text
    return time.monotonic() - begun


def well(running: RunningDaemon) -> float:
    """Wait until all is as it was; return how long that took, seconds."""
    begun = time.monotonic()
    while time.monotonic() - begun < _WELL_SECONDS:
        with suppress(httpx.TransportError):
            node = running.get("/v1/node")
            outcomes = {one["outcome"] for one in node.json()["probes"]} if node.status_code == 200 else {"failed"}
            if running.get("/readyz").text == "ready\n" and not outcomes & {"failed", "stale"}:
                return time.monotonic() - begun
        time.sleep(0.2)
    raise AssertionError(f"not well after {_WELL_SECONDS:g} s:\n{running.log}")


def main() -> int:
    """Return 0 when the daemon held out, 1 when it did not, 3 when it cannot be tried here."""
    argparse.ArgumentParser(prog="python -m tests.limits", description="fabricd in tight control groups.").parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # daemons and groups end with this program
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for check in (memory, tasks):
            print(f"limits: {check.__name__}: {check()}", flush=True)
    except CannotRunError as error:
        print(f"limits: cannot run here: {error}", file=sys.stderr)
        return 3
    except AssertionError as error:
        print(f"limits: FAIL: {error}")
        return 1
    print("limits: PASS")
    return 0


if __name__ == "__main__":
    sys.exit(main())
