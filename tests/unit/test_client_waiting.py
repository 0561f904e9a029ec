"""Waiting for an operation, and what explain() tells of a plan."""

import os
import threading
import time
from types import SimpleNamespace

import pytest

from fabric_client import arrays, progress
from fabric_client.environment import Identity
from fabric_client.explain import explain_communicator
from fabric_client.operations import Operations
from fabric_client.progress import Core, wait_for
from fabric_client.runner import Runner
from fabricd.errors import CommunicatorError, EngineError, InputError, OperationTimeoutError, RankLostError
from fabricd.model.observation import Evidence
from fabricd.model.path import Transport
from fabricd.model.plan import GroupPlan, NetworkChoice, RankSlice


class After:
    """An operation that ends after so many tests, or with an error."""

    def __init__(self, tests, error=None):
        self.left = tests
        self.error = error

    def test(self):
        self.left -= 1
        if self.left <= 0 and self.error is not None:
            raise self.error
        return self.left <= 0


def no_failure():
    return None


def test_it_ends_with_the_operation():
    for tests in (1, 16, 17, 5000):
        pending = After(tests)
        wait_for(pending, no_failure, timeout=5, what="x")
        assert pending.left == 0


def test_a_timeout_names_the_operation():
    begun = time.monotonic()
    with pytest.raises(OperationTimeoutError, match=r"all_reduce did not end within 0\.05 s"):
        wait_for(After(10**9), no_failure, timeout=0.05, what="all_reduce")
    assert 0.05 <= time.monotonic() - begun < 1


def test_a_failure_of_the_group_ends_it():
    lost = RankLostError("g", [3])
    with pytest.raises(RankLostError) as error:
        wait_for(After(10**9), lambda: lost, timeout=None, what="x")
    assert error.value is lost


class Clock:
    """Time that passes by a little with each look and as asked in a nap, however busy the machine is."""

    def __init__(self):
        self.now = 100.0
        self.naps = []

    def monotonic(self):
        self.now += 0.0002
        return self.now

    def sleep(self, seconds):
        self.naps.append(self.now)
        self.now += seconds


@pytest.mark.parametrize(("nbytes", "spins_seconds"), [(0, 1.0), (100_000_000, 2.0)])
def test_a_wait_naps_after_a_second_and_what_its_bytes_take_at_the_slowest_rate(monkeypatch, nbytes, spins_seconds):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    arguments = (None, SimpleNamespace(nbytes=nbytes))
    with pytest.raises(OperationTimeoutError):
        wait_for(After(10**9), no_failure, timeout=3.0, what="x", arguments=arguments)
    assert clock.naps[0] - 100.0 == pytest.approx(spins_seconds, abs=0.01)
    assert len(clock.naps) > 100 * (3.0 - spins_seconds)  # and from then on it naps each time


def test_ranks_that_share_cores_look_up_sooner():
    cores = len(os.sched_getaffinity(0))
    assert Core(1).spins == Core(cores).spins > Core(cores + 1).spins >= 1
    assert Core().spins == Core(cores + 1).spins


def test_a_wait_that_nobody_has_counted_ranks_for_looks_up_soon():
    """What it waits for may take a millisecond to be tested, and a lost rank is not to wait for a thousand of these."""
    tested = []

    class Never:
        def test(self):
            tested.append(1)
            return False

    with pytest.raises(RankLostError):
        wait_for(Never(), lambda: RankLostError("gone", ranks=(1,)), timeout=None, what="x")
    assert len(tested) < 100


class Engine:
    """An engine whose operations are given."""

    name, rank, size, arrays = "test", 1, 4, arrays

    def __init__(self, *pending):
        self.pending = list(pending)
        self.abandoned = False

    def start(self):
        return self.pending.pop(0)

    farewell = barrier = start

    def abandon(self):
        self.abandoned = True

    def shutdown(self, *, timeout):
        return True

    def describe(self):
        return ("MPICH 9 over UCX",)


def runner_of(*pending, timeout=1.0):
    return Runner(Engine(*pending), None, "g", timeout=timeout, ranks_on_host=1)


