"""Start daemons, and wait until they are ready and know one another."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any, Self

from demo.hosts import Host
from fabric_client.connection import Connection
from fabric_client.locate import find_daemon
from fabricd.errors import UnavailableError
from fabricd.locations import SOCKET_NAME, SYSTEM_DIRECTORY
from fabricd.model.cluster import ClusterStatus, NodeState

_START_SECONDS = 20.0
_STOP_SECONDS = 5.0

#: Starts a program with its output going into a file: here, or on a host.
Start = Callable[[Sequence[str], IO[str]], subprocess.Popen[str]]


def program(name: str) -> str:
    """Return the path of a program of this environment, e.g. "fabricctl"."""
    return str(Path(sys.executable).with_name(name))


def start_here(command: Sequence[str], output: IO[str]) -> subprocess.Popen[str]:
    """Start a program on this machine, out of reach of a Ctrl-C at the terminal."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, start_new_session=True
    )


def end(process: subprocess.Popen[Any], seconds: float = _STOP_SECONDS) -> None:
    """End a program by SIGTERM, if it still runs; by SIGKILL when that takes it longer than ``seconds``."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Daemon:
    """``fabricd serve`` as a program of its own. As a context manager it ends with the block.

    Attributes:
        process: the program.
        url: where it listens, once it is ready.
        socket: its Unix socket, once it is ready; "" for none.
        node_id: of its node, once it is ready.
    """

    def __init__(self, name: str, folder: Path, arguments: Sequence[str], *, start: Start = start_here) -> None:
        """Start it; ``wait_ready`` waits for it, so that several can start at once.

        Args:
            name: for its files in ``folder``: NAME.ready, NAME.log.
            folder: takes them.
            arguments: after ``serve``.
            start: starts it, here or on a host.
        """
        self.name = name
        self.url = ""
        self.socket = ""
        self.node_id = ""
        self._ready = folder / f"{name}.ready"
        self._log = folder / f"{name}.log"
        with self._log.open("w") as output:
            command = [program("fabricd"), "serve", *arguments, "--ready-file", str(self._ready)]
            self.process = start(command, output)

    def wait_ready(self, seconds: float = _START_SECONDS) -> None:
        """Wait until it has looked at its machine and answers.

        Raises:
            UnavailableError: it ended or did not get ready in time; carries the end of its log.
        """
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            text = self._ready.read_text() if self._ready.exists() else ""
            if text.endswith("\n"):
                told = json.loads(text)
                self.url, self.socket, self.node_id = told["url"], told["socket"], told["node_id"]
                return
            time.sleep(0.02)
        status = self.process.poll()
        what = "did not get ready" if status is None else f"ended with status {status}"
        raise UnavailableError(f"daemon {self.name} {what}: {self._log.read_text()[-2000:].strip()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)


def wait_for_peers(host: Host, count: int) -> None:
    """Wait until a host's daemon knows ``count`` nodes, itself included, and their latest answer is good.

    Raises:
        UnavailableError: it did not come to that; says what each node's state is.
    """
    address = find_daemon(f"unix:{SYSTEM_DIRECTORY / SOCKET_NAME}")

    def ask() -> ClusterStatus:
        with closing(Connection(address)) as connection:
            return connection.get("/v1/cluster", ClusterStatus)

    deadline = time.monotonic() + _START_SECONDS
    while True:
        nodes = host.namespaces.inside(ask).nodes
        if sum(node.state == NodeState.OK for node in nodes) == count:
            return
        if time.monotonic() > deadline:
            states = "; ".join(f"{node.name or node.url}: {node.state} {node.reason}" for node in nodes)
            raise UnavailableError(f"the daemon of {host.name} does not know {count} good nodes: {states}")
        time.sleep(0.05)
