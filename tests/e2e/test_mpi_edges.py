"""What is documented of arrays and communicators that do not fit: nothing hangs, no process is ended by a signal."""

import re

import pytest

from tests.support.ranks import new_group, ranks

pytestmark = pytest.mark.mpi


@pytest.fixture
def play(tmp_path, url):
    """Plays a scene to its end."""

    def call(scene, *arguments, size=2):
        with ranks(tmp_path, size, ["-m", "tests.e2e.rank_edges", scene, *arguments], new_group(url)) as job:
            return [rank.json() for rank in job.wait(60)]

    return call


#: "results may be garbage without an error, an operation may wait until its timeout, or MPI may report an error"
_DOCUMENTED = {"garbage", "EngineError", "OperationTimeoutError", "GroupAbortedError", "RankLostError"}


@pytest.mark.parametrize(
    ("operation", "size"),
    [
        ("all_reduce", 2),
        ("all_reduce", 3),
        ("all_reduce_large", 2),
        ("all_reduce_large", 3),
        ("all_gather", 3),
        ("all_to_all", 3),
    ],
)
def test_sizes_that_differ_among_ranks_end_as_documented(play, operation, size):
    assert {said.partition(":")[0] for said in play("mismatched", operation, "mpi", size=size)} <= _DOCUMENTED


def test_a_broadcast_whose_sizes_differ_says_what_this_rank_passed_and_how_to_find_out(play):
    said_by = dict(enumerate(play("mismatched", "broadcast", "mpi", size=3)))
    told = {rank: said for rank, said in said_by.items() if said.startswith("EngineError")}
    assert told, "MPI notices where data comes; others may hear of it from the group before"
    for rank, said in told.items():
        assert f"broadcast, here of float64 of shape (3, {2000 if rank == 1 else 1000}): MPI: " in said
        assert "FABRICD_CHECK_CALLS=1 tells which rank calls what" in said
        assert "0x" not in said


def test_sizes_that_differ_are_told_where_ranks_ask_one_another_anyway(play):
    for said in play("mismatched", "reduce_large", "mpi"):
        assert "the ranks' arrays are of 48000000 to 96000000 bytes" in said


@pytest.mark.parametrize(
    ("way", "count"),
    [
        ("out", 4),  # small: added by MPI
        ("in_place", 4),
        ("average", 4),
        ("work", 4),
        ("out", 3000),  # received where the result goes
        ("in_place", 3000),  # added by NumPy
        ("out", 30_000),  # received in other memory
    ],
)
def test_a_sum_of_two_ranks_whose_sizes_differ_is_no_result(play, way, count):
    shorter, longer = play("sums_of_two", way, str(count))
    nbytes = 8 * count
    differ = {
        f"all_reduce of {nbytes} bytes: the other rank's is of more than {nbytes}",
        f"all_reduce of {nbytes + 8} bytes: the other rank's is of {nbytes} bytes",
    }
    for said in (shorter, longer):  # itself, or by the other, which was quicker to notice
        assert any(words in said for words in differ), said


def test_pieces_of_two_ranks_whose_sizes_differ_are_told_as_such(play):
    for said in play("sums_of_two", "out", "1_500_000"):
        assert re.search(r"a piece of all_reduce of \d+ bytes: the other rank's is of (more than )?\d+", said)


def test_after_close_everything_is_refused_in_words(play):
    for told in play("closed"):
        assert told["accepted"] == []
        assert told["result"] == [2.0] * 10
        assert told["repr"].endswith(", closed>")
        assert told["reduces"] == 1
        assert "engine mpi" in told["explained"]


def test_what_mpi_asks_its_process_manager_late_has_been_asked_before(play):
    for told in play("attributes"):
        assert told["UNIVERSE_SIZE"] == 2
        assert told["APPNUM"] == 0


def test_memory_that_only_an_operation_needs_is_held_until_its_end(play):
    assert play("held") == [[], []]


def test_subclasses_of_arrays_are_taken_for_the_memory_they_are(play):
    assert play("subclasses") == [[2.0, 2.0, [1.5] * 9, [[0, 0], [1, 1], [1, 1]]]] * 2


def test_some_ranks_may_work_in_place_and_others_not(play):
    assert play("partly_in_place", size=4) == [[]] * 4