def test_a_failed_operation_breaks_the_communicator_for_good():
    runner = runner_of(After(1, EngineError("cable")), After(1))
    with pytest.raises(EngineError, match="cable"):
        runner.run("all_gather", "all_gather", None, 0, runner.engine.start)
    assert runner.engine.abandoned
    with pytest.raises(CommunicatorError, match="barrier: the communicator of group 'g' is broken since cable"):
        runner.run("barrier", "barrier", None, 0, runner.engine.start)
    runner.close(None)
    with pytest.raises(CommunicatorError, match="is closed"):
        runner.run("barrier", "barrier", None, 0, runner.engine.start)


def test_what_ends_at_once_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("fabric_client.runner.wait_for", lambda *_, **__: pytest.fail("the first test ended it"))
    given = []
    runner_of().run("x", "x", None, 0, lambda *arguments: given.append(arguments) or After(1), ("array", 3))
    assert given == [("array", 3)]


def test_a_wrong_argument_does_not_break_it():
    runner = runner_of(After(1, InputError("too short")), After(1))
    with pytest.raises(InputError):
        runner.run("recv", "recv", None, 0, runner.engine.start)
    runner.run("barrier", "barrier", None, 0, runner.engine.start)


def test_an_operations_own_timeout_counts_and_none_is_the_communicators():
    with pytest.raises(OperationTimeoutError, match=r"within 0\.01 s"):
        runner_of(After(10**9)).run("x", "x", 0.01, 0, lambda: After(10**9))
    with pytest.raises(OperationTimeoutError, match=r"within 0\.02 s"):
        runner_of(timeout=0.02).run("x", "x", None, 0, lambda: After(10**9))


def test_collectives_of_several_threads_run_one_at_a_time():
    running, most = [0], [0]

    class Slow:
        def __init__(self):
            running[0] += 1
            most[0] = max(most[0], running[0])
            self.end = time.monotonic() + 0.01

        def test(self):
            if time.monotonic() < self.end:
                return False
            running[0] -= 1
            return True

    operations = Operations(runner_of())
    threads = [
        threading.Thread(target=operations._collective, args=("x", None, None, False, 0, Slow)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_explain_tells_the_plan_in_a_few_lines():
    plan = GroupPlan(
        engine="mpi",
        size=4,
        ranks=tuple(RankSlice(rank=rank, node=f"node{rank // 3}", host_index=rank // 3) for rank in range(4)),
        networks=(
            NetworkChoice(network="n1/lo", transport=Transport.UNKNOWN, reason="a loopback leads nowhere"),
            NetworkChoice(
                network="10.1.0.0/24", transport=Transport.ETHERNET, bandwidth_bytes_per_second=1.2e9,
                latency_seconds=2e-5, evidence=Evidence.MEASURED, age_seconds=3.0, chosen=True, virtual=True,
                reason="the only one",
            ),
        ),
        because=("4 ranks on 2 hosts",),
    )  # fmt: skip

    class Member:
        def __init__(self):
            self.plan = plan
            self.watch = SimpleNamespace()

        def describe(self):
            return "watched, daemon at http://a:1"

    runner = Runner(Engine(), Member(), "g", timeout=None, ranks_on_host=3)
    identity = Identity(
        group="g", rank=1, size=4, incarnation=0, source="RANK and WORLD_SIZE", group_source="argument",
        group_asked=True, all_local=False,
    )  # fmt: skip
    assert explain_communicator(runner, identity).splitlines() == [
        "group g: rank 1 of 4 (from RANK and WORLD_SIZE), engine test",
        "rendezvous: watched, daemon at http://a:1",
        "hosts: 2 (node0 has ranks 0-2; node1 has rank 3)",
        "chosen 10.1.0.0/24 (ethernet, virtual, 1.2 GB/s, 20 us, measured 3 s ago): the only one",
        "not    n1/lo: a loopback leads nowhere",
        "4 ranks on 2 hosts",
        "MPICH 9 over UCX",
    ]


@pytest.mark.parametrize(("ranks", "yield_seconds", "yields"), [(3, 0.001, 1), (3, 0.0, 20), (2, 0.001, 20)])
def test_a_core_that_others_want_is_left_to_them_asleep_where_ranks_outnumber_cpus(
    monkeypatch, ranks, yield_seconds, yields
):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    yielded = []
    monkeypatch.setattr(os, "sched_yield", lambda: (yielded.append(1), time.sleep(yield_seconds)))
    core = Core(ranks)
    ahead = 0.0 if yield_seconds else 60.0  # this machine may be slow, and no yield is to seem so
    for _ in range(20):
        core.offer(time.monotonic() + ahead)
    assert len(yielded) == yields
