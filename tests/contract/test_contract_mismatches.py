"""Ranks whose calls differ, over each engine, where calls are compared: all of them are told who calls what."""

import os
import subprocess
import sys

import pytest

from demo.daemons import program
from tests.support.ranks import new_group, ranks


@pytest.mark.parametrize(
    ("engine", "size", "every"),
    [
        pytest.param("mpi", 3, 1, marks=pytest.mark.mpi),
        pytest.param("gloo", 2, 4, marks=pytest.mark.frameworks),  # slow to exchange words
        ("nccl", 3, 1),
    ],
)
def test_every_rank_hears_which_rank_calls_something_else(tmp_path, url, engine, size, every):
    if engine == "nccl":
        pytest.importorskip("cupy_backends", reason="CuPy is not installed")
    with ranks(tmp_path, size, ["-m", "tests.contract.rank_mismatches", engine, str(every)], new_group(url)) as job:
        reports = [rank.json() for rank in job.wait(60)]
    assert all(report["right"] for report in reports)
    for case in reports[0]["cases"]:
        told = {report["said"].get(case, "nothing").partition(": ")[2] for report in reports}  # behind its own call
        assert len(told) == 1, (case, told)
        only = told.pop()
        assert "differ: " in only, (case, only)
        assert f"rank {size - 1}" in only, (case, only)
        assert "nothing was moved" in only, (case, only)
    wrong = reports[0]["said"]["all_reduce shape"]
    assert f"rank {size - 1}: all_reduce of float32 of shape (4,), sum" in wrong
    assert ": all_reduce of float32 of shape (3,), sum" in wrong


@pytest.mark.mpi
def test_under_a_launcher_what_one_rank_asks_for_all_do(tmp_path):
    code = """
import os, numpy as np
from fabric_client import InputError, create_communicator

with create_communicator(check_calls=os.environ["PMI_RANK"] == "1") as comm:
    try:
        comm.broadcast(np.ones(3 + comm.rank))
    except InputError as error:
        os.write(1, f"{error.message}\\n".encode())
    assert comm.all_reduce(np.float64(1)) == 2
"""
    done = subprocess.run(
        [program("mpiexec"), "-n", "2", sys.executable, "-c", code],
        env={**os.environ, "FABRICD_SOCKET": str(tmp_path / "none")},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rank 1: broadcast of float64 of shape (4,), root 0") == 2
