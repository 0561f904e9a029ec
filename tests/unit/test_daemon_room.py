"""Who gets room for a connection, and who goes: any order of coming, asking and leaving."""

import errno
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fabricd.daemon.room import LAST_PLACES, Place, Room
from fabricd.shortage import OVER_SECONDS, Resource, Shortages

LIMIT = 5


class Visitor:
    """A connection that remembers what it got."""

    def __init__(self, crowd: "Crowd") -> None:
        self.crowd = crowd
        self.place = Place.NONE
        self.asks = False

    def abort(self) -> None:
        self.crowd.leave(self)


class Crowd:
    """All connections of a room."""

    def __init__(self) -> None:
        self.now = 0.0
        self.shortages = Shortages(clock=lambda: self.now)
        self.there: set[Visitor] = set()
        self.near_memory_limit = ""
        self.room = Room(LIMIT, self.there, self.shortages, lambda: self.near_memory_limit)

    def come(self) -> Visitor:
        one = Visitor(self)
        self.there.add(one)
        one.place = self.room.place()
        if one.place is Place.NONE:
            self.there.discard(one)
        else:
            self.room.waiting[one] = None
        return one

    def ask(self, one: Visitor) -> None:
        """Have a request from then on; who is in a last place may ask only for a moment."""
        if one in self.there and one.place is Place.ORDINARY:
            self.room.waiting.pop(one, None)
            one.asks = True

    def leave(self, one: Visitor) -> None:
        self.room.waiting.pop(one, None)
        self.there.discard(one)

    def close(self) -> None:
        self.room.close()


@given(st.lists(st.tuples(st.sampled_from(["come", "ask", "leave"]), st.integers(0, 60)), max_size=120))
def test_those_who_ask_stay_are_never_too_many_and_the_next_gets_in(steps):
    crowd = Crowd()
    came: list[Visitor] = []
    for what, index in steps:
        if what == "come":
            came.append(crowd.come())
        elif came:
            one = came[index % len(came)]
            crowd.ask(one) if what == "ask" else crowd.leave(one)
            if what == "leave":
                one.asks = False
        assert all(one in crowd.there for one in came if one.asks)
        assert sum(one.asks for one in came) <= LIMIT
        assert len(crowd.there) <= LIMIT + LAST_PLACES
    assert crowd.come().place is not Place.NONE
    crowd.close()


def test_the_last_places_are_not_for_those_who_stay():
    crowd = Crowd()
    for _ in range(LIMIT):
        crowd.ask(crowd.come())
    assert [crowd.come().place for _ in range(2 * LAST_PLACES)] == [Place.LAST] * 2 * LAST_PLACES
    assert crowd.shortages.now == ("connections",)
    crowd.close()


def test_who_waits_on_this_host_goes_last():
    crowd = Crowd()
    here = crowd.come()
    crowd.room.waiting_here[here] = crowd.room.waiting.pop(here)
    others = [crowd.come() for _ in range(2 * LIMIT)]
    assert here in crowd.there
    assert others[0] not in crowd.there
    crowd.close()


def test_with_memory_near_its_end_there_is_room_for_no_more_than_there_are_until_that_is_over():
    crowd = Crowd()
    asks = [crowd.come() for _ in range(4)]
    for one in asks:
        crowd.ask(one)
    crowd.near_memory_limit = "63 of 64 MiB"
    assert crowd.come().place is Place.LAST
    assert Resource.MEMORY in crowd.shortages.now
    crowd.room.unread = {asks[0]: 10.0, asks[1]: 11.9}
    crowd.room.relieve(12.0)
    assert [one in crowd.there for one in asks] == [False, True, True, True]
    crowd.near_memory_limit = ""
    crowd.room.relieve(99.0)
    assert asks[1] in crowd.there
    crowd.now += OVER_SECONDS + 1
    crowd.shortages.settle()
    crowd.room.widen()
    assert crowd.come().place is Place.ORDINARY
    crowd.close()


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_without_descriptors_there_is_a_reserve_and_room_for_no_more_until_that_is_over():
    before = descriptors()
    crowd = Crowd()
    assert descriptors() == before + LAST_PLACES
    lacking = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    asks = [crowd.come() for _ in range(4)]
    for one in asks:
        crowd.ask(one)
    waits = crowd.come()
    assert crowd.room.narrow(lacking)  # the reserve
    assert descriptors() == before
    assert waits in crowd.there
    assert not crowd.room.narrow(lacking)
    assert waits in crowd.there
    crowd.room.clear_one()
    assert waits not in crowd.there
    crowd.come()
    assert crowd.come().place is Place.ORDINARY  # in place of the one before
    crowd.room.widen()
    assert descriptors() == before
    crowd.now += OVER_SECONDS + 1
    crowd.shortages.settle()
    crowd.room.widen()
    assert descriptors() == before + LAST_PLACES
    assert crowd.shortages.met[Resource.DESCRIPTORS] == 2
    crowd.close()
    assert descriptors() == before
