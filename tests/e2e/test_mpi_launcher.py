"""``fabricctl run``: ranks start, are looked after, and leave nothing. The ranks here need no MPI."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from demo.daemons import program
from fabricd.locations import find_socket
from tests.support.daemon import eventually

FABRICCTL = program("fabricctl")


@pytest.fixture
def run(url):
    """Runs a Python program as ranks, to its end."""

    def call(code, *options, n=2, seconds=30, **environ):
        command = [FABRICCTL, "run", "-n", str(n), *options, "--", sys.executable, "-c", code]
        env = {**os.environ, "FABRICD_URL": url, **environ}
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)

    return call


@pytest.fixture
def started(url):
    """Starts a Python program as ranks; whatever happens, nothing outlives the test."""
    jobs = []

    def start(code, *options, n=2):
        command = [FABRICCTL, "run", "-n", str(n), *options, "--", sys.executable, "-c", code]
        env = {**os.environ, "FABRICD_URL": url}
        jobs.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
        job.communicate()


@pytest.fixture
def no_daemon_here():
    """Of a machine whose own daemon the job would take."""
    if find_socket() is not None:
        pytest.skip("a daemon runs on this machine")


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def pids_of(job, count):
    return [int(job.stdout.readline()) for _ in range(count)]


def test_ranks_find_what_torchrun_would_tell_them(run):
    done = run(
        "import os, sys, json; sys.stdout.write(json.dumps({k: os.environ.get(k) for k in ('RANK', 'WORLD_SIZE', "
        "'LOCAL_RANK', "
        "'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'FABRICD_GROUP', 'FABRICD_URL', 'PMI_FD', 'PMI_RANK', "
        "'FABRICD_INCARNATION', 'FABRICD_GROUP_SECRET')}) + '\\n')",  # at once, or ranks' lines mix
        "--group", "mine", n=3, PMI_FD="5", PMI_RANK="0", FABRICD_GROUP_SECRET="outer",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda rank: rank["RANK"])
    assert [rank["RANK"] for rank in ranks] == [rank["LOCAL_RANK"] for rank in ranks] == ["0", "1", "2"]
    for rank in ranks:
        assert rank["WORLD_SIZE"] == rank["LOCAL_WORLD_SIZE"] == "3"
        assert rank["MASTER_ADDR"] == "127.0.0.1"
        assert rank["MASTER_PORT"] == ranks[0]["MASTER_PORT"]
        assert rank["FABRICD_GROUP"] == "mine"
        assert rank["FABRICD_INCARNATION"] == "0"
        assert rank["PMI_FD"] is rank["PMI_RANK"] is rank["FABRICD_GROUP_SECRET"] is None


def test_the_secret_is_new_private_and_gone_afterwards(run):
    code = (
        "import os; p = os.environ['FABRICD_GROUP_SECRET_FILE']; "
        "print(p, oct(os.stat(p).st_mode & 0o777), oct(os.stat(os.path.dirname(p)).st_mode & 0o777), open(p).read())"
    )
    secrets = set()
    for _ in range(2):
        done = run(code, n=1)
        path, mode, folder_mode, secret = done.stdout.split()
        assert (mode, folder_mode) == ("0o600", "0o700")
        assert len(secret) == 64
        secrets.add(secret)
        assert not Path(path).exists()
        assert secret not in done.stderr
    assert len(secrets) == 2


def test_the_status_is_that_of_the_first_rank_that_failed(run):
    code = "import os, sys, time; r = int(os.environ['RANK']); time.sleep(r * 0.3); sys.exit([0, 7, 9][r])"
    done = run(code, n=3)
    assert done.returncode == 7
    assert "rank 1 ended with status 7" in done.stderr
    done = run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", n=1)
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0 ended with signal SIGKILL" in done.stderr


def test_the_others_are_ended_after_the_grace(run):
    started = time.monotonic()
    done = run("import os, sys, time; os.environ['RANK'] == '0' and sys.exit(3); time.sleep(60)", "--grace", "0.3")
    assert done.returncode == 3
    assert 0.3 < time.monotonic() - started < 10


def test_a_rank_that_ignores_sigterm_is_killed(run):
    code = (
        "import os, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(0.3); "
        "os.environ['RANK'] == '0' and sys.exit(3); time.sleep(60)"
    )
    assert run(code, "--grace", "0").returncode == 3


def test_a_job_that_lasts_too_long_is_ended(run):
    done = run("import time; time.sleep(60)", "--timeout", "0.5")
    assert done.returncode == 124
    assert "did not end within 0.5 s" in done.stderr


def test_output_is_prefixed_on_request(run):
    code = (
        "import os, sys; r = os.environ['RANK']; print('out', r); print('err', r, file=sys.stderr); "
        "sys.stdout.write('x' * 200_000 + r); sys.stdout.flush()"
    )
    done = run(code, "--prefix")
    lines = done.stdout.splitlines()
    assert {"[0] out 0", "[1] out 1"} <= set(lines)
    assert {"[0] err 0", "[1] err 1"} <= set(done.stderr.splitlines())
    for rank in "01":
        mine = [line for line in lines if line.startswith((f"[{rank}] x", f"[{rank}+] x"))]
        assert sum(line.count("x") for line in mine) == 200_000
        assert [line.startswith(f"[{rank}+]") for line in mine] == [number > 0 for number in range(len(mine))]


@pytest.mark.parametrize("to", ["| head -1", ">/dev/full"])
def test_output_that_nobody_takes_ends_the_job(url, to):
    command = f"{FABRICCTL} run -n 2 --prefix -- sh -c 'while echo line; do :; done' {to}; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "FABRICD_URL": url}, capture_output=True, text=True, timeout=20,
        check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "141"
    assert done.stderr.startswith("fabricctl: cannot write the ranks' output: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("options", "number", "status"), [(["--timeout", "1"], None, 124), ([], signal.SIGTERM, 143)])
def test_a_reader_that_stalls_does_not_hold_up_the_end(url, options, number, status):
    command = [FABRICCTL, "run", "-n", "2", "--prefix", *options, "--", "sh", "-c", "while echo line; do :; done"]
    environment = {**os.environ, "FABRICD_URL": url}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as job:
        capacity = fcntl.fcntl(job.stdout, fcntl.F_SETPIPE_SZ, 4096)
        eventually(lambda: unread(job.stdout) > capacity - 100)
        if number is not None:
            job.send_signal(number)
        assert job.wait(10) == status


def unread(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_what_a_rank_has_left_behind_does_not_hold_the_job(url):
    command = [FABRICCTL, "run", "-n", "2", "--prefix", "--", "sh", "-c", "sleep 15 & printf $!"]
    done = subprocess.run(
        command, env={**os.environ, "FABRICD_URL": url}, capture_output=True, text=True, timeout=10, check=True
    )
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[0] for line in lines] == ["[0]", "[1]"]
    for line in lines:
        os.kill(int(line.split()[1]), signal.SIGKILL)  # it lives: who succeeds may leave something running


def test_closed_standard_streams_are_no_obstacle(url):
    command = f"{FABRICCTL} run -n 2 --prefix -- sh -c 'echo from a rank >&2' <&- >&-"
    done = subprocess.run(
        ["bash", "-c", command], env={**os.environ, "FABRICD_URL": url}, capture_output=True, text=True, timeout=20,
        check=True,
    )  # fmt: skip
    assert sorted(done.stderr.splitlines()) == ["[0] from a rank", "[1] from a rank"]


def test_no_place_for_temporary_files_is_an_error_of_one_line(url):
    hook = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/nonexistent']"
    program = f"{hook}; from fabric_client.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "-n", "1", "--", "true"], env={**os.environ, "FABRICD_URL": url},
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith("fabricctl: [Errno 2] No usable temporary directory")
    assert len(done.stderr.splitlines()) == 1


def test_what_cannot_be_started_is_a_usage_error(url):
    env = {**os.environ, "FABRICD_URL": url}
    for arguments, said in [
        (["run", "-n", "2", "--", "/no/such/program"], "cannot start '/no/such/program'"),
        (["run", "-n", "2"], "no command to run"),
        (["run", "-n", "0", "--", "true"], "'-n'"),
        (["run", "-n", "2", "--group", "a b", "--", "true"], "a group cannot be called 'a b' (from --group)"),
    ]:
        done = subprocess.run([FABRICCTL, *arguments], env=env, capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 2, done
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_daemon_that_was_named_and_is_not_there_is_an_error(url):
    env = {**os.environ, "FABRICD_URL": "http://127.0.0.1:9"}
    done = subprocess.run(
        [FABRICCTL, "run", "-n", "1", "--", "true"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "FABRICD_URL" in done.stderr


SLEEPER = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(["sleep", "60"])
os.write(1, f"{os.getpid()}\\n{child.pid}\\n".encode())
time.sleep(60)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_leaves_no_process(started, number, status):
    job = started(SLEEPER)
    pids = pids_of(job, 4)
    job.send_signal(number)
    _, err = job.communicate(timeout=15)
    assert job.returncode == status, err
    eventually(lambda: not any(map(alive, pids)))


def test_a_killed_launcher_leaves_no_rank(started):
    job = started("import os, time; os.write(1, f'{os.getpid()}\\n'.encode()); time.sleep(60)")
    pids = pids_of(job, 2)
    job.kill()
    job.wait(10)
    eventually(lambda: not any(map(alive, pids)))


def test_what_nohup_ignores_stays_ignored(url):
    code = "import os, time; os.write(1, f'{os.getpid()}\\n'.encode()); time.sleep(2)"
    command = [FABRICCTL, "run", "-n", "1", "--", sys.executable, "-c", code]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", *command],
        env={**os.environ, "FABRICD_URL": url}, stdout=subprocess.PIPE, text=True,
    ) as job:  # fmt: skip
        pids_of(job, 1)
        job.send_signal(signal.SIGHUP)
        job.send_signal(signal.SIGINT)
        assert job.wait(15) == 0


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4])
@pytest.mark.usefixtures("no_daemon_here")
def test_a_launcher_ended_while_its_daemon_starts_leaves_nothing(tmp_path, milliseconds):
    # Some of these find it between the folder and the end of a fork.
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [FABRICCTL, "run", "-n", "1", "--", "sleep", "60"]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as job:
        eventually(lambda: list(tmp_path.glob("fabricd-*")))
        time.sleep(milliseconds / 1000)
        job.terminate()
        assert job.wait(15) == 143
    assert list(tmp_path.iterdir()) == []


def test_other_signals_are_passed_on(started):
    code = (
        "import os, signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); "
        "os.write(1, f'{os.getpid()}\\n'.encode()); signal.pause()"
    )
    job = started(code)
    pids_of(job, 2)
    job.send_signal(signal.SIGUSR1)
    job.communicate(timeout=10)
    assert job.returncode == 0


@pytest.mark.parametrize("name", ["FABRICD_SOCKET", "FABRICD_URL"])
def test_a_daemon_that_is_named_and_not_there_is_an_error_and_none_is_started(tmp_path, name):
    where = str(tmp_path / "none.sock")
    env = {**os.environ, name: where if name == "FABRICD_SOCKET" else f"unix:{where}"}
    command = [FABRICCTL, "run", "-n", "1", "--", "true"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 3
    assert f"unix:{where}: No such file or directory" in done.stderr
    assert f"The address came from {name}" in done.stderr


@pytest.mark.usefixtures("no_daemon_here")
def test_without_a_daemon_one_is_started_for_the_job_and_said_so():
    code = "import os; print(os.environ['FABRICD_URL'])"
    command = [FABRICCTL, "run", "-n", "1", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 0, done.stderr
    assert "no daemon runs here; started one for this job (pid " in done.stderr
    pid = int(done.stderr.split("(pid ")[1].split(")")[0])
    assert not alive(pid)
    assert done.stdout.startswith("unix:/")
    assert not Path(done.stdout.strip().removeprefix("unix:")).parent.exists()
