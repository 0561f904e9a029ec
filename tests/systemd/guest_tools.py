"""What the checks are made of. Standard library only: they run on the Python of Debian."""

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

UNIT = "fabricd.service"
CONFIG = Path("/etc/fabricd/fabricd.toml")
RUNTIME = Path("/run/fabricd")
#: The daemon has written it as far as anybody can tell; it stands for the records of groups that run.
STATE = RUNTIME / "left-by-a-group"
URL = "http://127.0.0.1:7470"
#: Others may keep the processors busy.
PATIENCE_SECONDS = 180.0


def run(*command: str, status: int = 0) -> str:
    """Run a program, return all that it said; fail when it ends with another status."""
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=4 * PATIENCE_SECONDS
    )
    assert done.returncode == status, f"{' '.join(command)}: status {done.returncode}: {done.stdout[-1500:]}"
    return done.stdout


def install(version: str, *options: str, status: int = 0) -> str:
    """Run the installer that comes with a version."""
    return run(f"/srv/{version}/install.sh", *options, status=status)


def told(name: str, unit: str = UNIT) -> str:
    """Return a property of a unit as systemd tells it."""
    return run("systemctl", "show", "--property", name, "--value", unit).strip()


def main_pid() -> int:
    """Return the daemon's process; 0 for none."""
    return int(told("MainPID"))


def get(path: str) -> Any:
    """Return the daemon's answer over the TCP port."""
    with urllib.request.urlopen(URL + path, timeout=PATIENCE_SECONDS) as response:
        return json.load(response)


def get_text(path: str) -> str:
    """Return the daemon's answer, which is text."""
    with urllib.request.urlopen(URL + path, timeout=PATIENCE_SECONDS) as response:
        return str(response.read().decode())


def break_off(count: int) -> None:
    """Begin requests and leave in the middle, each of which is a line of the log at level "debug"."""
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", 7470), timeout=PATIENCE_SECONDS) as one:
            one.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            one.shutdown(socket.SHUT_WR)
            one.recv(1)  # it has noticed


def running_version() -> str:
    """Return the version of the daemon that answers."""
    with urllib.request.urlopen(f"{URL}/openapi.json", timeout=PATIENCE_SECONDS) as response:
        return str(json.load(response)["info"]["version"])


def answers() -> bool:
    """Whether the daemon answers at all."""
    try:
        with urllib.request.urlopen(f"{URL}/livez", timeout=PATIENCE_SECONDS) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Wait for a condition; return how many seconds it took."""
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < PATIENCE_SECONDS, f"{what}: not within {PATIENCE_SECONDS:g} s"
        time.sleep(0.2)
    return time.monotonic() - begun


def new_process(old: int) -> bool:
    """Whether another process than ``old`` is the daemon, and is ready."""
    return main_pid() not in (0, old) and told("ActiveState") == "active"


class Journal:
    """What fabricd's unit says from now on.

    Args:
        whole: and what it has said since the machine started.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._from = ["--boot"]
        if not whole:
            run("journalctl", "--sync")
            shown = run("journalctl", "--quiet", "--lines", "0", "--show-cursor")
            self._from = ["--after-cursor", shown.rpartition("-- cursor: ")[2].strip()]

    def entries(self) -> list[dict[str, str]]:
        """Return its records, oldest first."""
        run("journalctl", "--sync")
        shown = run("journalctl", "--quiet", "--output", "json", "--unit", UNIT, *self._from)
        return [json.loads(line) for line in shown.splitlines()]

    def text(self) -> str:
        """Return their messages, one a line."""
        return "\n".join(str(entry.get("MESSAGE", "")) for entry in self.entries())

    def wait_for(self, text: str) -> None:
        """Wait until a message holds a text."""
        wait_until(lambda: text in self.text(), f"{text!r} in the journal")
