"""What runs inside the virtual machines: two hosts, joined by a wire, each with Soft-RoCE over it.

``alpha`` does most of the checks; ``beta`` does one, and is the other end of the job. What a check proves is its
docstring's first line.
"""

import json
import logging
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

import fabric_client
from demo.daemons import Daemon
from fabric_client.connection import Connection
from fabric_client.engine.settings import variables_set
from fabric_client.locate import find_daemon
from fabricd.errors import UnavailableError
from fabricd.model.cluster import ClusterStatus, NodeState
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_size
from tests.rdma.guest_checks import (
    access_control_services,
    counters,
    devices_ports_and_gids,
    kinds_of_interfaces,
    ports_of,
    run,
)
from tests.rdma.machines import MARK, NAMES

HOSTS = dict(zip(NAMES, ("10.9.0.1", "10.9.0.2"), strict=True))
PORT = 7470
GROUP = "roce"
HOSTS_DEVICE = "rxe0"  #: RDMA over the wire
ROCE = {"UCX_TLS": "self,rc,ud", "UCX_NET_DEVICES": f"{HOSTS_DEVICE}:1"}  #: asks for it; goes before the plan
#: A change must be in the map within this time, also on this processor that software emulates.
NOTICED_SECONDS = 1.0
_WAIT_SECONDS = 120.0
_SPEED_SECONDS = 400.0


def say(text: str) -> None:
    """Say a line, or several, to whoever started the machine."""
    for line in text.splitlines():
        print(f"{MARK} {line}", flush=True)


def uptime() -> float:
    """Return seconds since the kernel started."""
    return float(Path("/proc/uptime").read_text().split()[0])


def set_up(name: str) -> None:
    """Give this host its end of the wire, and a pair of interfaces of its own; RDMA over both."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1")
    for interface, address in (("eth0", HOSTS[name]), ("v0", "10.8.0.1")):
        run("ip", "address", "add", f"{address}/24", "dev", interface)
    for interface in ("eth0", "v0", "v1"):
        run("ip", "link", "set", interface, "up")
    for device, interface in (("rxe0", "eth0"), ("rxe1", "v0")):
        run("rdma", "link", "add", device, "type", "rxe", "netdev", interface)


def start_daemon(name: str, folder: Path) -> Daemon:
    """Start this host's daemon, which has the other host's for a peer."""
    other = next(address for host, address in HOSTS.items() if host != name)
    os.environ["FABRICD_PROBE_INTERVAL_SECONDS"] = "5"
    arguments = ["--host", "0.0.0.0", "--port", str(PORT), "--node-id", name, "--socket", str(folder / "sock")]
    arguments += ["--token-file", os.environ["FABRICD_TOKEN_FILE"], "--peer", f"http://{other}:{PORT}"]
    daemon = Daemon(name, folder, arguments)
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            daemon.wait_ready()
            return daemon
        except UnavailableError:  # its patience is for real processors
            if daemon.process.poll() is not None or time.monotonic() > end:
                raise


class Map:
    """What this host's daemon answers."""

    def __init__(self, daemon: Daemon) -> None:
        self._connection = Connection(find_daemon(f"unix:{daemon.socket}"))

    def node(self) -> Snapshot:
        """Return this host's snapshot."""
        return self._connection.get("/v1/node", Snapshot)

    def wait_until(self, condition: Callable[[Snapshot], bool]) -> float:
        """Wait by long polls until the condition holds; return when it did, monotonic."""
        end = time.monotonic() + _WAIT_SECONDS
        snapshot = self.node()
        while not condition(snapshot):
            assert time.monotonic() < end, f"did not come true: {snapshot}"
            params = {"generation": str(snapshot.generation)}
            snapshot = self._connection.get("/v1/node", Snapshot, params=params, wait=5.0)
        return time.monotonic()

    def wait_for_peers(self) -> None:
        """Wait until the daemons of all hosts answer."""
        end = time.monotonic() + _WAIT_SECONDS
        while True:
            nodes = self._connection.get("/v1/cluster", ClusterStatus).nodes
            if sum(node.state == NodeState.OK for node in nodes) == len(HOSTS):
                return
            assert time.monotonic() < end, f"not all hosts answer: {[(node.url, node.reason) for node in nodes]}"
            time.sleep(0.2)


