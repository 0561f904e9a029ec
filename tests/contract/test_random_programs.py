"""Random programs over each engine: no wrong value, nothing that hangs, nothing left open.

``RANDOM_PROGRAMS_SEED=...`` plays others; ``python -m tests.contract.long_programs`` plays them for as long as asked.
"""

import os

import pytest

from tests.support.ranks import new_group, ranks

#: What UCX adds to its pools of buffers when more messages are under way than before: 1 MiB at a time.
_POOLS_KIB = 4 << 10


@pytest.fixture
def play(tmp_path, url):
    """Play programs of a seed; returns what each rank tells."""

    def played(engine, size, seed, programs):
        arguments = ["-m", "tests.contract.rank_programs", engine, str(seed), str(programs), "100"]
        with ranks(tmp_path, size, arguments, new_group(url)) as job:
            found = [rank.json() for rank in job.wait(200)]
        assert [told["wrong"] for told in found] == [[]] * size
        return found

    return played


@pytest.mark.mpi
@pytest.mark.timeout(240)
@pytest.mark.parametrize("size", [2, 3])
def test_programs_over_mpi(play, size):
    for told in play("mpi", size, os.environ.get("RANDOM_PROGRAMS_SEED", size), 8):
        assert told["checked"] > 100
        before, after = told["before"], told["after"]
        assert all(after[what] <= before[what] for what in ("descriptors", "threads", "shared")), told
        assert after["in_use_kib"] <= before["in_use_kib"] + _POOLS_KIB, told


@pytest.mark.frameworks
@pytest.mark.timeout(240)
def test_programs_over_gloo(play):
    assert all(told["checked"] > 100 for told in play("gloo", 3, os.environ.get("RANDOM_PROGRAMS_SEED", 1), 6))


@pytest.mark.timeout(240)
def test_programs_over_nccl(play):
    pytest.importorskip("cupy_backends", reason="CuPy is not installed")
    assert all(told["checked"] > 100 for told in play("nccl", 3, os.environ.get("RANDOM_PROGRAMS_SEED", 1), 6))
