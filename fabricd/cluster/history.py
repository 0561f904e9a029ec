"""The events of this daemon's life, as many as are kept; readers come back with the cursor that they were given."""

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice

from fabricd.cluster.damping import Damper
from fabricd.cluster.version import Version
from fabricd.errors import InputError
from fabricd.model.event import Event, EventPage

#: Events kept; the oldest go.
KEPT = 4096
#: Events in one answer at most.
PAGE = 1000
_CURSOR = re.compile(r"([0-9a-f]{1,32}):(\d{1,16})")


class History:
    """Numbers events, keeps the latest, and wakes who waits for more. Lives in the server's event loop.

    Args:
        instance: of this daemon's process; part of every cursor.
        clock: monotonic seconds.
        kept: how many events are kept.
    """

    def __init__(self, instance: str, *, clock: Callable[[], float] = time.monotonic, kept: int = KEPT) -> None:
        #: Its number is that of the latest event.
        self.version = Version()
        self._instance = instance
        self._clock = clock
        self._events: deque[Event] = deque(maxlen=kept)
        self._damper = Damper()

    @property
    def cursor(self) -> str:
        """Where history ends now."""
        return self._at(self.version.number)

    def cursor_of(self, event: Event) -> str:
        """Return the cursor for what comes after an event of this history."""
        return self._at(event.number)

    @property
    def flapping(self) -> int:
        """How many links flap now."""
        return self._damper.flapping

    def add(self, events: Iterable[Event]) -> None:
        """Take what happened, in order; what flapping links do is held back."""
        now = self._clock()
        self._keep(told for event in events for told in self._damper.take(event, now))

    def settle(self) -> None:
        """Tell what links that flapped have come to. To be called now and then."""
        self._keep(self._damper.calm(self._clock()))

    def since(self, cursor: str | None, most: int = PAGE) -> EventPage:
        """Return what came after a cursor; for None, everything that is kept.

        Args:
            cursor: of an earlier answer.
            most: events at once; those after them come with the cursor of this answer.

        Raises:
            InputError: that is no cursor.
        """
        oldest = self.version.number - len(self._events)  # the number before the first that is kept
        start = oldest
        if cursor is not None:
            found = _CURSOR.fullmatch(cursor)
            if found is None:
                raise InputError("since is no cursor", hint="pass the cursor of an answer of /v1/events, as it is")
            start = int(found[2])
            if found[1] != self._instance or not oldest <= start <= self.version.number:
                return EventPage(cursor=self.cursor, resync=True)
        page = tuple(islice(self._events, start - oldest, start - oldest + most))
        return EventPage(cursor=self._at(start + len(page)), events=page)

    def latest(self, most: int) -> Sequence[Event]:
        """Return the last events, the latest first."""
        return tuple(islice(reversed(self._events), most))

    async def wait(self, cursor: str | None, seconds: float, most: int = PAGE) -> EventPage:
        """Return what came after a cursor, as ``since`` does, as soon as there is something, or after so many seconds.

        Raises:
            InputError: that is no cursor.
        """
        page = self.since(cursor, most)
        if not page.events and not page.resync:
            await self.version.wait_for_change(self.version.number, seconds)
            page = self.since(page.cursor, most)
        return page

    def _at(self, number: int) -> str:
        return f"{self._instance}:{number}"

    def _keep(self, events: Iterable[Event]) -> None:
        at = time.time()
        for event in events:
            self._events.append(replace(event, number=self.version.number + 1, at=at))
            self.version.advance()
