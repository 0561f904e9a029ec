"""What PyTorch's and JAX's groups make of a plan, and of what other ranks say."""

import os
from types import SimpleNamespace

import pytest

from fabric_client import create_communicator, jax, torch
from fabric_client.endpoints import checked_endpoint
from fabric_client.framework import Current, FrameworkGroup
from fabricd.errors import CommunicatorError, EngineError, GroupAbortedError, InputError, RankLostError
from fabricd.localview import LocalView, ViewInterface
from fabricd.model.plan import GroupPlan, RankSlice, Setting

VIEW = LocalView(hostname="a", pid=1, interfaces=(ViewInterface(name="fast", mac="", up=True),))


class Told:
    """Stands for the group's daemon: says what became of the group, and keeps what it is told."""

    def __init__(self, failure=None):
        self.fate = failure
        self.heard = []
        self.watch = SimpleNamespace(alert=failure is not None)

    def failure(self, during):
        return self.fate

    def give_up(self, what, error):
        self.heard.append((what, error))

    def leave(self):
        self.heard.append("left")


def group(rank=0, *, parts=None, order=(), planned_order=False, told=None, engine="gloo"):
    parts = parts or [RankSlice(rank=0, node="a", host_index=0, address="10.1.0.1")]
    plan = GroupPlan(engine=engine, size=len(parts), ranks=tuple(parts), order=order)
    joined = SimpleNamespace(
        answer=SimpleNamespace(rank=rank, size=len(parts), plan=plan),
        part=parts[rank],
        view=VIEW,
        membership=told or Told(),
        identity=SimpleNamespace(group="g", source="test"),
        rendezvous=SimpleNamespace(fence=lambda number, keys, timeout: dict(keys)),
    )
    return FrameworkGroup(joined, "PyTorch by gloo", planned_order=planned_order, close_seconds=1.0)


def slices(*nodes, address=""):
    return [RankSlice(rank=rank, node=node, host_index=0, address=address) for rank, node in enumerate(nodes)]


@pytest.mark.parametrize(
    "told", ["", "10.1.0.1", "10.1.0.1 0", "10.1.0.1 65536", "host 80", "10.1.0.1 x", "10.1.0.1  "]
)
def test_another_ranks_word_is_checked(told):
    with pytest.raises(EngineError, match="does not tell where the store is"):
        checked_endpoint(told, what="the store")


@pytest.mark.parametrize(("told", "found"), [("10.1.0.1 80", ("10.1.0.1", 80)), ("fd00::1 65535", ("fd00::1", 65535))])
def test_addresses_of_both_families_are_understood(told, found):
    assert checked_endpoint(told, what="the store") == found


def test_the_plans_order_is_taken_on_demand_only():
    parts = slices("a", "b", "a")
    assert group(2, parts=parts, order=(0, 2, 1)).rank == 2
    asked = group(2, parts=parts, order=(0, 2, 1), planned_order=True)
    assert (asked.rank, asked.launcher_rank) == (1, 2)
    assert "the plan's order of ranks is taken: here rank 1 instead of 2" in asked.lines


@pytest.mark.parametrize("order", [(0, 1), (0, 0, 1), (0, 1, 3)])
def test_an_order_that_is_none_is_refused_and_the_others_hear_of_it(order):
    told = Told()
    with pytest.raises(EngineError, match="none of 3 ranks"):
        group(parts=slices("a", "b", "c"), order=order, told=told)
    assert told.heard[0][0] == "rank 0 could not start PyTorch by gloo"


def test_a_setting_that_cannot_work_here_is_refused():
    wrong = Setting(name="GLOO_SOCKET_IFNAME", value="eth7")
    with pytest.raises(EngineError, match="eth7, which this process does not have"):
        group(parts=[RankSlice(rank=0, node="a", host_index=0, settings=(wrong,))])


def test_without_an_address_ranks_of_one_host_meet_on_its_loopback_and_others_cannot():
    assert group(parts=slices("a", "a")).own_address() == "127.0.0.1"
    with pytest.raises(EngineError, match="no IP address of rank 0"):
        group(parts=slices("a", "b")).own_address()


def test_settings_live_as_long_as_the_group(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    setting = Setting(name="GLOO_SOCKET_IFNAME", value="fast")
    made = group(parts=[RankSlice(rank=0, node="a", host_index=0, settings=(setting,))])
    seen = []
    made.start(lambda: seen.append(os.environ["GLOO_SOCKET_IFNAME"]), lambda peacefully: seen.append(peacefully))
    assert os.environ["GLOO_SOCKET_IFNAME"] == "fast"
    made.close()
    made.close()
    assert seen == ["fast", True]
    assert "GLOO_SOCKET_IFNAME" not in os.environ
    assert made.joined.membership.heard == ["left"]


def test_what_a_framework_raises_becomes_what_became_of_the_group():
    ends = []
    for error in (RuntimeError("Connection closed by peer"), ValueError("UNKNOWN: Gloo failed")):
        made = group(told=Told(RankLostError("g", [1])))
        made.joined.membership.watch.alert = False
        made.start(lambda: None, ends.append)
        with pytest.raises(RankLostError) as caught, made:
            raise error
        assert caught.value.__cause__ is error
    assert ends == [False, False]


def test_a_rank_that_left_in_peace_is_not_blamed_for_others_errors():
    lost = RankLostError("g", [1])
    lost.details["left"] = True
    made = group(told=Told(lost))
    made.start(lambda: None, lambda peacefully: None)
    made.check()
    with pytest.raises(KeyError), made:
        raise KeyError("of the user")
    assert made.joined.membership.heard[0][1].args == ("of the user",)


def test_a_start_that_fails_because_the_group_did_says_so():
    made = group(told=Told(GroupAbortedError("rank 3: no space left")))

    def begin():
        raise RuntimeError("timed out")

    with pytest.raises(GroupAbortedError, match="no space left"):
        made.start(begin, lambda peacefully: None)


def test_functions_of_a_module_need_a_group_that_lives():
    current = Current("call it first")
    with pytest.raises(CommunicatorError, match="call it first"):
        current.get()
    current.group = group()
    assert current.get() is current.group
    current.group.closed = True
    with pytest.raises(CommunicatorError):
        current.get()


@pytest.mark.parametrize(
    ("engine", "environ", "found"),
    [
        ("nccl+gloo", {}, {"local_device_ids": [1]}),
        ("nccl+gloo", {"CUDA_VISIBLE_DEVICES": "0,1"}, {"local_device_ids": [1]}),
        ("nccl+gloo", {"CUDA_VISIBLE_DEVICES": "1"}, {}),
        ("gloo", {}, {}),
    ],
)
def test_ranks_of_one_host_have_a_gpu_each(engine, environ, found):
    made = group(2, parts=slices("b", "a", "a"), engine=engine)
    assert jax._own_gpu(made, environ) == found
    assert jax._own_gpu(group(parts=slices("b", "a", "a"), engine=engine), environ) == {}


@pytest.mark.parametrize("begin", [create_communicator, jax.initialize, torch.init_process_group])
@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), "60", None, True])
def test_ranks_are_given_some_time_to_come(begin, timeout):
    with pytest.raises(InputError, match=r"timeout .* is not a number of seconds above 0"):
        begin(timeout=timeout)
