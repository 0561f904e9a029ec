"""Which changes of the map make a plan doubtful."""

import pytest

from fabric_client.staleness import concerns
from fabricd.model.event import Event, EventKind
from fabricd.model.plan import GroupPlan, RankSlice


def plan(hosts=2):
    ranks = [
        RankSlice(rank=rank, node=f"h{rank % hosts}", host_index=rank % hosts, devices=("eth1", "mlx5_0:1"))
        for rank in range(4)
    ]
    return GroupPlan(engine="mpi", size=4, ranks=tuple(ranks))


@pytest.mark.parametrize(
    ("kind", "subject", "told"),
    [
        (EventKind.LINK_DOWN, "eth1", "h1: eth1 (planned) link down: up -> down"),
        (EventKind.LINK_DOWN, "mlx5_0:1", "h1: mlx5_0:1 (planned) link down: up -> down"),
        (EventKind.DEVICE_REMOVED, "mlx5_0", "h1: mlx5_0 (planned) device removed: up -> down"),
        (EventKind.LINK_UP, "eth2", "h1: eth2 (not planned) link up: up -> down"),
        (EventKind.LINK_DOWN, "eth2", ""),
        (EventKind.LINK_DOWN, "mlx5_0:2", ""),
        (EventKind.NODE_CHANGED, "", ""),
        (EventKind.NETWORK_CHANGED, "10.0.0.0/24", ""),
    ],
)
def test_planned_devices_that_fail_and_others_that_come(kind, subject, told):
    event = Event(kind=kind, node="h1", subject=subject, before="up", after="down")
    assert concerns(event, plan()) == told


def test_other_nodes_and_ranks_of_one_host_do_not_matter():
    down = Event(kind=EventKind.LINK_DOWN, node="h1", subject="eth1")
    assert concerns(down, plan()) == "h1: eth1 (planned) link down"
    assert concerns(Event(kind=EventKind.LINK_UP, node="h7", subject="eth1"), plan()) == ""
    assert concerns(Event(kind=EventKind.LINK_DOWN, node="h0", subject="eth1"), plan(hosts=1)) == ""
