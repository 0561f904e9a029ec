"""PyTorch's process groups by ``fabric_client.torch``, over real ranks on this host."""

import json
import signal
from functools import partial

import pytest

from tests.support.ranks import play_scene

pytestmark = pytest.mark.frameworks


@pytest.fixture
def play(url, tmp_path):
    return partial(play_scene, tmp_path, url, "tests.e2e.rank_torch", seconds=60)


def test_collectives_subgroups_a_second_group_and_an_error_that_ends_all(play):
    ended = play("works")
    told = [json.loads(one.out) for one in ended]
    assert [one["rank"] for one in told] == [0, 1]
    assert [one["found"] for one in told] == [3.0] * 2
    assert [one["in_subgroups"] for one in told] == [[3.0], [2.0, 3.0]]
    assert [one["again"] for one in told] == [3.0] * 2
    assert {one["ifname"] for one in told} == {"lo"}
    for one in told:
        assert "rank 0 listens on no other address" in one["explain"]
        assert "one network namespace" in one["explain"]
        backend, nccl, timeout, rank, twice = one["refused"]
        assert "no plans are made for backend 'mpi'" in backend
        assert nccl.startswith("UnavailableError: this PyTorch was built without NCCL")
        assert timeout.startswith("InputError")
        assert "rank 3 of 2 cannot be" in rank
        assert "has a default process group already" in twice
    assert all(one.status for one in ended)
    assert "ValueError: the secret of rank 0" in ended[0].err
    assert "was aborted: rank 0: ValueError" in ended[1].err
    assert "secret" not in ended[1].err


def test_a_killed_rank_is_named_by_a_typed_error(play):
    first, killed = play("loses_one")
    assert killed.status == -signal.SIGKILL
    told = first.json()
    assert (told["ranks"], told["cause"]) == ([1], "RuntimeError")
    assert told["seconds"] < 15
