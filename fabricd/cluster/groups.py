"""Groups: the rendezvous of jobs' ranks. What members ask becomes events of the pure state machine of each group.

Lives in the server's event loop: no method may be called from another thread.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_access import Credentials, access_for, check_claim
from fabricd.cluster.groups_failure import fenced_failure
from fabricd.cluster.groups_limits import Limits, check_join, check_keys
from fabricd.cluster.groups_live import Group, Ticket
from fabricd.cluster.groups_planning import Planner
from fabricd.cluster.groups_record import GroupStore
from fabricd.cluster.groups_running import TICK_SECONDS, RunningGroups
from fabricd.cluster.groups_state import RECONNECT_SECONDS, GroupState
from fabricd.cluster.groups_stream import WatchStream
from fabricd.errors import GroupConflictError, GroupGoneError
from fabricd.model.wire import FenceRequest, GroupStatus, JoinRequest, RollAnswer
from fabricd.shortage import Shortages


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
        self._limits = limits or Limits()
        self._clock = clock
        self._numbers = itertools.count(1)
        self._running = RunningGroups(
            planner,
            store=store,
            max_bytes=self._limits.group_bytes,
            shortages=shortages or Shortages(clock=clock),
            clock=clock,
        )
        self._book = self._running.book

    def start(self) -> None:
        """Take up the groups that a daemon before this one left. Call it in the event loop."""
        self._running.start()

    def stop(self) -> None:
        """Tell every stream that the daemon stops, and end it; running groups stay on record."""
        self._running.stop()

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
        for wait in (RECONNECT_SECONDS + 2 * TICK_SECONDS, 0.0):
            group = self._group_to_join(name, request, rank, shown)
            try:
                self._running.apply(group, group.join_event(rank, request, view, cost))
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
        self._running.apply(group, ev.Contribute(rank=request.rank, round=number, keys=request.keys, cost=cost))
        return Ticket(group=group, rank=request.rank, fence=number)

    @contextmanager
    def asking(self, ticket: Ticket) -> Iterator[None]:
        """Count a request as a sign of life while it is held open."""
        self._running.apply(ticket.group, ev.Ask(rank=ticket.rank, open=True))
        try:
            yield
        finally:
            if not self._running.stopped:
                self._running.apply(ticket.group, ev.Ask(rank=ticket.rank, open=False, vanished=ticket.vanished))

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
        self._running.apply(group, ev.WatchOpened(rank=rank, stream=stream.number))
        group.streams[stream.number] = stream
        try:
            yield stream
        finally:
            del group.streams[stream.number]
            if not self._running.stopped:
                self._running.apply(group, ev.WatchClosed(rank=rank, stream=stream.number))

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
        self._running.apply(self._book.of_member(name, rank, shown), ev.Leave(rank=rank))

    def abort(self, name: str, reason: str, shown: Credentials) -> None:
        """End a group for all its ranks.

        Raises:
            GroupGoneError: there is none for this caller.
        """
        group = self._book.of_caller(name, shown)
        members = group.state.members.values()
        claim = group.access.claim_hash(shown.claim) if shown.claim else ""
        who = next((str(member) for member in members if member.claim == claim), shown.caller)
        self._running.apply(group, ev.Abort(who=who, reason=reason))

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
        self._running.tidy(shown.caller, self._limits.groups_of_caller)
        if newest is not None:
            self._running.apply(newest, ev.Supersede(incarnation=request.incarnation))
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
        return self._running.add(Group(state, access_for(shown), shown.caller))
