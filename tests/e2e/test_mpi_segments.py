"""Large reductions in pieces, over real MPI ranks that met through a real daemon."""

import pytest

from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("size", [2, 3])
def test_large_reductions_are_right_in_every_order(tmp_path, url, size):
    with ranks(tmp_path, size, ["-m", "tests.e2e.rank_segments"], new_group(url)) as job:
        reports = [rank.json() for rank in job.wait(60)]
    for rank, report in enumerate(reports):
        assert report["wrong"] == []
        assert report["done"] == (11 if rank == 0 else 12)
        assert len(report["told"]) == 1
        assert report["told"] == reports[0]["told"]


def test_a_rank_lost_between_two_pieces_ends_all_that_is_pending(tmp_path, url):
    code = """
import os, pathlib, sys, time
import numpy as np
from fabric_client import CommunicatorError, RankLostError, create_communicator

comm = create_communicator()
large = np.ones(33 << 20, "u1")
works = [comm.all_reduce(large, async_op=True) for _ in range(3)]
all_started = pathlib.Path(sys.argv[1])
if comm.rank == 1:
    while not all_started.exists():
        time.sleep(0.01)
    os._exit(7)  # the first piece is under way
all_started.touch()
began = time.monotonic()
for work in works:
    try:
        work.wait(20)
    except (RankLostError, CommunicatorError) as error:
        print(type(error).__name__)
try:
    comm.all_reduce(large)
except CommunicatorError as error:
    print(type(error).__name__)
sys.exit(time.monotonic() - began > 10)
"""
    with ranks(tmp_path, 2, ["-c", code, str(tmp_path / "started")], new_group(url)) as job:
        survivor, lost = job.wait(30)
    assert lost.status == 7
    assert survivor.status == 0, survivor.err
    said = survivor.out.split()
    assert len(said) == 4
    assert said[0] == "RankLostError"
