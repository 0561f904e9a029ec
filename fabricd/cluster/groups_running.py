"""The groups that live in this daemon: what the state machine of each says is done, in time and on record.

Lives in the server's event loop: no method may be called from another thread.
"""

import asyncio
import logging
from collections.abc import Callable

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_book import GroupBook
from fabricd.cluster.groups_keeping import RecordKeeper
from fabricd.cluster.groups_live import Group
from fabricd.cluster.groups_planning import Planner, planned
from fabricd.cluster.groups_record import GroupStore, state_of
from fabricd.cluster.groups_state import GroupState
from fabricd.model.wire import WatchEvent
from fabricd.shortage import Shortages

_log = logging.getLogger("fabricd.groups")

TICK_SECONDS = 0.25


class RunningGroups:
    """Feeds groups with events, and does as they say.

    Args:
        planner: makes the plans.
        store: where running groups are kept; None: a restart forgets them.
        max_bytes: that a group may hold.
        shortages: told when the store takes nothing, and when there is too little to plan with.
        clock: monotonic seconds.

    Attributes:
        book: of all groups.
        stopped: the daemon ends.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        store: GroupStore | None,
        max_bytes: int,
        shortages: Shortages,
        clock: Callable[[], float],
    ) -> None:
        self._planner = planner
        self._store = store
        self._shortages = shortages
        self._keeper = RecordKeeper(store, shortages) if store else None
        self._max_bytes = max_bytes
        self._clock = clock
        self.book = GroupBook()
        self._ticker: asyncio.Task[None] | None = None
        self.stopped = False

    def start(self) -> None:
        """Take up the groups that a daemon before this one left. Call it in the event loop."""
        found = self._store.load() if self._store else []
        for record in sorted(found, key=lambda record: (record.incarnation, record.failure is None)):
            state = state_of(record, self._clock(), max_bytes=self._max_bytes)
            self.add(Group(state, record.access, record.owner))
            if state.failure is None:
                _log.info("a group goes on", extra={"facts": _facts(state)})
            else:
                _log.debug("a group that failed is kept for ranks that ask", extra={"facts": _facts(state)})

    def stop(self) -> None:
        """Tell every stream that the daemon stops, and end it; running groups stay on record."""
        self.stopped = True
        if self._keeper:
            self._keeper.close()
        for group in self.book.all():
            for stream in group.streams.values():
                stream.put(WatchEvent(kind="stopping"))
                stream.end()
            if group.planning:
                group.planning.cancel()
        if self._ticker:
            self._ticker.cancel()

    def add(self, group: Group) -> Group:
        """Take in a group, and let time pass for it."""
        self.book.add(group)
        if self._ticker is None and not self.stopped:
            self._ticker = asyncio.create_task(self._tick())
        return group

    def tidy(self, owner: str, most: int) -> None:
        """Forget what was over first of somebody's groups that are over, where they are more than so many."""
        over = [group for group in self.book.all() if group.owner == owner and group.state.over]
        over.sort(key=lambda group: group.state.forget_at or 0.0)
        for group in over[: max(0, len(over) - most)]:
            self._forget(group)

    def apply(self, group: Group, event: ev.Event) -> None:
        """Feed the state machine and do as it says."""
        before = group.state.phase
        instructions = group.state.handle(event, self._clock())
        if group.state.phase is not before:
            level = logging.WARNING if group.state.failure else logging.INFO
            _log.log(level, "group", extra={"facts": _facts(group.state)})
        for instruction in instructions:
            match instruction:
                case ev.MakePlan():
                    group.planning = asyncio.create_task(self._plan(group))
                case ev.AnswerJoins():
                    group.joined.set()
                case ev.AnswerFences():
                    group.wake_fences()
                case ev.Tell(event=told):
                    for stream in group.streams.values():
                        stream.put(told)
                case ev.EndWatch(stream=number):
                    if number in group.streams:
                        group.streams[number].end()
                case ev.Save(can_wait=can_wait) if self._keeper:
                    (self._keeper.save_soon if can_wait else self._keeper.save)(group)

    async def _plan(self, group: Group) -> None:
        outcome = await planned(self._planner, group.state, self._shortages)
        group.planning = None
        self.apply(group, outcome)

    async def _tick(self) -> None:
        """Let time pass for groups, as long as there are any."""
        while self.book:
            await asyncio.sleep(TICK_SECONDS)
            now = self._clock()
            for group in self.book.all():
                try:
                    self.apply(group, ev.Tick())
                except Exception:  # noqa: BLE001 - time must go on for the other groups
                    _log.exception("group %r", group.state.name)
                if group.state.forget_at is not None and group.state.forget_at <= now:
                    self._forget(group)
        self._ticker = None

    def _forget(self, group: Group) -> None:
        self.book.remove(group)
        for stream in group.streams.values():
            stream.end()
        if self._keeper:
            self._keeper.forget(group)


def _facts(state: GroupState) -> dict[str, object]:
    """Return what the log tells of a group."""
    facts: dict[str, object] = {"group": state.name, "phase": state.phase.value, "ranks": state.size}
    return {**facts, "reason": state.failure.reason} if state.failure else facts
