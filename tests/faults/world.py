"""Two hosts with a daemon each, and what is left on them when all ranks have ended."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from subprocess import Popen

from demo.daemons import Daemon, wait_for_peers
from demo.hosts import Host, NetworkSpec, make_hosts
from fabric_client.connection import Connection
from fabric_client.locate import find_daemon
from fabricd.locations import SOCKET_NAME, SYSTEM_DIRECTORY
from tests.support.host_daemons import PORT, SecretFiles, host_daemon

CONTROL, DATA = "front", "data"
#: The first is much slower, so that plans take the second, also where the machine is busy.
_NETWORKS = [NetworkSpec(CONTROL, "10.81.0.0/24", bits_per_second=40_000_000), NetworkSpec(DATA, "10.82.0.0/24")]
_GRACE_SECONDS = 8.0
#: A daemon's connections to its peer come and go.
_SPARE_DESCRIPTORS = 6


class World:
    """The hosts. The daemon of the first one owns the groups.

    Attributes:
        hosts: two of them.
        folder: takes files.
    """

    def __init__(self, hosts: list[Host], folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self._files = SecretFiles(folder)
        self._urls = [f"http://{host.link(CONTROL).address}:{PORT}" for host in hosts]
        self._daemons: list[Daemon] = []
        self._descriptors: dict[int, int] = {}  #: of each daemon, by its process, when nothing was going on

    def start(self) -> None:
        """Start the daemons, and wait until they know each other."""
        self._daemons = [host_daemon(self.folder, host, self._files, self._urls) for host in self.hosts]
        for daemon in self._daemons:
            daemon.wait_ready(60.0)
        self.settle()

    def settle(self) -> None:
        """Wait until the daemons know each other."""
        for host in self.hosts:
            wait_for_peers(host, len(self.hosts))

    def close(self) -> None:
        """End the daemons."""
        for daemon in self._daemons:
            daemon.__exit__()

    def kill_daemon(self) -> None:
        """Kill the daemon that owns the groups."""
        self._daemons[0].process.kill()
        self._daemons[0].process.wait()

    def restart_daemon(self) -> None:
        """Start it again, and wait until it answers."""
        self._daemons[0] = host_daemon(self.folder, self.hosts[0], self._files, self._urls)
        self._daemons[0].wait_ready(60.0)

    def start_rank(self, host: int, name: str, variables: dict[str, str], command: list[str]) -> "Popen[str]":
        """Start a rank on a host; NAME.out and NAME.err take what it says."""
        group = {"FABRICD_URL": self._urls[0], "PYTHONFAULTHANDLER": "1", **self._files.variables()}
        with (self.folder / f"{name}.out").open("w") as out, (self.folder / f"{name}.err").open("w") as err:
            return self.hosts[host].popen(command, env={**group, **variables}, stdout=out, stderr=err)

    def said(self, name: str) -> tuple[str, str]:
        """Return what a rank wrote to standard output and standard error."""
        return (self.folder / f"{name}.out").read_text(), (self.folder / f"{name}.err").read_text()

    def remember(self) -> None:
        """Count the daemons' descriptors now, when nothing is going on; once for each daemon."""
        for daemon in self._daemons:
            self._descriptors.setdefault(daemon.process.pid, _descriptors(daemon))

    def left(self) -> list[str]:
        """Return what ranks have left behind, after a grace for what is about to end."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while True:
            found = [f"{host.name}: {what}" for host in self.hosts for what in host.namespaces.inside(_left_here)]
            found += [text for daemon in self._daemons if (text := self._too_many(daemon))]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def _too_many(self, daemon: Daemon) -> str:
        before, now = self._descriptors.get(daemon.process.pid), _descriptors(daemon)
        if before is None or now <= before + _SPARE_DESCRIPTORS:
            return ""
        return f"the daemon of {daemon.name} has {now} descriptors open, and had {before}"

    def groups(self) -> int:
        """Return how many groups their daemon knows."""

        def ask() -> bytes:
            address = find_daemon(f"unix:{SYSTEM_DIRECTORY / SOCKET_NAME}")
            with closing(Connection(address)) as connection:
                return connection.request("GET", "/metrics")

        lines = self.hosts[0].namespaces.inside(ask).decode().splitlines()
        return sum(int(float(line.split()[1])) for line in lines if line.startswith("fabricd_groups{"))


def _descriptors(daemon: Daemon) -> int:
    return sum(1 for _ in Path(f"/proc/{daemon.process.pid}/fd").iterdir())


def _left_here() -> list[str]:
    """Look at a host from inside: its processes, and its shared memory of both kinds. Source: proc(5)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended meanwhile
        if "tests.faults.rank" in words and state != "Z":
            found.append(f"process {entry.name} ({state}): {words[:80]}")
    found += [f"/dev/shm/{path.name}" for path in Path("/dev/shm").iterdir()]
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return found + [f"System V segment {line.split()[1]}" for line in segments]


@contextmanager
def make_world(folder: Path) -> Iterator[World]:
    """Make the hosts and their daemons; all is gone afterwards.

    Raises:
        UnavailableError: this machine or this user cannot have them.
    """
    with ExitStack() as stack:
        world = World(stack.enter_context(make_hosts(2, _NETWORKS)), folder)
        stack.callback(world.close)
        world.start()
        yield world
