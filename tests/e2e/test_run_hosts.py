"""``fabricctl run`` and ``fabricctl meet`` for jobs of several hosts, here two launchers on one. No MPI is needed."""

import json
import os
import secrets
import subprocess
import sys
import time

import pytest

from demo.daemons import program
from fabric_client.cli.meeting import meet

SAY = (
    "import json, os, sys; sys.stdout.write(json.dumps({k: os.environ.get(k) for k in ('RANK', 'WORLD_SIZE', "
    "'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR', 'MASTER_PORT', 'GLOO_SOCKET_IFNAME')}) + '\\n')"
)


@pytest.fixture
def hosts(url):
    """Starts ``fabricctl`` as on several hosts, each with arguments of its own; returns status, output and errors."""
    jobs = []
    secret = secrets.token_hex(16)

    def call(*arguments, **environ):
        env = {**os.environ, "FABRICD_URL": url, "FABRICD_GROUP_SECRET": secret, **environ}
        env = {name: value for name, value in env.items() if value is not None}
        for words in arguments:
            command = [program("fabricctl"), *words]
            jobs.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        ended = [job.communicate(timeout=40) for job in jobs]
        return [(job.returncode, out, err) for job, (out, err) in zip(jobs, ended, strict=True)]

    yield call
    for job in jobs:
        job.kill()
        job.communicate()


def run(host, ranks, code, *options):
    where = ["--nnodes", "2", "--node-rank", str(host), "--group", "both"]
    return ["run", *where, "-n", str(ranks), *options, "--", sys.executable, "-c", code]


def test_ranks_are_counted_over_the_hosts_and_find_one_place_to_meet(hosts):
    ended = hosts(run(0, 2, SAY), run(1, 1, SAY))
    assert [status for status, _, _ in ended] == [0, 0], ended
    told = sorted((json.loads(line) for _, out, _ in ended for line in out.splitlines()), key=lambda one: one["RANK"])
    assert [one["RANK"] for one in told] == ["0", "1", "2"]
    assert [one["LOCAL_RANK"] for one in told] == ["0", "1", "0"]
    assert [one["LOCAL_WORLD_SIZE"] for one in told] == ["2", "2", "1"]
    assert [one["GROUP_RANK"] for one in told] == ["0", "0", "1"]
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["GLOO_SOCKET_IFNAME"]) for one in told} == {
        ("3", "127.0.0.1", "lo")
    }
    assert len({one["MASTER_PORT"] for one in told}) == 1


def test_what_fails_on_one_host_ends_the_others(hosts):
    begun = time.monotonic()
    first, second = hosts(run(0, 1, "raise SystemExit(3)"), run(1, 2, "import time; time.sleep(60)"))
    assert first[0] == 3
    assert second[0] == 128 + 15
    assert "its ranks on host 0 ended with status 3" in second[2]
    assert time.monotonic() - begun < 30


def test_a_launcher_that_is_killed_ends_the_others(hosts):
    kill_parent = "import os, signal, time; time.sleep(1); os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    first, second = hosts(run(0, 1, kill_parent), run(1, 1, "import time; time.sleep(60)"))
    assert first[0] == -9
    assert second[0] == 128 + 15
    assert "lost rank 0" in second[2]


def test_the_users_own_settings_stay(hosts):
    ended = hosts(run(0, 1, SAY), run(1, 1, SAY), GLOO_SOCKET_IFNAME="mine")
    assert [json.loads(out)["GLOO_SOCKET_IFNAME"] for _, out, _ in ended] == ["mine", "mine"]


def test_meet_prints_lines_for_a_shell(hosts):
    words = ["meet", "--nnodes", "2", "--group", "met", "--node-rank"]
    ended = hosts([*words, "0"], [*words, "1", "--format", "json"])
    assert [status for status, _, _ in ended] == [0, 0], ended
    shown = subprocess.run(
        ["sh", "-c", f"{ended[0][1]}\necho $MASTER_ADDR $MASTER_PORT $GLOO_SOCKET_IFNAME"],
        capture_output=True,
        text=True,
        check=True,
    )
    address, port, interface = shown.stdout.split()
    told = {one["name"]: one["value"] for one in json.loads(ended[1][1])["settings"]}
    assert told == {"MASTER_ADDR": address, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": interface}
    assert (address, interface) == ("127.0.0.1", "lo")


def test_a_single_host_meets_itself(url):
    environ = {"FABRICD_URL": url, "FABRICD_GROUP": "single", "FABRICD_GROUP_SECRET": secrets.token_hex(16)}
    meeting = meet(1, 0, 3, environ, timeout=10)
    meeting.leave()
    assert (meeting.place.first_rank, meeting.place.world_size) == (0, 3)
    assert meeting.place.master_address == "127.0.0.1"
    assert [(one.name, one.value) for one in meeting.settings] == [("GLOO_SOCKET_IFNAME", "lo")]


@pytest.mark.parametrize(
    ("options", "environ", "words"),
    [
        (["--nnodes", "2", "--node-rank", "2", "--group", "x"], {}, "host 2 of 2 cannot be"),
        (["--nnodes", "2"], {}, "nothing names the job of 2 hosts"),
        (["--nnodes", "2", "--group", "x"], {"FABRICD_URL": None}, "nothing names the daemon"),
        (["--nnodes", "2", "--group", "x"], {"FABRICD_GROUP_SECRET": None}, "secret"),
        (["--nnodes", "2", "--group", "x", "--meet-timeout", "0.3"], {}, "rank 1"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_to_do(hosts, options, environ, words):
    ((status, _, err),) = hosts(["run", *options, "-n", "1", "--", "true"], **environ)
    assert status in (1, 2)
    assert words in err
    assert "Traceback" not in err
