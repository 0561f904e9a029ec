"""What is said of an operation that lasts: by one rank, more and more seldom, and only what somebody answered."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from fabric_client.lateness import LateWord
from fabric_client.progress import PATIENCE_SECONDS, wait_for
from fabricd.errors import OperationTimeoutError, UnreachableError
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import RollAnswer

PLAN = GroupPlan(engine="mpi", size=3, ranks=())


class Rendezvous:
    """A daemon that answers a roll call, when it may."""

    def __init__(self, rank=0):
        self.member = SimpleNamespace(rank=rank)
        self.connection = self
        self.calls = 0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.error = None

    def roll(self):
        self.calls += 1
        assert self.may_answer.wait(10)
        if self.error is not None:
            raise self.error
        return RollAnswer(silent=(), doing={"0": "all_reduce", "1": "all_reduce", "2": "broadcast"})

    def get(self, path, kind, **more):
        raise UnreachableError(path)  # the map is another's subject


@pytest.fixture
def watch():
    return SimpleNamespace(rolls=0, rolled=0.0)


def word_of(rendezvous, watch):
    return LateWord(rendezvous, watch, PLAN, "all_reduce", "it ends after 1800 s")


def look_until_told(word, waited):
    """Look as often as it wants; return when it is to be looked at after the answer."""
    for _ in range(1000):
        again = word.look(waited)
        if word._asked is None:
            return again
        word._asked.ended(0.01)
    pytest.fail("the answer did not come")


def test_it_names_what_the_others_do_and_when_it_ends(watch, caplog):
    look_until_told(word_of(Rendezvous(1), watch), 61.0)
    words = "rank 1: all_reduce has waited 61 s: rank 2 is in broadcast; it ends after 1800 s"
    assert caplog.record_tuples == [("fabric_client", logging.WARNING, words)]


def test_the_wait_goes_on_while_the_daemon_takes_its_time(watch, caplog):
    rendezvous = Rendezvous()
    rendezvous.may_answer.clear()
    word = word_of(rendezvous, watch)
    begun = time.monotonic()
    for waited in (60.0, 60.5, 61.0):
        assert waited < word.look(waited) < waited + 1
    assert time.monotonic() - begun < 1
    rendezvous.may_answer.set()
    look_until_told(word, 61.5)
    assert rendezvous.calls == len(caplog.records) == 1


@pytest.mark.parametrize(("calls", "quiet"), [(1, 240.0), (2, 600.0), (9, 600.0)])
def test_after_a_roll_call_by_any_rank_it_is_quiet_for_longer_each_time(watch, caplog, calls, quiet):
    rendezvous = Rendezvous()
    word = word_of(rendezvous, watch)
    watch.rolls, watch.rolled = calls, time.monotonic()
    assert word.look(60.0) == pytest.approx(60.0 + quiet, abs=1.0)
    watch.rolled -= quiet
    look_until_told(word, 60.0 + quiet + 1)
    assert rendezvous.calls == len(caplog.records) == 1


def test_of_ranks_that_wait_as_long_the_lowest_asks(watch):
    dues = []
    for rank in (1, 2, 20, 9999):
        rendezvous = Rendezvous(rank)
        dues.append(word_of(rendezvous, watch).look(60.0))
        assert rendezvous.calls == 0
    assert 60.0 < dues[0] < dues[1] < dues[2] == dues[3] < 70.0


def test_where_nobody_answers_nothing_is_said_and_it_asks_again_later(watch, caplog):
    rendezvous = Rendezvous()
    rendezvous.error = UnreachableError("away")
    word = word_of(rendezvous, watch)
    assert look_until_told(word, 61.0) == 61.0 + PATIENCE_SECONDS
    assert caplog.records == []
    rendezvous.error = None
    look_until_told(word, 122.0)
    assert len(caplog.records) == 1


def test_a_wait_goes_on_where_there_are_no_more_threads(watch, monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert word_of(Rendezvous(), watch).look(61.0) == 61.0 + PATIENCE_SECONDS


class Never:
    def test(self):
        return False


def test_a_wait_asks_for_its_word_when_it_lasts_and_as_often_as_that_wants(monkeypatch):
    monkeypatch.setattr("fabric_client.progress.PATIENCE_SECONDS", 0.05)
    made, looks = [], []

    class Word:
        def look(self, waited):
            looks.append(waited)
            return waited + 0.05

    def word(what, timeout):
        made.append((what, timeout))
        return Word()

    with pytest.raises(OperationTimeoutError):
        wait_for(Never(), lambda: None, timeout=0.3, what="x", word=word)
    assert made == [("x", 0.3)]
    assert 1 <= len(looks) <= 5
    assert looks[0] >= 0.05
    with pytest.raises(OperationTimeoutError):
        wait_for(Never(), lambda: None, timeout=0.1, what="x", word=lambda what, timeout: None)
