"""Whether ranks call the same: what is told of a call, how it is compared, and who asks for it."""

import numpy as np
import pytest

from fabric_client import joining
from fabric_client.calls import COUNT_MAX, Call, differing, mark_of
from fabric_client.checks import call_of
from fabric_client.environment import asks_for_checks, identify
from fabric_client.joining import join_group
from fabric_client.ops import ReduceOp
from fabric_client.rendezvous import Rendezvous
from fabricd.errors import InputError, UnavailableError
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import JoinAnswer


def test_a_call_is_what_must_be_the_same_on_all_ranks():
    array, block = np.ones((2, 3), "f4"), np.ones(3, "f4")
    told = {
        "all_reduce": (array, array, ReduceOp.SUM),
        "reduce": (array, None, ReduceOp.MAX, 1),
        "scatter": (None, block, np.int64(1)),
        "all_gather_v": (array, array, [6, 6]),
        "barrier": (),
    }
    assert [str(call_of(name, arguments)) for name, arguments in told.items()] == [
        "all_reduce of float32 of shape (2, 3), sum",
        "reduce of float32 of shape (2, 3), max, root 1",
        "scatter of float32 of shape (3,), root 1",
        "all_gather_v of float32 of shape (3,) a row",
        "barrier",
    ]


def test_marks_differ_where_calls_do_and_leave_room_for_a_count():
    calls = [Call("a"), Call("b"), Call("a", np.dtype("f4"), (2, 3)), Call("a", np.dtype("f4"), (3, 2))]
    calls += [Call("a", np.dtype(">f4"), (2, 3)), Call("a", np.dtype("f4"), (2, 3), ", root 1")]
    marks = [mark_of(call) for call in calls]
    assert len(set(marks)) == len(marks)
    assert all(0 <= mark < 2**63 and not mark & COUNT_MAX for mark in marks)
    assert mark_of(Call("a", np.dtype("l"), (2, 1))) == mark_of(Call("a", np.dtype("q"), (1, 2)))


def test_the_few_are_named_first_and_a_thousand_different_calls_stay_readable():
    told = [Call("all_reduce").told()] * 7
    told[5] = Call("bärrier").told()
    error = differing("all_reduce", told)
    assert "calls differ: rank 5: b\\xe4rrier; rank 0-4,6: all_reduce" in error.message
    assert error.details["calls"] == {"all_reduce": [0, 1, 2, 3, 4, 6], "b\\xe4rrier": [5]}
    many = differing(
        "x", [b"y" * 10_000 + str(rank).encode() for rank in range(3)] + [str(r).encode() for r in range(9)]
    )
    assert len(many.message) < 1500
    assert many.message.endswith("; and 6 others")


def test_an_array_of_no_rows_that_has_another_dtype_is_told_with_what_makes_one():
    some, none = Call("gather_v", np.dtype("i8"), (3,), " a row"), Call("gather_v", np.dtype("f8"), (), " a row", True)
    error = differing("gather_v", [some.told(), none.told()])
    assert "rank 1: gather_v of float64 of shape () a row (it has none)" in error.message
    assert "np.empty((0, ...), dtype)" in error.hint
    assert "np.empty" not in differing("gather_v", [some.told(), b"barrier"]).hint
    assert mark_of(some) == mark_of(some._replace(empty=True))
    assert Call("x" * 1000, empty=True).told().endswith(b"x (it has none)")


@pytest.mark.parametrize(
    ("wanted", "environ", "answer"),
    [(None, "", False), (None, "0", False), (None, "1", True), (True, "0", True), (False, "1", False)],
)
def test_the_program_decides_and_else_the_environment(wanted, environ, answer):
    assert asks_for_checks(wanted, {"FABRICD_CHECK_CALLS": environ}) is answer


def test_an_environment_that_says_neither_is_refused():
    with pytest.raises(InputError, match="FABRICD_CHECK_CALLS='yes' is neither yes nor no"):
        asks_for_checks(None, {"FABRICD_CHECK_CALLS": "yes"})


def test_a_daemon_that_does_not_pass_it_on_is_told(monkeypatch):
    plan = GroupPlan(engine="mpi", size=1, ranks=())
    answer = JoinAnswer(group="g", incarnation=0, rank=0, size=1, kvsname="0" * 32, plan=plan)
    monkeypatch.setattr(Rendezvous, "join", lambda *_, **__: (answer, None))
    monkeypatch.setattr(joining, "local_view", lambda _: joining.LocalView())
    identity = identify("g", 0, 1, environ={})
    with pytest.raises(UnavailableError, match="check_calls: the group's daemon is of an earlier version"):
        join_group(identity, "mpi", url="http://127.0.0.1:9", secret=None, timeout=1, environ={}, check_calls=True)
