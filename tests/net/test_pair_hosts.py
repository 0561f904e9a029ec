"""Two ranks on two hosts, whose small sums go by a connection of their own beside MPI."""

import sys

import pytest

from demo.hosts import NetworkSpec
from tests.support.host_daemons import hosts_with_daemons
from tests.support.host_ranks import run_host_ranks

NETWORKS = [NetworkSpec("front", "10.75.0.0/24", bits_per_second=400_000_000), NetworkSpec("data", "10.76.0.0/24")]

pytestmark = [pytest.mark.root, pytest.mark.mpi]

OPENED = """
import json, os, sys
import numpy as np
from fabric_client import create_communicator
if "ANOTHER_FORM" in os.environ:
    from fabric_client.engine import mpi_form
    mpi_form._FORM = os.environ["ANOTHER_FORM"]
comm = create_communicator(engine="mpi", timeout=20)
other = 1 - comm.rank
beside = [line for line in str(comm.explain()).splitlines() if "beside MPI" in line]
"""

MIXED = """
found = []
for count in (0, 1, 100, 16384):  # up to 64 KiB
    for dtype in ("f4", "i8", "c16", "f2"):
        for op in ("sum", "average", "max"):
            if (op, dtype) in (("average", "i8"), ("max", "c16")):
                continue
            array = np.full(count * 4 // np.dtype(dtype).itemsize, comm.rank + 1, dtype)
            for out in (None, np.empty_like(array), array):
                result = comm.all_reduce(array, op, out=out)
                found.append(bool((result == {"sum": 3, "average": 1.5, "max": 2}[op]).all()))
# In an order of each rank's own: what one waits for, the other comes to later.
large, small = np.ones(3 << 20), np.ones(16)
works = [comm.all_reduce(large, async_op=True), *(comm.all_reduce(small, async_op=True) for _ in range(200))]
if comm.rank == 0:
    works[200].wait()
    comm.send(small, 1)
    comm.recv(small, 1)
else:
    works[0].wait()
    comm.recv(small, 0)
    comm.send(small, 0)
found += [bool((work.wait() == 2).all()) for work in works]
again = comm.dup()
found.append(bool((again.all_reduce(small) == 2).all()))
again.close()
stats = comm.stats()["all_reduce"]
comm.close()
print(json.dumps({"found": found, "beside": beside, "calls": stats.calls}))
"""

KILLED = """
import os, signal, time
for number in range(10**6):
    if comm.rank == 1 and number == 1000:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(np.ones(64), out=np.empty(64))
"""

OTHER_SIZES = """
comm.all_reduce(np.ones(64 + comm.rank))
"""

#: 64 KiB go beside MPI, and more does not.
ACROSS = """
for _ in range(3):
    comm.all_reduce(np.ones(1 << 14))
    comm.all_reduce(np.ones(64))
comm.all_reduce(np.ones(1 << 13 if comm.rank else 1 << 14))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with hosts_with_daemons(tmp_path_factory.mktemp("pair-hosts"), NETWORKS, "front") as made:
        yield made


def played(cluster, group, code, *variables):
    """Run a program on two ranks, each with variables of its own; return how each ended."""
    hosts, environment = cluster
    command = [sys.executable, "-c", OPENED + code]
    return run_host_ranks(hosts, command, {**environment, "FABRICD_GROUP": group}, own=variables)


@pytest.mark.timeout(120)
def test_sums_are_right_beside_whatever_else_runs_and_in_any_order_of_waiting(cluster):
    for rank, ended in enumerate(played(cluster, "mixed", MIXED)):
        told = ended.json()
        assert all(told["found"])
        assert told["calls"] == len(told["found"]) - 1
        assert told["beside"] == [
            f"sums of up to 64K: 10.76.0.{rank + 1} to 10.76.0.{2 - rank}, by a TCP connection beside MPI"
        ]


@pytest.mark.timeout(120)
def test_where_one_rank_has_other_settings_mpi_does_it_all(cluster):
    for ended in played(cluster, "own-settings", MIXED, {}, {"UCX_TLS": "all"}):
        told = ended.json()
        assert all(told["found"])
        assert told["beside"] == []


@pytest.mark.timeout(120)
def test_a_rank_that_is_killed_between_small_sums_is_lost_to_the_other(cluster):
    survivor, killed = played(cluster, "killed", KILLED)
    assert killed.status == -9
    assert survivor.status == 1
    assert "RankLostError" in survivor.last_line
    assert "rank 1" in survivor.last_line


@pytest.mark.timeout(120)
def test_arrays_of_other_sizes_are_told_on_both_ranks_with_both_sizes(cluster):
    for rank, ended in enumerate(played(cluster, "sizes", OTHER_SIZES)):
        assert ended.status == 1
        assert f"all_reduce of {512 + 8 * rank} bytes: the other rank's is of {520 - 8 * rank} bytes" in ended.err


@pytest.mark.timeout(120)
def test_sizes_of_which_one_goes_by_mpi_are_told_at_once_on_both_ranks(cluster):
    for ended in played(cluster, "across", ACROSS):
        assert ended.status == 1
        assert "all_reduce of 131072 bytes: the other rank's is a sum of 65536 bytes" in ended.err


@pytest.mark.timeout(120)
def test_a_rank_whose_client_makes_other_messages_is_refused_by_name(cluster):
    """As of another version; both hear it before MPI has connected them."""
    for ended in played(cluster, "versions", "", {}, {"ANOTHER_FORM": "0"}):
        assert ended.status == 1
        assert "runs a version of this client whose messages are others" in ended.err
