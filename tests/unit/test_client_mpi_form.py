"""Clients of several versions in one group: refused before MPI connects them."""

import pytest

from fabric_client.engine.mpi_form import check_forms, with_form
from fabric_client.pmi import check_keys
from fabricd.errors import EngineError
from fabricd.model.plan import GroupPlan, RankSlice

HOSTS = (0, 1, 1, 0, 2)
PLAN = GroupPlan(
    engine="mpi",
    size=len(HOSTS),
    ranks=tuple(RankSlice(rank=rank, node=f"n{host}", host_index=host) for rank, host in enumerate(HOSTS)),
)


def of_all(*silent):
    """Return the keys of all ranks; some say nothing, as those of earlier versions do."""
    keys = {}
    for rank in range(len(HOSTS)):
        own = {f"card-{rank}": "x"}
        keys.update(own if rank in silent else with_form(own, rank, PLAN))
    return keys


def test_hosts_whose_clients_do_the_same_are_let_in():
    keys = of_all()
    check_forms(check_keys(keys), PLAN)
    assert len(keys) == len(HOSTS) + 3  # one more of each host
    assert keys["card-3"] == "x"


def test_those_that_do_otherwise_or_say_nothing_are_named():
    keys = of_all(1) | dict.fromkeys(with_form({}, 4, PLAN), "0")
    with pytest.raises(EngineError, match="rank 1,4 runs a version of this client whose messages are others"):
        check_forms(keys, PLAN)
