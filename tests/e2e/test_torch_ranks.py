"""PyTorch's process groups by ``fabric_client.torch``, over real ranks on this host."""

import signal

import pytest

from tests.support.daemon import daemon
from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with daemon(tmp_path_factory.mktemp("torch")) as running:
        yield running.url


@pytest.fixture
def play(url, tmp_path):
    """Runs a scene of ``rank_torch`` to its end."""

    def call(scene, size):
        with ranks(tmp_path, size, ["-m", "tests.e2e.rank_torch", scene], new_group(url)) as job:
            return job.wait(60)

    return call


def test_collectives_subgroups_and_a_second_group_after_the_first(play):
    told = [one.json() for one in play("works", 3)]
    assert [one["rank"] for one in told] == [0, 1, 2]
    assert [one["found"] for one in told] == [6.0] * 3
    assert [one["in_pairs"] for one in told] == [[3.0], [3.0, 5.0], [5.0]]
    assert [one["again"] for one in told] == [6.0] * 3
    assert {one["ifname"] for one in told} == {"lo"}
    for one in told:
        assert "has a default process group already" in one["twice"]
        assert "rank 0 listens on no other address" in one["explain"]
        assert "one network namespace" in one["explain"]


def test_a_killed_rank_is_named_by_a_typed_error(play):
    first, killed = play("loses_one", 2)
    assert killed.status == -signal.SIGKILL
    told = first.json()
    assert (told["ranks"], told["cause"]) == ([1], "RuntimeError")
    assert told["seconds"] < 8


def test_a_rank_that_fails_takes_the_others_along_and_keeps_its_secrets(play):
    failed, other = play("fails", 2)
    assert failed.status != 0
    assert "ValueError: the secret of rank 0" in failed.err
    assert other.status != 0
    assert "was aborted: rank 0: ValueError" in other.err
    assert "secret" not in other.err


def test_what_cannot_be_is_refused_at_once(play):
    (one,) = play("refused", 1)
    backend, nccl, timeout, rank = one.json()["said"]
    assert "no plans are made for backend 'mpi'" in backend
    assert nccl.startswith("UnavailableError")
    assert "built without NCCL" in nccl
    assert timeout.startswith("InputError")
    assert "rank 3 of 2 cannot be" in rank
