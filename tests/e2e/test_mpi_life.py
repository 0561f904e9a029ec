"""Groups of real MPI ranks through their lives: they work, and whatever happens to them, none hangs and none leaks."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from demo.daemons import program
from fabricd.model.wire import SECRET_HEADER
from tests.support.daemon import daemon, eventually
from tests.support.ranks import new_group, rank_environment, ranks

pytestmark = pytest.mark.mpi
SCENE = ["-m", "tests.e2e.rank_scenes"]


@pytest.fixture
def play(tmp_path, url):
    """Plays a scene to its end."""

    def call(scene, *arguments, size=2, seconds=30, **group):
        with ranks(tmp_path, size, [*SCENE, scene, *arguments], new_group(url, **group)) as job:
            return job.wait(seconds)

    return call


@pytest.fixture(autouse=True)
def _nothing_in_shared_memory():
    """Whatever a test does to its ranks, no shared memory of MPI stays behind."""
    before = mpi_memory()
    yield
    eventually(lambda: mpi_memory() <= before)


def mpi_memory():
    """Files of MPICH and UCX that no living process has mapped."""
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped |= {line.split(maxsplit=5)[5] for line in maps.read_text().splitlines() if "/dev/shm/" in line}
        except OSError:
            continue
    return {str(path) for name in ("mpich_shm_*", "ucx_shm_*") for path in Path("/dev/shm").glob(name)} - mapped


def last_line(ended):
    """What the traceback of a rank ends with."""
    assert "Traceback" in ended.err, ended.err
    return ended.err.strip().splitlines()[-1]


def test_ranks_get_a_communicator_on_the_plan(play):
    for ended in play("works", size=3):
        told = ended.json()
        assert told["fine"]
        assert (told["rank"], told["size"]) == (ended.rank, 3)
        assert told["main_thread"] == [True, False]  # as MPI has it: the thread that made the communicator
        for part in ("from RANK and WORLD_SIZE", "hosts: 1", "ranks 0-2", "UCX_TLS=self,sm", "watched", "MPICH"):
            assert part in told["explain"]
        assert ended.err == ""  # valid settings print nothing


def test_a_rank_killed_in_the_middle_is_named_by_the_others_which_end(play):
    ended = play("killed", size=3)
    assert ended[1].status == -signal.SIGKILL
    for rank in (ended[0], ended[2]):
        assert rank.status == 1
        assert re.search(r"RankLostError: group 'test-\w+' lost rank 1 during all_reduce", last_line(rank))
        assert rank.seconds < 10


@pytest.mark.parametrize("word", ["init", "0", "8", "25"])
def test_a_rank_killed_while_mpi_starts_is_named_too(play, word):
    ended = play("killed_in_start", word)
    assert ended[1].status == -signal.SIGKILL
    assert ended[0].status == 1
    assert "RankLostError: group" in last_line(ended[0])
    assert "lost rank 1" in last_line(ended[0])
    # UCX makes a segment and unlinks it a moment later. A rank that is killed in between leaves it, and nobody else
    # ever knew its name.
    for path in mpi_memory():
        if "/ucx_shm_posix_" in path:
            Path(path).unlink(missing_ok=True)


def test_a_daemon_that_is_killed_and_comes_back_does_not_disturb_the_job(tmp_path):
    folder, stop = tmp_path / "d", tmp_path / "stop"
    folder.mkdir()
    with ExitStack() as stack:
        first = stack.enter_context(daemon(folder))
        job = stack.enter_context(ranks(tmp_path, 2, [*SCENE, "runs_until_told", str(stop)], new_group(first.url)))
        eventually(lambda: all('"started"' in job.out(rank) for rank in (0, 1)), 20)
        first.kill()
        time.sleep(1.0)
        assert [process.poll() for process in job.processes] == [None, None]
        port = first.url.rsplit(":", 1)[1]
        second = stack.enter_context(daemon(folder, "--port", port))
        assert second.url == first.url
        time.sleep(2.5)  # longer than a member may be away
        assert [process.poll() for process in job.processes] == [None, None]
        stop.touch()
        for ended in job.wait(30):
            assert ended.status == 0, ended.err
            assert '"fine": true' in ended.out
            assert "unwatched" not in ended.err


def test_a_daemon_that_restarts_while_ranks_gather_only_delays_them(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    with ExitStack() as stack:
        first = stack.enter_context(daemon(folder))
        group = new_group(first.url)
        command = [sys.executable, *SCENE, "works"]
        jobs = [
            stack.enter_context(subprocess.Popen(command, env=rank_environment(0, 2, group), stdout=subprocess.PIPE))
        ]
        with httpx.Client(headers={SECRET_HEADER: group["FABRICD_GROUP_SECRET"]}, trust_env=False) as asker:
            address = f"{first.url}/v1/groups/{group['FABRICD_GROUP']}"
            eventually(lambda: asker.get(address).status_code == 200, 15)
        first.kill()
        time.sleep(0.3)
        stack.enter_context(daemon(folder, "--port", first.url.rsplit(":", 1)[1]))
        jobs.append(stack.enter_context(subprocess.Popen(command, env=rank_environment(1, 2, group))))
        assert [job.wait(30) for job in jobs] == [0, 0]
        assert b'"fine": true' in jobs[0].stdout.read()


def test_a_job_outlives_a_daemon_that_does_not_come_back(tmp_path):
    stop = tmp_path / "stop"
    with (
        daemon(tmp_path) as one,
        ranks(tmp_path, 2, [*SCENE, "runs_until_told", str(stop)], new_group(one.url)) as job,
    ):
        eventually(lambda: all('"started"' in job.out(rank) for rank in (0, 1)), 20)
        one.kill()
        time.sleep(0.5)
        stop.touch()
        assert [ended.status for ended in job.wait(30)] == [0, 0]


def test_eight_groups_of_three_ranks_at_once(tmp_path, url):
    with ExitStack() as stack:
        jobs = [stack.enter_context(ranks(tmp_path, 3, [*SCENE, "works"], new_group(url))) for _ in range(8)]
        for job in jobs:
            assert all(ended.json()["fine"] for ended in job.wait(90))


def test_ranks_under_an_outer_mpiexec_whose_pmi_they_inherit(tmp_path, url):
    group = new_group(url)
    # The outer launcher's ranks are numbered the other way round: a rank that believed PMI_RANK would be the wrong one.
    script = f'export RANK=$((2 - PMI_RANK)) WORLD_SIZE=3; exec "{sys.executable}" -m tests.e2e.rank_scenes works'
    done = subprocess.run(
        [program("mpiexec"), "-n", "3", "bash", "-c", script],
        env={**os.environ, **group}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"fine": true') == 3
    assert done.stdout.count("(from RANK and WORLD_SIZE)") == 3
    assert done.stdout.count("removed variables of an outer process manager: ") == 3


@pytest.mark.parametrize("by_user", [False, True])
def test_under_mpiexec_alone_its_mpi_is_used(tmp_path, by_user):
    env = {**os.environ, "FABRICD_SOCKET": str(tmp_path / "none")}
    first = "from mpi4py import MPI; " if by_user else ""
    code = f"{first}from tests.e2e.rank_scenes import works; works()"
    done = subprocess.run(
        [program("mpiexec"), "-n", "2", sys.executable, "-c", code],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"fine": true') == 2
    assert done.stdout.count("started by the user's code" if by_user else "over the launcher's PMI") == 2


def test_another_jobs_secret_neither_joins_nor_reads_nor_aborts(tmp_path, url):
    stop = tmp_path / "stop"
    group = new_group(url)
    with ranks(tmp_path, 2, [*SCENE, "runs_until_told", str(stop)], group) as job:
        eventually(lambda: all('"started"' in job.out(rank) for rank in (0, 1)), 20)
        thief = {**group, "FABRICD_GROUP_SECRET": secrets.token_hex(16)}
        for environ in (thief, {**thief, "FABRICD_INCARNATION": "7"}):
            done = subprocess.run(
                [sys.executable, *SCENE, "works"],
                env=rank_environment(0, 2, environ), capture_output=True, text=True, timeout=30, check=False,
            )  # fmt: skip
            assert done.returncode == 1
            assert "AccessError" in done.stderr.splitlines()[-1]
            assert group["FABRICD_GROUP_SECRET"] not in done.stdout + done.stderr
            assert thief["FABRICD_GROUP_SECRET"] not in done.stdout + done.stderr
        address = f"{url}/v1/groups/{group['FABRICD_GROUP']}"
        for headers in ({}, {SECRET_HEADER: thief["FABRICD_GROUP_SECRET"]}):
            assert httpx.get(address, headers=headers, trust_env=False).status_code >= 400
            assert httpx.delete(address, headers=headers, trust_env=False).status_code >= 400
        stop.touch()
        for ended in job.wait(30):
            assert '"fine": true' in ended.out, ended.err


def test_a_restarted_job_takes_its_name_over(tmp_path, url):
    group = new_group(url)
    stop = str(tmp_path / "never")
    with ranks(tmp_path, 2, [*SCENE, "runs_until_told", stop], group) as old:
        eventually(lambda: all('"started"' in old.out(rank) for rank in (0, 1)), 20)
        folder = tmp_path / "new"
        folder.mkdir()
        with ranks(folder, 2, [*SCENE, "works"], {**group, "TORCHELASTIC_RESTART_COUNT": "1"}) as new:
            assert all(ended.json()["fine"] for ended in new.wait(30))
        for ended in old.wait(20):
            assert "GroupConflictError" in last_line(ended)
            assert "taken over" in last_line(ended)
    with ranks(tmp_path, 2, [*SCENE, "works"], {**group, "TORCHELASTIC_RESTART_COUNT": "1"}) as again:
        assert all(ended.json()["fine"] for ended in again.wait(30))  # an ended group's name is free


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


def test_a_rank_that_ends_early_is_lost_to_those_who_need_it(play):
    ended = play("ends_early")
    assert ended[0].status == 0
    assert "lost rank 0 during all_reduce: it left the group before" in last_line(ended[1])


def test_programs_that_never_close_end_well_when_all_end(play):
    for ended in play("ends_without_close", size=3):
        assert ended.json()["fine"]
        assert ended.err == ""


@pytest.mark.parametrize("scene", ["fails", "fails_without_with"])
def test_the_others_learn_that_a_rank_failed_but_not_its_secrets(play, scene):
    ended = play(scene)
    assert last_line(ended[0]) == "ValueError: the secret of rank 0"
    assert "GroupAbortedError" in last_line(ended[1])
    assert "rank 0: ValueError" in last_line(ended[1])
    assert "secret" not in ended[1].err
    assert ended[1].seconds < 10


def test_an_operation_that_lasts_too_long_ends_the_group_with_its_name(play):
    ended = play("times_out")
    why = "all_reduce did not end within 0.5 s: rank 0 is in no operation"
    assert last_line(ended[1]).endswith(f"OperationTimeoutError: {why}")
    assert "GroupAbortedError" in last_line(ended[0])
    assert f"rank 1: {why}" in last_line(ended[0])


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
        assert "all_reduce did not end within 1 s: rank 1 (" in last_line(ended[rank])
        assert ") does not answer" in last_line(ended[rank])
    assert "GroupAbortedError" in last_line(ended[1])  # when it goes on


@pytest.mark.parametrize("operation", ["recv", "all_reduce", "work"])
def test_ctrl_c_is_heard_in_an_operation(play, operation):
    ended = play("is_interrupted", operation)
    assert last_line(ended[1]) == "KeyboardInterrupt"
    assert "rank 1: KeyboardInterrupt" in last_line(ended[0])


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
    assert re.search(r"rank 0\b", last_line(ended[1]))
    assert ended[0].seconds < 20


def test_a_communicator_lives_in_a_thread(play):
    for ended in play("lives_in_a_thread"):
        assert ended.json()["fine"], ended.err


def test_workers_that_are_forked_between_operations_disturb_nobody(play):
    for ended in play("forks_while_others_wait"):
        assert ended.json() == {"fine": True, "codes": [0, 0, 0]}, ended.err


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
    assert "GroupAbortedError" in last_line(ended[1])
    assert "rank 0: the loss is NaN" in last_line(ended[1])


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
    assert "lost rank 0" in last_line(ended[1])
    assert ended[1].seconds < 10


def test_programs_that_a_rank_starts_are_no_ranks(play):
    for ended in play("has_children"):
        assert ended.json()["child"] == "1 []"


def test_messages_of_a_wrong_length(play):
    ended = play("message_too_long")
    assert "EngineError: a message is longer than the array that receives it" in last_line(ended[1])
    ended = play("message_too_short")
    assert "rank 0 sent 80 bytes, and the array that receives them has 800" in ended[1].json()["said"]
    assert ended[0].status == 0


def test_messages_from_threads_beside_collectives(play):
    for ended in play("threads"):
        assert ended.json()["fine"], ended.err


def test_mpi_that_other_code_started_is_told_with_the_way_out(play):
    for ended in play("after_mpi"):
        assert "CommunicatorError: MPI is already initialised in this process" in last_line(ended)
        assert "mpi4py.rc.initialize = False" in ended.err


def test_after_close_nothing_is_open(play):
    for ended in play("leaves_nothing_open"):
        assert ended.json() == {"sockets": [], "threads": []}


def open_files(pid):
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def test_many_groups_leave_nothing_in_the_daemon(play, running):
    play("works")
    pid = running.process.pid
    before = open_files(pid)
    for scene in ("works", "killed", "works"):
        play(scene)
    eventually(lambda: open_files(pid) <= before, 10, told=[running])


def test_the_benchmark_runs_and_checks(url):
    sizes = ["-b", "1K", "-e", "256K", "-f", "16"]
    for collective in ("all_reduce", "reduce_scatter", "sendrecv"):
        done = subprocess.run(
            [program("fabricctl"), "bench", "-n", "2", "--collective", collective, *sizes, "--iters", "3", "--json"],
            env={**os.environ, "FABRICD_URL": url}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert '"wrong":0,"average' in done.stdout
        assert done.stdout.count('"count":') == 3
