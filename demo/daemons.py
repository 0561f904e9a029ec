"""Start the daemon and wait until it says where it listens."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fabricd.errors import UnavailableError

_START_SECONDS = 20.0
_STOP_SECONDS = 5.0

#: Starts a program with its output going into a file: here, or on a host.
Start = Callable[[Sequence[str], IO[str]], subprocess.Popen[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Daemon:
    """A running daemon."""

    url: str
    socket: str  #: path of its Unix socket
    node_id: str
    process: subprocess.Popen[str]


def program(name: str) -> str:
    """Return the path of a program of this environment, e.g. "fabricctl"."""
    return str(Path(sys.executable).with_name(name))


def start_here(command: Sequence[str], output: IO[str]) -> subprocess.Popen[str]:
    """Start a program on this machine, out of reach of a Ctrl-C at the terminal."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, start_new_session=True
    )


@contextmanager
def running_daemon(name: str, folder: Path, arguments: Sequence[str], *, start: Start = start_here) -> Iterator[Daemon]:
    """Run ``fabricd serve`` for the time of the block.

    Args:
        name: for its files in ``folder``: NAME.ready, NAME.log.
        folder: takes them.
        arguments: after ``serve``.
        start: starts it, here or on a host.

    Raises:
        UnavailableError: it ended or did not get ready in time; carries the end of its log.
    """
    ready, log = folder / f"{name}.ready", folder / f"{name}.log"
    with log.open("w") as output:
        process = start([program("fabricd"), "serve", *arguments, "--ready-file", str(ready)], output)
    try:
        said = _await_ready(name, process, ready, log)
        yield Daemon(url=said["url"], socket=said["socket"], node_id=said["node_id"], process=process)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_ready(name: str, process: subprocess.Popen[str], ready: Path, log: Path) -> Mapping[str, str]:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        text = ready.read_text() if ready.exists() else ""
        if text.endswith("\n"):
            said: Mapping[str, str] = json.loads(text)
            return said
        if process.poll() is not None:
            break
        time.sleep(0.02)
    what = "did not get ready" if process.poll() is None else f"ended with status {process.returncode}"
    raise UnavailableError(f"daemon {name} {what}: {log.read_text()[-2000:].strip()}")
