"""``fabricctl run`` and the group of its ranks: what only the launcher can know, and what only it can clear up."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from demo.daemons import program
from tests.support.daemon import daemon

pytestmark = pytest.mark.mpi

#: A rank that is killed in the moment in which its MPI has shared memory with a name.
KILLED_IN_START = """
import os, signal, threading, time
from fabric_client import create_communicator

def watch():
    while "/dev/shm/mpich_shm_" not in open("/proc/self/maps").read():
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=watch, daemon=True).start()
create_communicator(timeout=20)
time.sleep(20)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a Python program as ranks, to its end."""
    with daemon(tmp_path_factory.mktemp("run-group")) as running:

        def call(code, *options, n=2):
            command = [program("fabricctl"), "run", "-n", str(n), *options, "--", sys.executable, "-c", code]
            env = {**os.environ, "FABRICD_URL": running.url}
            return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)

        yield call


@pytest.mark.parametrize("when", ["time.sleep(0)", "time.sleep(3)"], ids=["before the others come", "afterwards"])
def test_ranks_hear_at_once_that_one_will_not_come(run, when):
    code = f"""
import os, sys, time
if os.environ["RANK"] == "1":
    {when}
    sys.exit(3)
from fabric_client import create_communicator
create_communicator(timeout=50)
"""
    began = time.monotonic()
    ended = run(code, "--grace", "45")
    assert time.monotonic() - began < 30
    assert ended.returncode == 3
    assert "fabricctl: rank 1 ended with status 3" in ended.stderr
    last = [line for line in ended.stderr.splitlines() if line.startswith("fabricd.errors.")]
    assert len(last) == 1
    assert "GroupAbortedError: group 'run-" in last[0]
    assert "rank 1 ended with status 3 before all ranks had come" in last[0]


def test_ranks_that_are_all_killed_while_mpi_starts_leave_no_shared_memory(run):
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    ended = run(KILLED_IN_START, "--grace", "30")
    assert ended.returncode == 128 + 9, ended.stderr
    assert set(Path("/dev/shm").glob("mpich_shm_*")) <= before
