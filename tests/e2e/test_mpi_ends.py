"""How ranks end, fail, wait for each other and are interrupted: the others learn of it, and none hangs."""

import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest

from tests.support.ranks import new_group, play_scene, rank_environment, ranks

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("no_memory_left")]
SCENE = ["-m", "tests.e2e.rank_scenes"]


@pytest.fixture
def play(tmp_path, url):
    return partial(play_scene, tmp_path, url, "tests.e2e.rank_scenes")


def test_missing_ranks_are_named(tmp_path, url):
    code = "from fabric_client import create_communicator; create_communicator(timeout=1)"
    group = new_group(url)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=rank_environment(1, 3, group), capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert "GroupTimeoutError" in said
    assert re.search(r"\b0\b.*\b2\b", said)


def test_no_daemon_is_said_soon_and_with_its_address(tmp_path):
    code = "from fabric_client import create_communicator; create_communicator()"
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=rank_environment(0, 1, new_group("http://127.0.0.1:9")),
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert "UnreachableError: no answer from the daemon at http://127.0.0.1:9" in done.stderr
    assert "came from FABRICD_URL" in done.stderr
    assert done.stderr.count("Traceback") == 1  # not how often it was asked, and by which sockets
    assert time.monotonic() - begun < 10


def test_what_mpi_cannot_use_is_an_error_in_one_line_without_addresses(tmp_path, url):
    code = "from fabric_client import create_communicator; create_communicator()"
    with ranks(tmp_path, 1, ["-c", code], {**new_group(url), "MPIR_CVAR_ENABLE_HCOLL": "perhaps"}) as job:
        (ended,) = job.wait(20)
    assert "EngineError: MPI cannot use what it was told to: " in ended.last_line
    assert "the settings UCX_* and MPIR_CVAR_* of this process" in ended.last_line
    assert "0x" not in ended.last_line


def test_a_rank_that_ends_early_is_lost_to_those_who_need_it(play):
    ended = play("ends_early")
    assert ended[0].status == 0
    assert "lost rank 0 during all_reduce: it left the group before" in ended[1].last_line


def test_programs_that_never_close_end_well_when_all_end(play):
    for ended in play("ends_without_close", size=3):
        assert ended.json()["fine"]
        assert ended.err == ""


@pytest.mark.parametrize("scene", ["fails", "fails_without_with"])
def test_the_others_learn_that_a_rank_failed_but_not_its_secrets(play, scene):
    ended = play(scene)
    assert ended[0].last_line == "ValueError: the secret of rank 0"
    assert "GroupAbortedError" in ended[1].last_line
    assert "rank 0: ValueError" in ended[1].last_line
    assert "secret" not in ended[1].err
    assert ended[1].seconds < 10


def test_an_operation_that_lasts_too_long_ends_the_group_with_its_name(play):
    ended = play("times_out")
    why = "all_reduce did not end within 0.5 s: rank 0 is in no operation"
    assert ended[1].last_line.endswith(f"OperationTimeoutError: {why}")
    assert "GroupAbortedError" in ended[0].last_line
    assert f"rank 1: {why}" in ended[0].last_line


def test_ranks_that_wait_for_long_say_once_what_the_others_do(play):
    said = "".join(ended.err for ended in play("calls_something_else", size=3))
    words = re.findall(r"rank [012]: (recv from rank 1|all_reduce) has waited [12] s: (.*); it ends after (.*)", said)
    assert words in (
        [("recv from rank 1", "rank 1-2 is in all_reduce", "4 s")],
        [("all_reduce", "rank 0 is in recv from rank 1", "2 s (operation_timeout)")],
    ), said


def test_an_operation_that_waits_for_a_stopped_process_names_it(play):
    ended = play("waits_for_a_stopped_one", size=3)
    for rank in (0, 2):
        assert "all_reduce did not end within 1 s: rank 1 (" in ended[rank].last_line
        assert ") does not answer" in ended[rank].last_line
    assert "GroupAbortedError" in ended[1].last_line  # when it goes on


@pytest.mark.parametrize("operation", ["recv", "all_reduce", "work"])
def test_ctrl_c_is_heard_in_an_operation(play, operation):
    ended = play("is_interrupted", operation)
    assert ended[1].last_line == "KeyboardInterrupt"
    assert "rank 1: KeyboardInterrupt" in ended[0].last_line


def test_ctrl_c_is_heard_while_ranks_are_missing(tmp_path, url):
    done = subprocess.run(
        [sys.executable, *SCENE, "is_interrupted_while_joining"], env=rank_environment(0, 2, new_group(url)),
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGINT
    assert done.stderr.strip().splitlines()[-1] == "KeyboardInterrupt"


def test_a_program_that_ends_with_an_operation_pending_ends_and_the_others_are_told(play):
    ended = play("ends_with_work_pending")
    assert ended[0].status == 0, ended[0].err
    assert re.search(r"rank 0\b", ended[1].last_line)
    assert ended[0].seconds < 20


def test_who_waits_for_ranks_says_for_whom(tmp_path, url):
    group = new_group(url)
    code = "from fabric_client import create_communicator; create_communicator(timeout=7)"
    with ranks(tmp_path, 2, ["-c", code], {**group, "WORLD_SIZE": "4"}) as job:
        first, second = job.wait(40)
    assert re.search(r"group 'test-\w+' waits since 5 s for rank 2-3 of 4; here: rank 0-1 \(\S+\)", first.err)
    assert "waits since" not in second.err  # once is enough


def test_a_stopped_process_is_not_lost(play):
    for ended in play("is_stopped"):
        assert ended.json()["fine"], ended.err


def test_an_abort_ends_the_others_with_its_reason(play):
    ended = play("aborts")
    assert ended[0].status == 0
    assert "GroupAbortedError" in ended[1].last_line
    assert "rank 0: the loss is NaN" in ended[1].last_line
