"""Groups: the rendezvous of jobs' ranks. The pure state machine of each group meets time, files and requests here.

Lives in the server's event loop: no method may be called from another thread.
"""

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_access import Credentials, access_for, check_claim
from fabricd.cluster.groups_book import GroupBook
from fabricd.cluster.groups_failure import fenced_failure
from fabricd.cluster.groups_keeping import RecordKeeper
from fabricd.cluster.groups_limits import Limits, check_join, check_keys
from fabricd.cluster.groups_live import Group, Ticket
from fabricd.cluster.groups_planning import Planner, planned
from fabricd.cluster.groups_record import GroupStore, state_of
from fabricd.cluster.groups_state import RECONNECT_SECONDS, GroupState
from fabricd.cluster.groups_stream import WatchStream
from fabricd.errors import GroupConflictError, GroupGoneError
from fabricd.model.wire import FenceRequest, GroupStatus, JoinRequest, RollAnswer, WatchEvent
from fabricd.shortage import Shortages

_log = logging.getLogger("fabricd.groups")

_TICK_SECONDS = 0.25


class GroupService:
    """All groups that this daemon owns.

    Args:
        planner: makes the plans.
        store: where running groups are kept; None: a restart forgets them.
        limits: what is refused.
        shortages: told when the store takes nothing.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        planner: Planner,
        *,
        store: GroupStore | None = None,
        limits: Limits | None = None,
        shortages: Shortages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._planner = planner
        self._store = store
        self._keeper = RecordKeeper(store, shortages or Shortages(clock=clock)) if store else None
        self._limits = limits or Limits()
        self._clock = clock
        self._book = GroupBook()
        self._numbers = itertools.count(1)
        self._ticker: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Take up the groups that a daemon before this one left. Call it in the event loop."""
        found = self._store.load() if self._store else []
        for record in sorted(found, key=lambda record: (record.incarnation, record.failure is None)):
            state = state_of(record, self._clock(), max_bytes=self._limits.group_bytes)
            self._add(Group(state, record.access, record.owner))
            _log.info("a group goes on", extra={"facts": _facts(state)})

    def stop(self) -> None:
        """Tell every stream that the daemon stops, and end it; running groups stay on record."""
        self._stopped = True
        if self._keeper:
            self._keeper.close()
        for group in self.all():
            for stream in group.streams.values():
                stream.put(WatchEvent(kind="stopping"))
                stream.end()
            if group.planning:
                group.planning.cancel()
        if self._ticker:
            self._ticker.cancel()

    def all(self) -> list[Group]:
        """Return every group that is still known."""
        return self._book.all()

    async def join(self, name: str, rank: int, request: JoinRequest, shown: Credentials, *, cost: int) -> Ticket:
        """Claim a rank.

        Args:
            name: the group's.
            rank: from 0.
            request: what the rank says.
            shown: with which right.
            cost: bytes that the request took.

        Raises:
            FabricError: refused, or what became of the group.
        """
        view = check_join(rank, request, self._limits)
        check_claim(request.claim)
        self._limits.check_bytes(self.all(), cost)
        for wait in (RECONNECT_SECONDS + 2 * _TICK_SECONDS, 0.0):
            group = self._group_to_join(name, request, rank, shown)
            try:
                self._apply(group, group.join_event(rank, request, view, cost))
                break
            except GroupConflictError:
                holder = group.state.members.get(rank)
                if not wait or holder is None or holder.due is None:
                    raise
                # Whoever has the place shows no life: it may just have been killed, and this is the next attempt.
                await asyncio.sleep(wait)
        return Ticket(group=group, rank=rank)

    def fence(self, name: str, number: int, request: FenceRequest, shown: Credentials, *, cost: int) -> Ticket:
        """Bring a rank's keys to a fence.

        Raises:
            FabricError: refused, or what became of the group.
        """
        check_keys(number, request, self._limits)
        self._limits.check_bytes(self.all(), cost)
        group = self._book.of_member(name, request.rank, shown)
        self._apply(group, ev.Contribute(rank=request.rank, round=number, keys=request.keys, cost=cost))
        return Ticket(group=group, rank=request.rank, fence=number)

    @contextmanager
    def asking(self, ticket: Ticket) -> Iterator[None]:
        """Count a request as a sign of life while it is held open."""
        self._apply(ticket.group, ev.Ask(rank=ticket.rank, open=True))
        try:
            yield
        finally:
            if not self._stopped:
                self._apply(ticket.group, ev.Ask(rank=ticket.rank, open=False, vanished=ticket.vanished))

    async def ready(self, ticket: Ticket, seconds: float) -> bool:
        """Tell whether the answer is there, at the latest after so many seconds.

        Raises:
            FabricError: what became of the group.
        """
        deadline = self._clock() + seconds
        group = ticket.group
        while True:
            group.state.check()
            left = deadline - self._clock()
            if group.has_answer(ticket.fence) or left <= 0 or group.state.over:
                return group.has_answer(ticket.fence)
            event = group.joined if ticket.fence is None else group.fenced
            try:
                async with asyncio.timeout(left):
                    await event.wait()
            except TimeoutError:
                continue

    def answer(self, ticket: Ticket) -> bytes:
        """Return the encoded answer, once it is there. It is made when it is sent: the plan of a large group is long.

        Raises:
            FabricError: what became of the group meanwhile.
        """
        group = ticket.group
        found = group.join_answer(ticket.rank) if ticket.fence is None else group.fence_answer(ticket.fence)
        if found is None:
            group.state.check()
            raise GroupGoneError(f"group {group.state.name!r} is over")
        return found

    def status(self, name: str, shown: Credentials) -> GroupStatus:
        """Return how a group is.

        Raises:
            GroupGoneError: there is none for this caller.
        """
        return self._book.of_caller(name, shown).state.status()

    @contextmanager
    def watch(self, name: str, rank: int, shown: Credentials) -> Iterator[WatchStream]:
        """Hold a member's event stream open. Its end without a leave is a loss, unless the member comes back.

        Raises:
            FabricError: refused, or what became of the group.
        """
        group = self._book.of_member(name, rank, shown)
        stream = WatchStream(next(self._numbers), group.state.left)
        self._apply(group, ev.WatchOpened(rank=rank, stream=stream.number))
        group.streams[stream.number] = stream
        try:
            yield stream
        finally:
            del group.streams[stream.number]
            if not self._stopped:
                self._apply(group, ev.WatchClosed(rank=rank, stream=stream.number))

    async def call_roll(self, name: str, rank: int, shown: Credentials) -> RollAnswer:
        """Ask every member what it is doing, and return what they say, on behalf of one of them.

        Raises:
            FabricError: refused, or what became of the group.
        """
        group = self._book.of_member(name, rank, shown)
        group.state.check()
        return await group.called_roll(self._clock()).answer()

    def here(self, name: str, rank: int, doing: str, shown: Credentials) -> None:
        """Take a member's answer to a roll call.

        Raises:
            GroupGoneError: it is no member.
        """
        group = self._book.of_member(name, rank, shown)
        if group.roll is not None:
            group.roll.here(rank, doing)

    def leave(self, name: str, rank: int, shown: Credentials) -> None:
        """Let a member go in peace.

        Raises:
            GroupGoneError: it is no member.
        """
        self._apply(self._book.of_member(name, rank, shown), ev.Leave(rank=rank))

    def abort(self, name: str, reason: str, shown: Credentials) -> None:
        """End a group for all its ranks.

        Raises:
            GroupGoneError: there is none for this caller.
        """
        group = self._book.of_caller(name, shown)
        members = group.state.members.values()
        claim = group.access.claim_hash(shown.claim) if shown.claim else ""
        who = next((str(member) for member in members if member.claim == claim), shown.caller)
        self._apply(group, ev.Abort(who=who, reason=reason))

    def _group_to_join(self, name: str, request: JoinRequest, rank: int, shown: Credentials) -> Group:
        """Return the group that a join is meant for: the one it belongs to already, the living one, or a new one."""
        found = self._book.matching(name, shown)
        for group in found:
            if group.is_member(request.claim, rank):
                return group
        newest = found[0] if found else None
        if newest is not None and request.incarnation < newest.state.incarnation:
            raise fenced_failure(newest.state.incarnation).error(name)
        if newest is not None and request.incarnation == newest.state.incarnation and not newest.state.over:
            return newest
        self._book.check_free(name, shown)
        self._limits.check_room(self.all(), shown.caller)
        if newest is not None:
            self._apply(newest, ev.Supersede(incarnation=request.incarnation))
        return self._new_group(name, request, shown, newest)

    def _new_group(self, name: str, request: JoinRequest, shown: Credentials, before: Group | None) -> Group:
        failure = before.state.failure if before else None
        state = GroupState(
            name=name,
            size=request.world_size,
            kvsname=secrets.token_hex(16),
            incarnation=request.incarnation,
            engine=request.engine,
            deadline=self._clock() + request.timeout_seconds,
            timeout_seconds=request.timeout_seconds,
            max_bytes=self._limits.group_bytes,
            previous=failure.short if failure else "",
        )
        return self._add(Group(state, access_for(shown), shown.caller))

    def _add(self, group: Group) -> Group:
        self._book.add(group)
        if self._ticker is None and not self._stopped:
            self._ticker = asyncio.create_task(self._tick())
        return group

    def _apply(self, group: Group, event: ev.Event) -> None:
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
        outcome = await planned(self._planner, group.state)
        group.planning = None
        self._apply(group, outcome)

    async def _tick(self) -> None:
        """Let time pass for groups, as long as there are any."""
        while self._book:
            await asyncio.sleep(_TICK_SECONDS)
            now = self._clock()
            for group in self.all():
                try:
                    self._apply(group, ev.Tick())
                except Exception:  # noqa: BLE001 - time must go on for the other groups
                    _log.exception("group %r", group.state.name)
                if group.state.forget_at is not None and group.state.forget_at <= now:
                    self._forget(group)
        self._ticker = None

    def _forget(self, group: Group) -> None:
        self._book.remove(group)
        for stream in group.streams.values():
            stream.end()
        if self._keeper:
            self._keeper.forget(group)


def _facts(state: GroupState) -> dict[str, object]:
    """Return what the log tells of a group."""
    facts: dict[str, object] = {"group": state.name, "phase": state.phase.value, "ranks": state.size}
    return {**facts, "reason": state.failure.reason} if state.failure else facts
