"""Three of the communicators of ``python -m tests.faults``, with other faults than the suite has elsewhere; and what
MPI would not survive.
"""

import json
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.rounds import Fault, Moment, Round, play
from tests.faults.world import DATA, make_world
from tests.support.daemon import eventually

#: The kernel asks for a neighbour three times, a second apart, and gives up a second later. Source: arp(7).
_LAST_QUESTION_SECONDS = 2.3
#: With "8" a host does not answer such questions. Source: Linux, ip-sysctl.rst, arp_ignore.
_ANSWERS = Path("/proc/sys/net/ipv4/conf", DATA, "arp_ignore")

pytestmark = [pytest.mark.root, pytest.mark.mpi]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    with make_world(tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "moment", "hosts", "victim"),
    [
        (Fault.KILL, Moment.RUNNING, (0, 1, 1), 1),
        (Fault.LINK, Moment.RUNNING, (0, 1), 0),
        (Fault.DAEMON_RESTARTED, Moment.JOINING, (0, 0, 1), 0),
    ],
    ids=str,
)
def test_every_rank_ends_in_time_and_nothing_is_left(world, fault, moment, hosts, victim):
    number = list(Fault).index(fault)
    report = play(world, Round(number=number, fault=fault, moment=moment, hosts=hosts, victim=victim, delay=0.2))
    assert report.wrong == []


@contextmanager
def jobs(world, name, *words):
    """Start two ranks on two hosts, in a scene."""
    variables = {"WORLD_SIZE": "2", "FABRICD_GROUP": name}
    scene = [sys.executable, "-m", "tests.e2e.rank_scenes", *words]
    started = [world.start_rank(rank, f"{name}-{rank}", {**variables, "RANK": str(rank)}, scene) for rank in (0, 1)]
    try:
        yield started
    finally:
        for job in started:
            job.kill()
            job.wait()
    assert world.left() == []


def test_a_rank_that_goes_on_sending_to_a_killed_one_gets_an_error(world):
    """MPICH crashes when it starts a message to a peer whose connection it has seen end."""
    with jobs(world, "sends", "killed_under_sends") as started:
        assert [job.wait(40) for job in started] == [1, -signal.SIGKILL]
        assert "RankLostError: group 'sends' lost rank 1" in world.said("sends-0")[1]
    eventually(lambda: not any(unended(host) for host in world.hosts), 20)


def test_messages_of_a_rank_that_has_ended_arrive(world):
    """The end of its connection is kept from MPI, and must not take the last of them with it."""
    with jobs(world, "last", "sends_and_ends") as started:
        assert [job.wait(40) for job in started] == [0, 0], world.said("last-1")[1]
        assert json.loads(world.said("last-1")[0])["received"] == list(range(100))


def unended(host):
    """Connections of ranks for which the kernel of a host still waits to hear that they have ended."""
    address = host.link(DATA).address
    return host.run(["ss", "-Htan", "state", "fin-wait-1", "src", address]).stdout


def test_a_start_of_mpi_that_finds_no_network_is_an_error_that_names_the_link(world, tmp_path):
    """MPICH calls exit in the thread that starts it."""
    go = tmp_path / "go"
    with jobs(world, "start", "starts_when_told", str(go)) as started:
        eventually(lambda: all("started" in world.said(f"start-{rank}")[0] for rank in (0, 1)), 30)
        link = world.hosts[1].link(DATA)
        link.pull()
        try:
            go.touch()
            assert [job.wait(40) for job in started] == [1, 1]
        finally:
            link.plug()
            world.settle()
        said = [world.said(f"start-{rank}") for rank in (0, 1)]
        assert any("Abort(" in err for _, err in said)
        for out, err in said:
            assert "finally_ran" in out
            last = err.strip().splitlines()[-1]
            assert "MPI did not start; its reason is on standard error: h1: data (planned) " in last


def test_a_network_that_has_just_come_back_is_waited_for_when_mpi_starts(world, tmp_path):
    """The kernel has asked for a neighbour while there was none, and gives up whoever waits for it."""
    go, (asks, answers) = tmp_path / "go", world.hosts
    address, hardware = asks.link(DATA).address, Path("/sys/class/net", DATA, "address")
    with jobs(world, "back", "starts_when_told", str(go)) as started:
        eventually(lambda: all("started" in world.said(f"back-{rank}")[0] for rank in (0, 1)), 30)
        answers.run(
            ["ip", "neigh", "replace", address, "lladdr", asks.run(["cat", str(hardware)]).stdout.strip(), "dev", DATA]
        )
        answers.namespaces.inside(lambda: _ANSWERS.write_text("8"))
        try:
            asks.run(["ip", "neigh", "flush", "dev", DATA])
            go.touch()
            eventually(lambda: "INCOMPLETE" in asks.run(["ip", "neigh", "show", "dev", DATA]).stdout, 20)
            time.sleep(_LAST_QUESTION_SECONDS)
        finally:
            answers.namespaces.inside(lambda: _ANSWERS.write_text("0"))
        assert [job.wait(40) for job in started] == [0, 0], world.said("back-0")[1]
