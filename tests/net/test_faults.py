"""Three of the communicators of ``python -m tests.faults``, with other faults than the suite has elsewhere."""

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
