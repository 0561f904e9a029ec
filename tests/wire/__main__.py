"""``python -m tests.wire COMMIT...``: daemons, clients and ranks of this version with those of earlier commits.

Each follows the other as a peer, answers the other's ``fabricctl``, and forms a group of the other's ranks. Needs the
repository's history, which the suite does not: that reads recorded documents.
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from demo.daemons import end
from fabricd.errors import UnavailableError
from tests.wire.versions import HERE, Version, at_commit

_PEERS_SECONDS = 20.0
_JOB_SECONDS = 60.0
#: Adds up, waits for a file where it is given one, adds up again. The first versions knew but one engine.
_RANK = """
import inspect, pathlib, sys, time
import numpy
from fabric_client import create_communicator
chosen = {"engine": "mpi"} if "engine" in inspect.signature(create_communicator).parameters else {}
comm = create_communicator(**chosen)
for place in sys.argv[1:] or [""]:
    total = comm.all_reduce(numpy.full(4, comm.rank + 1.0))
    assert total.tolist() == [3.0] * 4, total
    if place:
        pathlib.Path(place, f"waits-{comm.rank}").touch()
    while place and not pathlib.Path(place, "go-on").exists():
        time.sleep(0.05)
total = comm.all_reduce(numpy.full(4, comm.rank + 1.0))
comm.close()
print("sum is right")
"""


def main() -> int:
    """Return 0 when everything went well between all pairs."""
    if len(sys.argv) < 2:
        print("usage: python -m tests.wire COMMIT...", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # daemons and jobs end with this program
    faults = 0
    for commit in sys.argv[1:]:
        with at_commit(commit) as earlier:
            for daemon, client in ((earlier, HERE), (HERE, earlier)):
                for what, fault in _outcomes(daemon, client):
                    faults += bool(fault)
                    print(f"daemon of {daemon.name}, {what} {client.name}: {fault or 'ok'}", flush=True)
    return int(faults > 0)


def _outcomes(daemon: Version, client: Version) -> Iterator[tuple[str, str]]:
    """Yield what was tried, and what went wrong with it; "" for nothing."""
    for check in (_check, _replaced_under_a_job):
        try:
            yield from check(daemon, client)
        except (UnavailableError, OSError, subprocess.TimeoutExpired) as error:  # the other checks say more
            yield f"{check.__name__.strip('_')} with", f"{type(error).__name__}: {error}"


def _check(daemon: Version, client: Version) -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory(prefix="fabricd-wire-") as place:
        folder = Path(place)
        with daemon.daemon("a", folder) as first:
            first.wait_ready()
            for question in (["nodes"], ["topo"], ["topo", "--json"]):
                status, said = client.fabricctl(*question, "--from", first.url)
                yield f"fabricctl {' '.join(question)} of", said[-300:] if status else ""
            rank = folder / "rank.py"
            rank.write_text(_RANK)
            command = ["run", "-n", "2", "--", sys.executable, str(rank)]
            status, said = client.fabricctl(*command, FABRICD_URL=f"unix:{first.socket}")
            yield "ranks of", "" if status == 0 and said.count("sum is right") == 2 else said[-600:]
            with client.daemon("b", folder, "--peer", first.url) as second:
                second.wait_ready()
                yield "peer of", _until_known(second.url)


def _replaced_under_a_job(before: Version, after: Version) -> Iterator[tuple[str, str]]:
    """Start a job and, while it runs, another daemon in place of its own."""
    with tempfile.TemporaryDirectory(prefix="fabricd-wire-") as place, ExitStack() as stack:
        folder = Path(place)
        rank = folder / "rank.py"
        rank.write_text(_RANK)
        with before.daemon("a", folder) as first:
            first.wait_ready()
            url = f"unix:{first.socket}"
            job = before.start("fabricctl", "run", "-n", "2", "--", sys.executable, str(rank), place, FABRICD_URL=url)
            stack.callback(end, job)
            deadline = time.monotonic() + _JOB_SECONDS
            while len(list(folder.glob("waits-*"))) < 2 and time.monotonic() < deadline and job.poll() is None:
                time.sleep(0.05)
        (folder / "a.ready").unlink(missing_ok=True)
        with after.daemon("a", folder) as second:
            second.wait_ready()
            (folder / "go-on").touch()
            said = job.communicate(timeout=_JOB_SECONDS)[0]
        good = job.returncode == 0 and said.count("sum is right") == 2
        yield "replaced under its job by", "" if good else f"status {job.returncode}: {said[-600:]}"


def _until_known(url: str) -> str:
    """Wait until a daemon knows the other one; return why it does not."""
    deadline = time.monotonic() + _PEERS_SECONDS
    nodes: list[dict[str, str]] = []
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"{url}/v1/cluster?summary=1", timeout=5) as answer:
            nodes = json.load(answer)["nodes"]
        if [node["state"] for node in nodes] == ["ok", "ok"]:
            return ""
        time.sleep(0.1)
    return str([(node["name"], node["state"], node["reason"]) for node in nodes])


if __name__ == "__main__":
    sys.exit(main())