def link_down_and_up(nodes: Map) -> None:
    """A link taken down is in the map within 1 s, the RDMA port on it too; and so when it is back."""
    for change, state in (("down", "down"), ("up", "active")):

        def noticed(snapshot: Snapshot, change: str = change, state: str = state) -> bool:
            interface = next(one for one in snapshot.interfaces if one.name == "v0")
            return interface.admin_up == (change == "up") and ports_of(snapshot)["rxe1"].state == state

        assert not noticed(nodes.node())
        begun = time.monotonic()
        run("ip", "link", "set", "v0", change)
        took = nodes.wait_until(noticed) - begun
        assert took < NOTICED_SECONDS, f"{change}: seen after {took:.2f} s"
        say(f"   {change}: interface and RDMA port in /v1/node after {took:.2f} s")


def traffic_moves_a_counter(nodes: Map) -> None:
    """Packets of a verbs program move the device's counters in the map."""
    # Both ends are here, so 100 messages each way are 200 packets sent, and as many acknowledged.
    before = dict(ports_of(nodes.node())["rxe1"].hw_counters)
    with subprocess.Popen(["ibv_rc_pingpong", "-d", "rxe1", "-g", "1", "-n", "100"], stdout=subprocess.PIPE) as server:
        time.sleep(1.0)
        run("ibv_rc_pingpong", "-d", "rxe1", "-g", "1", "-n", "100", "10.8.0.1")
        assert server.wait(_WAIT_SECONDS) == 0
    nodes.wait_until(lambda node: dict(ports_of(node)["rxe1"].hw_counters)["sent_pkts"] >= before["sent_pkts"] + 200)


def communicator(rank: int) -> str:
    """Two ranks on two hosts: the plan takes TCP and says why; who asks for RoCE gets it, and both come to an end."""
    before = packets()
    with (
        variables_set(ROCE),
        fabric_client.create_communicator(
            group=GROUP, rank=rank, world_size=len(HOSTS), url=f"http://{HOSTS[NAMES[0]]}:{PORT}", timeout=_WAIT_SECONDS
        ) as comm,
    ):
        told = comm.explain()
        for count in (1, 1000, 250_000):
            assert np.array_equal(comm.all_reduce(np.arange(count, dtype=np.float64)), 2.0 * np.arange(count))
    moved = packets() - before
    assert "chosen 10.9.0.0/24" in told, told
    assert f"{HOSTS_DEVICE}:1 is RDMA done by software on eth0, where the kernel's TCP is faster" in told, told
    assert f"UCX_TLS={ROCE['UCX_TLS']} from the environment, instead of the plan's self,tcp" in told, told
    assert moved > 250_000 * 8 / 1024, f"{moved} packets by RDMA\n{told}"
    return f"{told}\n{moved} packets sent by {HOSTS_DEVICE}" if rank == 0 else ""


