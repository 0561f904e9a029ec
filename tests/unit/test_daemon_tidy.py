"""When a daemon gives memory back: after a crowd has gone, once, and not while it comes and goes."""

import gc
from collections.abc import Iterator

import pytest

from fabricd.daemon.tidy import Tidier


@pytest.fixture
def rounds() -> Iterator[list[int]]:
    """Full collections of garbage since the beginning."""
    found: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            found.append(info["collected"])

    gc.collect()
    gc.disable()  # so that only the tidier's count
    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)
    gc.enable()


def look(tidier: Tidier, *counts: int) -> None:
    for count in counts:
        tidier.look(count)


def test_a_crowd_that_has_gone_is_tidied_up_after_once(rounds):
    tidier = Tidier()
    look(tidier, 10, 3000, *[40] * 19)
    assert not rounds
    look(tidier, 40)
    assert len(rounds) == 1
    look(tidier, *[40] * 100)
    assert len(rounds) == 1
    look(tidier, 600, *[40] * 20)
    assert len(rounds) == 2


def test_memory_near_its_end_is_given_back_at_once_and_then_now_and_again(rounds):
    tidier = Tidier()
    tidier.look(10, short=True)
    assert len(rounds) == 1
    for _ in range(29):
        tidier.look(10, short=True)
    assert len(rounds) == 1
    tidier.look(10, short=True)
    assert len(rounds) == 2


def test_those_who_come_and_go_cost_nothing(rounds):
    tidier = Tidier()
    look(tidier, *[number % 200 for number in range(1000)])  # no crowd
    look(tidier, *[3000 if number % 15 == 0 else 10 for number in range(300)])  # one that comes back
    look(tidier, *[2000] * 100)  # most of it stays
    assert not rounds
