"""Several communicators in one process, and several operations under way, over real MPI."""

import json
import signal

import pytest

from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.mpi


@pytest.fixture
def play(tmp_path, url):
    """Plays a scene to its end; returns what each rank said, or how it was killed."""

    def call(scene, size=3):
        with ranks(tmp_path, size, ["-m", "tests.e2e.rank_family", scene], new_group(url)) as job:
            told = []
            for ended in job.wait(40):
                if ended.status == -signal.SIGKILL:
                    told.append(None)
                    continue
                assert ended.status == 0, ended.err
                told.append([json.loads(line) for line in ended.out.splitlines()])
            return told

    return call


def test_groups_of_ranks_of_the_first_are_made_inside_it(play):
    for rank, (said,) in enumerate(play("second_group")):
        assert said["found"] == ([] if rank == 1 else [2, 0])
        assert said["sums"] == [3.0, 3.0]
        assert "made of 'test-" in said["explain"]


def test_a_group_with_a_process_outside_the_first_is_refused_on_every_rank(play):
    told = play("stranger")
    for rank in (0, 1):
        refused, after = told[rank]
        assert refused["kind"] in ("CommunicatorError", "GroupAbortedError"), refused
        assert after == {"total": 2}  # the first goes on
    assert told[2][0]["kind"] in ("CommunicatorError", "GroupAbortedError")
    assert any("ranks 2 are not in the MPI that the others have" in said[0]["told"] for said in told[:2])
    assert max(said[0]["seconds"] for said in told) < 10


def test_rebuilding_on_the_same_plan(play):
    for first, last in play("rebuilds"):
        assert [name.count("+") for name in first["names"]] == [1, 2]
        assert first["sums"] == [3, 3, 3]
        assert first["stale"] == []
        assert last == {"after": 3}


def test_a_lost_rank_ends_everything_under_way_with_its_name(play):
    told = play("killed_under_way")
    assert told[1] is None
    for rank, number in ((0, 5), (2, 4)):
        (said,) = told[rank]
        lost = [text for ranks_lost, text in said["said"] if ranks_lost == [1]]
        assert len(lost) == (number if rank == 0 else number - 1)  # alone in its pair, rank 2 could end that one
        assert all("lost rank 1 during" in text for text in lost)
        assert said["done"]
        assert "is broken since" in said["then"]
        assert said["seconds"] < 10


def test_what_nobody_waits_for_ends_with_the_process(play):
    for (said,) in play("leaves_works"):
        assert said == {"got": True}
