"""The history of events: cursors, what is kept, who is woken, and links that flap."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.cluster import damping
from fabricd.cluster.damping import Damper
from fabricd.cluster.history import PAGE, History
from fabricd.errors import InputError
from fabricd.model.event import Event, EventKind


def left(number: int) -> Event:
    return Event(kind=EventKind.NODE_LEFT, node_id=str(number))


def filled(count: int, kept: int = 10) -> History:
    history = History("ab", kept=kept)
    history.add(left(number) for number in range(count))
    return history


def ids(history: History, cursor: str | None) -> list[str]:
    page = history.since(cursor)
    assert not page.resync
    return [event.node_id for event in page.events]


def test_a_cursor_gives_what_came_after_it():
    history = filled(3)
    assert ids(history, None) == ["0", "1", "2"]
    assert ids(history, "ab:2") == ["2"]
    assert ids(history, history.cursor) == []
    page = history.since("ab:1")
    assert (page.cursor, [event.number for event in page.events]) == ("ab:3", [2, 3])
    assert history.cursor_of(page.events[0]) == "ab:2"


def test_what_is_kept_no_more_or_anothers_is_a_resync():
    history = filled(25)
    assert ids(history, "ab:15") == [str(number) for number in range(15, 25)]
    for cursor in ("ab:14", "ab:26", "cd:20"):
        page = history.since(cursor)
        assert (page.resync, page.events, page.cursor) == (True, (), "ab:25")
    assert len(ids(history, None)) == 10


@pytest.mark.parametrize("cursor", ["", "5", "ab", "ab:", "ab:-1", "xy:1", "ab:1 ", "ab:" + "1" * 17, "a" * 40 + ":1"])
def test_what_is_no_cursor_is_refused(cursor):
    with pytest.raises(InputError, match="no cursor"):
        filled(1).since(cursor)


def test_a_long_history_comes_in_pages():
    history = filled(2 * PAGE + 1, kept=3 * PAGE)
    cursor, seen = None, []
    while page := history.since(cursor).events:
        assert len(page) <= PAGE
        cursor = history.cursor_of(page[-1])
        seen += [event.node_id for event in page]
    assert seen == [str(number) for number in range(2 * PAGE + 1)]


def test_a_reader_may_ask_for_less_at_once():
    history = filled(5)
    first = history.since(None, 3)
    assert [event.number for event in first.events] == [1, 2, 3]
    assert [event.number for event in asyncio.run(history.wait(first.cursor, 0, 3)).events] == [4, 5]


def test_who_waits_is_woken_and_misses_nothing():
    async def main() -> None:
        history = History("ab")
        waiting = asyncio.create_task(history.wait(None, 5))
        await asyncio.sleep(0)
        history.add([left(0), left(1)])
        page = await waiting
        assert [event.node_id for event in page.events] == ["0", "1"]
        assert (await history.wait(page.cursor, 0.01)).events == ()
        assert (await history.wait("cd:0", 5)).resync

    asyncio.run(main())


def change(state: str, subject: str = "eth0", node: str = "n") -> Event:
    kind = EventKind.LINK_UP if state == "up" else EventKind.LINK_DOWN
    before = "down" if state == "up" else "up"
    return Event(kind=kind, node_id=node, subject=subject, before=before, after=state)


def kinds(events: list[Event]) -> list[str]:
    return [event.kind.value for event in events]


def test_a_link_that_flaps_is_damped_counted_and_told_when_it_is_calm():
    damper = Damper()
    told = [event for number in range(20) for event in damper.take(change(["down", "up"][number % 2]), number)]
    assert kinds(told) == ["link_down", "link_up"] * 2 + ["link_down", "link_flapping"]
    assert told[-1].count == damping.FLAPS
    assert damper.flapping == 1
    assert damper.calm(19 + damping.CALM_SECONDS - 0.1) == []
    (calm,) = damper.calm(19 + damping.CALM_SECONDS)
    assert (calm.kind, calm.before, calm.after, calm.count) == (EventKind.LINK_UP, "down", "up", 20)
    assert damper.flapping == 0
    assert kinds(damper.take(change("down"), 60)) == ["link_down"]


def test_slow_changes_and_those_of_other_links_are_told():
    damper = Damper()
    for number in range(30):
        assert damper.take(change("up"), number * damping.WINDOW_SECONDS / (damping.FLAPS - 1))
        assert damper.take(change("up", subject=f"eth{number + 1}"), number)
    damper.calm(10_000)
    assert damper._links == {}


def test_a_drop_counts_twice_and_a_node_that_leaves_takes_its_links():
    damper = Damper()
    dropped = Event(kind=EventKind.LINK_DROPPED, node_id="n", subject="eth0", before="up", after="up", count=3)
    assert kinds(damper.take(dropped, 0)) == ["link_flapping"]
    damper.take(Event(kind=EventKind.NODE_LEFT, node_id="n"), 1)
    assert damper.flapping == 0


@given(st.lists(st.tuples(st.floats(0.01, 40), st.booleans()), max_size=60))
def test_a_reader_knows_the_state_once_it_is_calm(steps):
    """Whoever applies what is told has the link's true state, at the latest when it has been calm."""
    damper, now, state, told = Damper(), 0.0, "up", []
    for pause, flip in steps:
        now += pause
        told += damper.calm(now)
        if flip:
            state = "down" if state == "up" else "up"
            told += damper.take(change(state), now)
    told += damper.calm(now + damping.CALM_SECONDS)
    known = "up"
    for event in told:
        if event.kind is not EventKind.LINK_FLAPPING:
            known = event.after
    assert known == state
    assert damper.flapping == 0
