"""How communicators end: in order, with those that were made of them, and when the program just ends."""

import threading

import pytest

from fabric_client import runner as runner_module
from fabric_client.runner import Runner
from fabricd.errors import CommunicatorError, EngineError, InputError
from tests.support.scripted import Engine, Member, Scripted


@pytest.fixture
def member():
    return Member()


@pytest.fixture
def runner(member):
    return Runner(Engine(), member, "g", timeout=5.0, ranks_on_host=1)


@pytest.fixture
def alone(runner, monkeypatch):
    """The others do not end, and it is not for long that they are waited for."""
    monkeypatch.setattr(runner.engine, "farewell", Scripted)
    monkeypatch.setattr(runner_module, "_EXIT_SECONDS", 0.01)
    return runner


def begin(runner, pending):
    return runner.work("send", "send", None, 8, lambda: "result", lambda: pending)


def test_close_waits_for_what_is_pending(runner, member):
    pending, short = Scripted(), Scripted()
    work, wrong = begin(runner, pending), begin(runner, short)
    short.error = InputError("too short")
    threading.Timer(0.05, setattr, (pending, "ends", True)).start()
    runner.close(None)
    assert work.result() == "result"
    assert isinstance(wrong.exception(), InputError)
    assert (runner.closed, member.said) == (True, ["left"])


def test_what_was_made_of_one_ends_with_it_and_breaks_with_it(member):
    engines = [Engine(), Engine(), Engine()]
    engines[0].made, engines[1].made = engines[1], engines[2]
    first = Runner(engines[0], member, "g", timeout=1, ranks_on_host=1)
    child = first.derive("split", 0, 0, None, group="g[0]")
    grandchild = child.derive("dup", 0, 0, None, group="g[0][dup]")
    assert grandchild.group == "g[0][dup]"
    child.close(None)
    assert (child.closed, grandchild.closed, first.closed) == (True, True, False)
    assert [engine.ended for engine in engines] == [False, True, True]
    assert member.said == []  # the group goes on
    again = first.derive("split", 0, 0, None, group="g[0]")
    failing = Scripted()
    failing.error = EngineError("cable")
    with pytest.raises(EngineError):
        again.run("send", "send", None, 0, lambda: failing)
    with pytest.raises(CommunicatorError, match="broken since cable"):
        begin(first, Scripted())
    first.close(None)
    assert member.said == ["gave up: cable"]


def test_a_program_that_ends_with_nothing_on_its_way_says_nothing(alone, member, caplog):
    alone.end_of_process()
    assert (alone.closed, member.said, caplog.messages) == (True, ["left"], [])


def test_what_is_on_its_way_is_waited_for_and_told(alone, member, caplog):
    left = [4096, 4096, 0]
    alone.end_of_process(lambda: left.pop(0))
    assert (left, member.said) == ([], ["left"])
    assert [message.partition(" waits up to ")[0] for message in caplog.messages] == ["rank 0 ends without close():"]
    assert caplog.messages[0].endswith(" s for the others to take 4096 bytes that it has sent")


def test_what_nobody_takes_is_told_as_lost(alone, member, caplog, monkeypatch):
    monkeypatch.setattr(runner_module, "_DELIVERY_SECONDS", 0.05)
    alone.end_of_process(lambda: 4096)
    assert caplog.messages[-1:] == ["rank 0 ends: 4096 bytes that it has sent are lost"]
    assert member.said == ["left"]


def test_ctrl_c_ends_the_wait_and_the_group_is_left(alone, member):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        alone.end_of_process(interrupted)
    assert (alone.closed, member.said) == (True, ["left"])


def test_nothing_is_waited_for_once_a_rank_is_lost(alone, member, caplog):
    member.lost = [1]
    alone.end_of_process(lambda: pytest.fail("whom should it come to?"))
    assert (member.said, caplog.messages) == (["left"], [])
