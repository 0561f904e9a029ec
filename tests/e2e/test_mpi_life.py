"""Groups of real MPI ranks through their lives: they work, and whatever happens to them, none hangs and none leaks."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest

from demo.daemons import program
from fabricd.model.wire import SECRET_HEADER
from tests.support.daemon import daemon, eventually
from tests.support.leaks import mpi_memory
from tests.support.ranks import new_group, play_scene, rank_environment, ranks

pytestmark = [pytest.mark.mpi, pytest.mark.usefixtures("no_memory_left")]
SCENE = ["-m", "tests.e2e.rank_scenes"]


@pytest.fixture
def play(tmp_path, url):
    return partial(play_scene, tmp_path, url, "tests.e2e.rank_scenes")


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
        assert re.search(r"RankLostError: group 'test-\w+' lost rank 1 during all_reduce", rank.last_line)
        assert rank.seconds < 10


@pytest.mark.parametrize("word", ["init", "0", "8", "25"])
def test_a_rank_killed_while_mpi_starts_is_named_too(play, word):
    ended = play("killed_in_start", word)
    assert ended[1].status == -signal.SIGKILL
    assert ended[0].status == 1
    assert "RankLostError: group" in ended[0].last_line
    assert "lost rank 1" in ended[0].last_line
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
            assert "GroupConflictError" in ended.last_line
            assert "taken over" in ended.last_line
    with ranks(tmp_path, 2, [*SCENE, "works"], {**group, "TORCHELASTIC_RESTART_COUNT": "1"}) as again:
        assert all(ended.json()["fine"] for ended in again.wait(30))  # an ended group's name is free


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