def speed(rank: int) -> str:
    """The same all_reduce as the plan has it, by hand over TCP and over RoCE, and with nothing set: what each takes."""
    tcp = {"UCX_TLS": "self,tcp", "UCX_NET_DEVICES": "eth0"}
    ways = {
        "the plan": {},
        "TCP by hand": tcp,
        "RoCE by hand": ROCE,
        "nothing set": {"UCX_TLS": "all", "UCX_NET_DEVICES": "all"},
    }
    best: dict[tuple[str, int], dict[str, float]] = {}
    refused = {}
    for number, (way, settings) in enumerate([*ways.items()] * 2):
        sent = packets()
        url = f"http://{HOSTS[NAMES[0]]}:{PORT}"
        command = [sys.executable, "-m", "tests.rdma.speed", str(rank), str(len(HOSTS)), url, f"speed-{number}"]
        done = subprocess.run(
            command, env={**os.environ, **settings}, capture_output=True, text=True, check=False, timeout=_SPEED_SECONDS
        )
        if done.returncode and way != "the plan":  # a choice that does not work is an answer, too
            refused[way] = done.stderr.strip().splitlines()[-1]
            continue
        assert done.returncode == 0, f"{way}: {done.stderr[-1000:]}"
        assert way != "the plan" or packets() == sent, "the plan sent by RDMA"
        for nbytes, one in json.loads(done.stdout.splitlines()[-1]).items():
            before = best.setdefault((way, int(nbytes)), one)
            best[way, int(nbytes)] = {name: min(seconds, before[name]) for name, seconds in one.items()}
    if rank != 0:
        return ""
    lines = [
        f"{way}: {format_size(nbytes)}: " + ", ".join(f"{name} {seconds * 1e6:.0f} us" for name, seconds in one.items())
        for (way, nbytes), one in best.items()
    ]
    return "\n".join([*lines, *(f"{way}: {why}" for way, why in refused.items())])


def packets() -> int:
    """Return how many packets the device on the wire has sent."""
    return int(Path(f"/sys/class/infiniband/{HOSTS_DEVICE}/ports/1/hw_counters/sent_pkts").read_text())


def check(name: str, what: Callable[[], object]) -> bool:
    """Run a check, and say what came of it."""
    begun = time.monotonic()
    try:
        told = what()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's answer
        say(f"FAILED {name}: {error}")
        traceback.print_exc()
        return False
    say(f"ok {name} ({time.monotonic() - begun:.1f} s)")
    if isinstance(told, str) and told:
        say("\n".join(f"   {line}" for line in told.splitlines()))
    return True


def main() -> bool:
    """Do this host's part; return whether all of it was good."""
    words = dict(re.findall(r"(\w+)=(\S+)", Path("/proc/cmdline").read_text()))
    name = words["name"]
    logging.disable(logging.INFO)  # pyverbs sets up logging for everybody who imports it
    say(f"python runs, {uptime():.0f} s after the kernel")
    folder = Path("/run/fabricd")
    folder.mkdir()
    for variable in ("FABRICD_TOKEN_FILE", "FABRICD_GROUP_SECRET_FILE"):
        os.environ[variable] = str(folder / variable)
        (folder / variable).touch(mode=0o600)
        (folder / variable).write_text(words["secret"])
    set_up(name)
    good = True
    first = name == NAMES[0]
    if first:
        good &= check("devices, ports and GIDs", devices_ports_and_gids)
        good &= check("counters", counters)
        good &= check("access control services", access_control_services)
    else:
        good &= check("kinds of interfaces", kinds_of_interfaces)
    with start_daemon(name, folder) as daemon:
        say(f"daemon ready, {uptime():.0f} s after the kernel")
        nodes = Map(daemon)
        if first:
            good &= check("link down and up", lambda: link_down_and_up(nodes))
            good &= check("traffic", lambda: traffic_moves_a_counter(nodes))
        nodes.wait_for_peers()
        good &= check("communicator over RoCE", lambda: communicator(list(HOSTS).index(name)))
        if words.get("speed"):
            good &= check("speed", lambda: speed(list(HOSTS).index(name)))
    return good


if __name__ == "__main__":
    try:
        verdict = "PASS" if main() else "FAIL"
    except Exception as error:  # noqa: BLE001 - the verdict must be said
        traceback.print_exc()
        verdict = f"FAIL ({type(error).__name__}: {error})"
    say(f"verdict {verdict}")
    time.sleep(600)  # whoever started the machine ends it: what the other one sends must still be answered
