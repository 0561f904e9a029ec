"""Clients of several versions in one group: refused before MPI connects them."""

import pytest

from fabric_client.engine.mpi_form import check_forms, with_form
from fabric_client.pmi import check_keys
from fabricd.errors import EngineError


def test_ranks_whose_clients_do_the_same_are_let_in():
    keys = {"card-0": "x", **with_form({"card-1": "y"}, 1), **with_form({}, 0)}
    check_forms(check_keys(keys), 2)
    assert keys.items() >= {"card-0": "x", "card-1": "y"}.items()


def test_those_that_do_otherwise_or_say_nothing_are_named():
    keys = {**with_form({}, 0), **dict.fromkeys(with_form({}, 2), "0")}
    with pytest.raises(EngineError, match="rank 1-3 runs a version of this client whose messages are others"):
        check_forms(keys, 4)
