"""Operations in the background: what their handles say, and what becomes of them when the group fails."""

import threading
import time

import numpy as np
import pytest

from fabric_client import arrays
from fabric_client.messages import Messages
from fabric_client.runner import Runner
from fabricd.errors import CommunicatorError, EngineError, InputError, OperationTimeoutError, RankLostError
from tests.support.scripted import Engine, Member, Scripted


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def runner(member):
    return Runner(Engine(), member, "g", timeout=5.0, ranks_on_host=1)


def begin(runner, pending, name="all_reduce", timeout=None, **more):
    return runner.work(name, name, timeout, 8, lambda: "result", lambda: pending, **more)


def test_its_result_is_there_when_it_has_ended(runner):
    pending = Scripted()
    work = begin(runner, pending)
    assert not work.done()
    assert work.exception() is None
    with pytest.raises(CommunicatorError, match=r"all_reduce has not ended.*wait"):
        work.result()
    pending.ends = True
    assert work.done()
    assert work.wait() == work.result() == "result"
    tested = pending.tests
    assert work.done()
    assert pending.tests == tested  # engines need not answer after the end
    assert runner.tally.read()["all_reduce"].calls == 1
    assert runner.tally.read()["all_reduce"].bytes == 8


def test_what_a_rank_is_in_is_told_while_any_thread_waits(runner, member):
    held, ended = Scripted(), Scripted()
    ended.ends = True
    waiting = threading.Thread(target=runner.run, args=("recv", "recv", None, 0, lambda: held))
    waiting.start()
    while member.watch.doing() != "recv":  # the operation's own deadline ends it
        assert waiting.is_alive()
        time.sleep(0.001)
    runner.run("all_reduce", "all_reduce", None, 0, lambda: ended)
    assert member.watch.doing() == "recv", "of two the other has ended"
    held.ends = True
    waiting.join()
    assert member.watch.doing() == ""


def test_a_wait_that_is_over_leaves_it_going(runner):
    pending = Scripted()
    work = begin(runner, pending)
    with pytest.raises(OperationTimeoutError, match=r"has not ended within 0\.01 s; it goes on"):
        work.wait(0.01)
    assert not work.done()
    pending.ends = True
    assert work.wait(0.01) == "result"


def test_its_own_deadline_breaks_the_communicator(runner):
    work = begin(runner, Scripted(), timeout=0.01)
    other = begin(runner, Scripted(), "barrier")
    with pytest.raises(OperationTimeoutError, match=r"all_reduce did not end within 0\.01 s"):
        work.wait()
    assert isinstance(work.exception(), OperationTimeoutError)
    with pytest.raises(CommunicatorError, match=r"barrier: .* broken since"):
        other.wait()
    assert runner.engine.abandoned


def test_a_deadline_is_noticed_by_asking_too(runner):
    work = begin(runner, Scripted(), timeout=0.01)
    time.sleep(0.02)
    assert work.done()
    assert isinstance(work.exception(), OperationTimeoutError)
    assert "within 0.01 s" in str(work.exception())


def test_threads_that_wait_do_not_hold_up_those_that_ask(runner):
    pending = Scripted()
    work = begin(runner, pending)
    waiting = threading.Thread(target=work.wait)
    waiting.start()
    while not pending.tests:
        time.sleep(0.001)
    asked = time.monotonic()
    assert not work.done()
    with pytest.raises(OperationTimeoutError, match="it goes on"):
        work.wait(0.02)
    begin(runner, Scripted(), "send")  # looks after older ones first
    assert time.monotonic() - asked < 1
    pending.ends = True
    waiting.join(5)
    assert work.result() == "result"


def test_messages_start_beside_a_collective_of_another_thread(runner):
    messages = Messages(runner)
    messages._arrays, ended = arrays, Scripted()
    ended.ends = True
    runner.engine.send = lambda *_: ended
    with runner.collectives:  # a thread is in one, and its peers need this message first
        assert messages.send(b"abc", 1, async_op=True).wait() is None
        messages.send(b"abc", 1)


def test_a_lost_rank_ends_all_that_is_pending_with_its_name(runner, member):
    works = [begin(runner, Scripted(), name) for name in ("all_reduce", "all_gather", "barrier")]
    assert not any(work.done() for work in works)
    member.lost = [1]
    for work in works:
        with pytest.raises(RankLostError, match=r"lost rank 1 during \w+"):
            work.wait()
        assert work.done()
        assert work.exception().ranks == (1,)


def test_a_message_that_does_not_fit_is_its_own_error_only(runner):
    short, good = Scripted(), Scripted()
    works = [begin(runner, short, "recv"), begin(runner, good)]
    short.error, good.ends = InputError("rank 1 sent 3 bytes"), True
    with pytest.raises(InputError):
        works[0].wait()
    assert works[1].wait() == "result"


def test_an_engine_that_fails_breaks_it(runner):
    pending = Scripted()
    work = begin(runner, pending)
    pending.error = EngineError("cable")
    assert work.done()
    assert "cable" in str(work.exception())
    with pytest.raises(CommunicatorError, match="broken since cable"):
        begin(runner, Scripted())


def test_ctrl_c_leaves_it_pending(runner):
    pending = Scripted()
    work = begin(runner, pending)
    pending.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    pending.error, pending.ends = None, True
    assert work.wait() == "result"


def test_those_that_nobody_waits_for_do_not_pile_up(runner):
    for _ in range(50):
        pending = Scripted()
        pending.ends = True
        begin(runner, pending, "send")
    assert len(runner.pending_works()) <= 2
    assert runner.tally.read()["send"].calls >= 48


def test_nor_do_they_behind_some_that_last(runner):
    lasting = [Scripted(), Scripted(), Scripted()]
    works = [begin(runner, pending) for pending in lasting]
    for _ in range(100):
        pending = Scripted()
        pending.ends = True
        begin(runner, pending, "send")
    assert len(runner.pending_works()) <= 3 + 4
    assert len(runner._works._turns) <= 3 + 4
    assert not any(work.done() for work in works)


@pytest.mark.parametrize("timeout", ["a", [1], True, float("nan"), 1j])
def test_a_timeout_that_is_no_number_is_refused_before_anything_starts(runner, timeout):
    started = []
    work = begin(runner, Scripted())
    for call in (
        lambda: runner.run("send", "send", timeout, 0, lambda: started.append(1)),
        lambda: runner.work("send", "send", timeout, 0, lambda: None, lambda: started.append(1)),
        lambda: runner.derive("dup", 0, 0, timeout, group="other"),
        lambda: runner.close(timeout),
        lambda: work.wait(timeout),
    ):
        with pytest.raises(InputError, match="is not a number of seconds"):
            call()
    assert started == []
    assert runner.usable


@pytest.mark.parametrize("timeout", [0, 1.5, np.float32(1), np.int64(2), float("inf"), -1])
def test_any_number_of_seconds_is_taken(runner, timeout):
    pending = Scripted()
    pending.ends = True
    runner.run("send", "send", timeout, 0, lambda: pending)
    assert begin(runner, pending).wait(timeout) == "result"
