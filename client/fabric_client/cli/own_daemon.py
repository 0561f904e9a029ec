"""The daemon that a job's ranks meet at: a running one, else one started for the job's own time."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fabric_client.cli.launcher import ENDING, die_with_parent
from fabric_client.connection import Connection
from fabric_client.locate import DaemonAddress, find_daemon, find_token
from fabricd.errors import FabricError, UnavailableError
from fabricd.locations import find_socket

_START_SECONDS = 20.0
_STOP_SECONDS = 5.0
_POLL_SECONDS = 0.02
_SERVE = "from fabricd.cli import main; main()"


@contextlib.contextmanager
def daemon_for_job() -> Iterator[str]:
    """Yield the address of the daemon that this host's ranks should meet at, in the form of ``FABRICD_URL``.

    Raises:
        UnreachableError: ``FABRICD_URL`` or ``FABRICD_SOCKET`` names a daemon that does not answer.
        UnavailableError: none runs, and none can be started.
    """
    named = any(os.environ.get(name) for name in ("FABRICD_URL", "FABRICD_SOCKET"))
    if named or find_socket() is not None:
        address = find_daemon(all_local=True)
        try:
            _ask(address)
        except FabricError:
            if named:
                raise
        else:
            yield str(address)
            return
    with _own_daemon() as url:
        yield url


def _ask(address: DaemonAddress) -> None:
    connection = Connection(address, token=find_token())
    try:
        connection.request("GET", "/livez")
    finally:
        connection.close()


@contextlib.contextmanager
def _own_daemon() -> Iterator[str]:
    # A signal's handler raises: between the folder's making and its `with` nobody would remove it.
    with _signals_held() as let_go, tempfile.TemporaryDirectory(prefix="fabricd-") as name:
        directory = Path(name)
        ready = directory / "ready.json"
        socket = directory / "fabricd.sock"
        # Nothing of this user's or the system's daemon: no configuration, no state, no fixed port.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("FABRICD_")}
        environ["RUNTIME_DIRECTORY"] = name
        (directory / "fabricd.toml").write_text("")
        options = ["--config", str(directory / "fabricd.toml"), "--port", "0", "--socket", str(socket)]
        options += ["--ready-file", str(ready), "--log-level", "warning"]

        def prepare() -> None:
            die_with_parent()
            let_go()  # in the child

        process = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
            [sys.executable, "-c", _SERVE, "serve", *options],
            env=environ,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the ranks; the daemon goes after them
            preexec_fn=prepare,
        )
        try:
            let_go()
            facts = _wait_ready(process, ready)
            sys.stderr.write(f"fabricctl: no daemon runs here; started one for this job (pid {process.pid})\n")
            sys.stderr.flush()
            yield f"unix:{facts['socket']}" if facts.get("socket") else str(facts["url"])
        finally:
            _stop(process)


@contextlib.contextmanager
def _signals_held() -> Iterator[Callable[[], None]]:
    """Hold back signals that end this process until the function that is yielded is called.

    Their handlers raise, and Python takes no notice of what is raised in the functions that it calls at a fork.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)

    def let_go() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    try:
        yield let_go
    finally:
        let_go()


def _wait_ready(process: "subprocess.Popen[bytes]", ready: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if ready.exists() and (text := ready.read_text(encoding="utf-8")).endswith("\n"):
            facts = json.loads(text)
            return facts if isinstance(facts, dict) else {}
        status = process.poll()
        if status is not None:
            raise UnavailableError(
                f"no daemon runs here, and the one started for this job ended with status {status}",
                hint="start `fabricd serve` and look at its messages, or name one by FABRICD_URL",
            )
        time.sleep(_POLL_SECONDS)
    raise UnavailableError(f"the daemon started for this job did not answer within {_START_SECONDS:g} s")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
