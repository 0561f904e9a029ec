"""Groups of NCCL ranks through their lives, under CuPy's real binding: whatever happens, none hangs, and all say why.

The library beneath moves host memory; see ``tests/nccl_shim``.
"""

import re
import signal
from functools import partial

import pytest

from tests.support.ranks import play_scene

pytest.importorskip("cupy_backends", reason="CuPy is not installed")


@pytest.fixture
def play(tmp_path, url):
    return partial(play_scene, tmp_path, url, "tests.e2e.rank_nccl", size=3)


def test_ranks_get_communicators_on_the_plan(play):
    for ended in play("works"):
        told = ended.json()
        assert told["total"] == [3.0, 6.0, 9.0]
        assert told["second"] == [0, 1, 2]
        assert told["stats"]["all_reduce"] == 1
        for part in ("engine nccl", "watched", "hosts: 1", "NCCL 2.30.4 through CuPy", f"gpu{ended.rank}"):
            assert part in told["explain"]
        assert ended.err == ""


@pytest.mark.parametrize(
    ("via", "users", "told"),
    [
        (("IB/0/GDRDMA", "IB/1/GDRDMA(PCI)"), {}, True),
        (("IB/0/GDRDMA", "IB/1"), {}, False),
        (("IB/0(1)/GDRDMA/Shared", "Socket/0/Shared"), {}, False),
        (("IB/0", "IB/1"), {"NCCL_DEBUG": "WARN"}, None),  # the user's own log is left to the user
    ],
)
def test_all_ranks_tell_whether_gpus_memory_goes_to_the_cards(play, via, users, told):
    for ended in play("tells_of_memory", size=2, VIA0=via[0], VIA1=via[1], **users):
        found = ended.json()
        assert found["first"] is found["second"] is told
        assert found["variables"] == list(users)
        wanted = {True: "read and written by the cards", False: "copied through the hosts", None: "shared memory"}
        assert wanted[told] in found["because"]


def test_a_rank_killed_in_the_middle_is_named_by_the_others_which_end(play):
    ended = play("killed")
    assert ended[1].status == -signal.SIGKILL
    for rank in (ended[0], ended[2]):
        assert rank.status == 1
        assert re.search(r"RankLostError: group 'test-\w+' lost rank 1 during all_reduce", rank.last_line)
        assert rank.seconds < 15


def test_a_lost_rank_frees_the_streams_of_those_who_wait_for_their_gpu(play):
    ended = play("killed_in_background", size=2)
    assert ended[0].status == 1
    assert "lost rank 1" in ended[0].last_line
    assert '"freed_after"' in ended[0].out


def test_two_ranks_on_one_gpu_are_both_named_on_every_rank(play):
    for ended in play("same_gpu"):
        assert ended.status == 1
        assert re.search(r"(EngineError: |GroupAbortedError: .*)ranks 1-2 are all on one GPU, 0000:17", ended.last_line)


def test_an_operation_that_a_rank_does_not_come_to_has_a_deadline(play):
    ended = play("slow", size=2)
    assert "OperationTimeoutError: barrier did not end within 0.5 s" in ended[0].last_line
    assert ended[0].seconds < 15


@pytest.mark.parametrize(
    ("fault", "scene", "own", "others"),
    [
        ("async:6:5", "operates", "ncclRemoteError", "ncclRemoteError"),
        ("init:2", "starts", "the start of NCCL: NCCL reports ncclSystemError", "ncclSystemError"),
        ("inithang", "starts", "did not return in time", "did not return in time"),
    ],
)
def test_what_one_rank_hears_of_nccl_ends_all_of_them(play, fault, scene, own, others):
    ended = play(scene, size=2, FAULT=fault)
    assert own in ended[1].last_line
    assert re.search(f"(GroupAbortedError|EngineError|OperationTimeoutError).*{others}", ended[0].last_line)
    assert max(rank.seconds for rank in ended) < 20


def test_a_rank_that_leaves_early_is_named(play):
    ended = play("early", size=2)
    assert "RankLostError" in ended[0].last_line
    assert "lost rank 1" in ended[0].last_line
    assert ended[1].status == 0
