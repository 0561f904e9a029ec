"""Threads, forks, other programs and other users of MPI beside a communicator, and what it leaves in the process."""

import os
import re
import signal
from functools import partial

import pytest

from tests.support.ranks import play_scene

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("no_memory_left")]


@pytest.fixture
def play(tmp_path, url):
    return partial(play_scene, tmp_path, url, "tests.e2e.rank_process")


def test_a_communicator_lives_in_a_thread(play):
    for ended in play("lives_in_a_thread"):
        assert ended.json()["fine"], ended.err


def test_workers_that_are_forked_between_operations_disturb_nobody(play):
    for ended in play("forks_while_others_wait"):
        assert ended.json() == {"fine": True, "codes": [0, 0, 0]}, ended.err


def test_a_second_communicator_after_the_first_says_why_not(play):
    for ended in play("creates_twice"):
        assert "MPI starts once in a process" in ended.json()["said"]


def test_forks_of_a_rank(play):
    ended = play("forks", seconds=15)
    assert '"status": 7' in ended[0].out
    assert '"fine": true' in ended[0].out
    assert "this process is a fork of rank 0" in ended[0].out
    sleeper = int(re.search(r'"sleeper": (\d+)', ended[0].out)[1])
    # The child lives on with all that it inherited; the others learned of its parent's death all the same.
    os.kill(sleeper, signal.SIGKILL)
    assert "lost rank 0" in ended[1].last_line
    assert ended[1].seconds < 10


def test_programs_that_a_rank_starts_are_no_ranks(play):
    for ended in play("has_children"):
        assert ended.json()["child"] == "1 []"


def test_messages_of_a_wrong_length(play):
    ended = play("message_too_long")
    assert "EngineError: a message is longer than the array that receives it" in ended[1].last_line
    ended = play("message_too_short")
    assert "rank 0 sent 80 bytes, and the array that receives them has 800" in ended[1].json()["said"]
    assert ended[0].status == 0


def test_messages_from_threads_beside_collectives(play):
    for ended in play("threads"):
        assert ended.json()["fine"], ended.err


def test_mpi_that_other_code_started_is_told_with_the_way_out(play):
    for ended in play("after_mpi"):
        assert "CommunicatorError: MPI is already initialised in this process" in ended.last_line
        assert "mpi4py.rc.initialize = False" in ended.err


def test_after_close_nothing_is_open(play):
    for ended in play("leaves_nothing_open"):
        assert ended.json() == {"sockets": [], "threads": []}
