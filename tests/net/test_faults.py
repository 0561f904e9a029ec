"""Three of the communicators of ``python -m tests.faults``, with other faults than the suite has elsewhere; and what
MPI would not survive.
"""

import signal
import sys

import pytest

from tests.faults.rounds import Fault, Moment, Round, play
from tests.faults.world import make_world

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


def test_a_rank_that_goes_on_sending_to_a_killed_one_gets_an_error(world):
    """MPICH crashes when it starts a message to a peer whose connection it has seen end."""
    variables = {"WORLD_SIZE": "2", "FABRICD_GROUP": "sends"}
    scene = [sys.executable, "-m", "tests.e2e.rank_scenes", "killed_under_sends"]
    jobs = [world.start_rank(rank, f"sends-{rank}", {**variables, "RANK": str(rank)}, scene) for rank in (0, 1)]
    try:
        assert [job.wait(40) for job in jobs] == [1, -signal.SIGKILL]
        assert "RankLostError: group 'sends' lost rank 1" in world.said("sends-0")[1]
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    assert world.left() == []
