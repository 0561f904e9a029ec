"""Real daemons for tests: on any port and a socket of their own, ended and checked at the end of the block."""

import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from demo.daemons import Daemon, program, start_here

#: SIGTERM must end a daemon within this time, whatever is open.
STOP_SECONDS = 1.0
#: For http://: reading this system's CAs for every client costs more than the questions.
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(slots=True)
class RunningDaemon:
    """A daemon under test."""

    url: str
    socket: str
    node_id: str
    process: subprocess.Popen[str]
    log_file: Path

    @property
    def log(self) -> str:
        """What it logged so far."""
        return self.log_file.read_text()

    def get(self, path: str, *, headers: Mapping[str, str] | None = None, seconds: float = 10.0) -> httpx.Response:
        """Ask over TCP."""
        return httpx.get(self.url + path, headers=headers, timeout=seconds, trust_env=False, verify=_NO_TLS)

    def metric(self, name: str) -> float:
        """Return a figure of its metrics that has no labels."""
        lines = self.get("/metrics").text.splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))

    def unix(self) -> httpx.Client:
        """Return a client of its Unix socket."""
        transport = httpx.HTTPTransport(uds=self.socket, verify=_NO_TLS)
        return httpx.Client(transport=transport, base_url="http://fabricd", trust_env=False)

    def stop(self) -> float:
        """End it with SIGTERM; return how long that took. Fails unless it ends cleanly and in time."""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(10)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end:\n{self.log}") from None
        took = time.monotonic() - begun
        assert status == 0, f"ended with status {status}:\n{self.log}"
        assert "Traceback" not in self.log, self.log
        return took

    def kill(self) -> None:
        """End it as the kernel ends a process that used too much memory."""
        self.process.kill()
        self.process.wait()


@contextmanager
def daemon(
    folder: Path,
    *arguments: str,
    name: str = "d",
    socket: bool = True,
    start: Callable[..., subprocess.Popen[str]] = start_here,
) -> Iterator[RunningDaemon]:
    """Run ``fabricd serve`` on a port that is free and check, if it still runs at the end, that it ends cleanly.

    Args:
        folder: takes NAME.sock, NAME.ready and NAME.log.
        arguments: more options; one that is given twice counts the last time.
        name: of its files and its node_id.
        socket: whether it has a Unix socket.
        start: starts it, here or on a host.
    """
    (folder / f"{name}.ready").unlink(missing_ok=True)  # of one that was killed
    where = str(folder / f"{name}.sock") if socket else ""
    options = ["--port", "0", "--socket", where, "--node-id", name, "--name", name, *arguments]
    with Daemon(name, folder, options, start=start) as told:
        told.wait_ready()
        running = _watched(told, folder / f"{name}.log")
        yield running
        if running.process.poll() is None:
            running.stop()


def _watched(told: Daemon, log: Path) -> RunningDaemon:
    return RunningDaemon(told.url, told.socket, told.node_id, told.process, log)


def ended(*arguments: str, seconds: float = 15.0) -> tuple[int, str]:
    """Run a ``fabricd`` that ends by itself; return its exit status and what it said."""
    done = subprocess.run(
        [program("fabricd"), *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def eventually(condition: Callable[[], object], seconds: float = 5.0, *, told: Sequence[RunningDaemon] = ()) -> None:
    """Wait until the condition holds; fail with the logs of the daemons when it does not in time."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(httpx.TransportError):
            if condition():
                return
        if time.monotonic() > deadline:
            raise AssertionError("did not come true:\n" + "\n".join(item.log for item in told))
        time.sleep(0.03)
