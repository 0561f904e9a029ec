"""The life of one group, without I/O and without a clock of its own: events in, instructions out.

Invariant: a group is planned once, for exactly one living claim to each rank from 0 to size - 1; from then on the
answer of a fence round holds one contribution of each rank; and a failure is final, the same for everybody who asks.

What a restarted daemon needs, and when: nothing before the plan is made (ranks that wait repeat their joins),
everything that a rank may have been told from then on. ``Save`` stands before the answer that rests on it.
"""

from dataclasses import dataclass, field

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_failure import (
    Failure,
    FailureKind,
    Member,
    failure_of,
    hosts_of,
    lost_failure,
    timeout_failure,
)
from fabricd.cluster.groups_fence import Fences
from fabricd.errors import GroupConflictError, GroupError, GroupGoneError
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import GroupPhase, GroupStatus

#: A watch that broke is opened again within this time, or the member is lost. So it is with a join whose connection
#: the member closed: a program that is killed closes it, and one that wants to go on asks again at once.
RECONNECT_SECONDS = 1.5
#: A member that waits to join, and was told to ask again, does so within this time.
ASK_AGAIN_SECONDS = 10.0
#: A member opens its watch within this time after the plan, and after a restart of the daemon.
FIRST_WATCH_SECONDS = 30.0
#: How long an end is answered to those who ask.
ENDED_SECONDS = 5.0
FAILED_SECONDS = 60.0
#: Members that went with the same host are told of as one loss: those nearly due count too.
_TOGETHER_SECONDS = 0.25
_REFUSALS_KEPT = 4


@dataclass(slots=True, kw_only=True)
class GroupState:
    """One incarnation of a group. Feed ``handle``; change nothing else.

    Times are seconds of one monotonic clock, for all events of a group.
    """

    name: str
    size: int
    kvsname: str
    incarnation: int = 0
    engine: str = "mpi"
    deadline: float  #: by which all ranks must have come
    timeout_seconds: float = 60.0
    max_bytes: int = 1 << 28
    previous: str = ""  #: what became of the group of this name before, for whoever waits in vain
    phase: GroupPhase = GroupPhase.FORMING
    members: dict[int, Member] = field(default_factory=dict)
    plan: GroupPlan | None = None  #: while running
    failure: Failure | None = None
    fences: Fences = field(default_factory=Fences)
    left: list[int] = field(default_factory=list)  #: ranks that went in peace, in that order; it only grows
    bytes: int = 0  #: what views and keys take
    forget_at: float | None = None  #: when nobody needs to be answered any more
    _claims: dict[str, int] = field(default_factory=dict)
    _refusals: list[str] = field(default_factory=list)
    _gone: dict[int, str] = field(default_factory=dict)  #: came and went before the group was complete

    @property
    def over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.phase in (GroupPhase.ENDED, GroupPhase.FAILED)

    def handle(self, event: ev.Event, now: float) -> list[ev.Instruction]:
        """Take an event; return what is to be done, in order.

        Raises:
            FabricError: the event is refused and nothing has changed; or the group has failed, and this is why.
        """
        match event:
            case ev.Join():
                return self._join(event, now)
            case ev.Ask():
                return self._ask(event, now)
            case ev.Contribute():
                return self._contribute(event)
            case ev.WatchOpened():
                return self._watch_opened(event)
            case ev.WatchClosed():
                return self._watch_closed(event, now)
            case ev.Leave():
                return self._leave(self.member(event.rank), now)
            case ev.Planned():
                return self._planned(event.plan)
            case ev.Abort() | ev.Supersede() | ev.PlanFailed():
                return self._fail(failure_of(event), now)
            case ev.Tick():
                return self._tick(now)

    def check(self) -> None:
        """Raise the group's failure if it has failed."""
        if self.failure is not None:
            raise self.failure.error(self.name)

    def member(self, rank: int) -> Member:
        """Return a rank's place.

        Raises:
            GroupGoneError: nobody has it.
        """
        found = self.members.get(rank)
        if found is None:
            raise GroupGoneError(f"rank {rank} is no member of group {self.name!r}", hint="join again")
        return found

    def status(self) -> GroupStatus:
        """Return what a member may know."""
        waiting = self.phase is GroupPhase.FORMING
        there = self.members if waiting else self.fences.given
        return GroupStatus(
            group=self.name,
            incarnation=self.incarnation,
            size=self.size,
            phase=self.phase,
            present=tuple(sorted(rank for rank, member in self.members.items() if not member.left)),
            missing=tuple(rank for rank in range(self.size) if rank not in there) if waiting or there else (),
            lost=self.failure.ranks if self.failure else (),
            left=tuple(sorted(self.left)),
            reason=self.failure.reason if self.failure else "",
            hosts=tuple(hosts_of(self.members.values())) if waiting else (),
            kvsname=self.kvsname,
        )

    def _join(self, event: ev.Join, now: float) -> list[ev.Instruction]:
        self.check()
        newcomer = Member(
            rank=event.rank,
            claim=event.claim,
            host=event.view.hostname,
            pid=event.view.pid,
            view=event.view,
            due=now + ASK_AGAIN_SECONDS,
        )
        conflict = self._conflict(event, newcomer)
        if conflict:
            self._refusals = [*self._refusals, conflict][-_REFUSALS_KEPT:]
            raise GroupConflictError(f"group {self.name!r}: {conflict}", hint="does another job use this group's name?")
        if event.rank in self.members:
            return []
        self._pay(event.cost)
        self.members[event.rank] = newcomer
        self._claims[event.claim] = event.rank
        self._gone.pop(event.rank, None)
        return self._complete()

    def _complete(self) -> list[ev.Instruction]:
        """Ask for the plan when all are there. Who has just gone away may be dead: first it comes back, or another."""
        if self.phase is not GroupPhase.FORMING or len(self.members) < self.size:
            return []
        if any(member.vanished for member in self.members.values()):
            return []
        self.phase = GroupPhase.PLANNING
        return [ev.MakePlan()]

    def _conflict(self, event: ev.Join, newcomer: Member) -> str:
        """Return what speaks against a join, ``""`` if nothing does."""
        first = next(iter(self.members.values()), newcomer)
        holder = self.members.get(event.rank)
        if event.size != self.size:
            return f"{newcomer} says world_size {event.size}, but {first} says {self.size}"
        if event.engine != self.engine:
            return f"{newcomer} wants engine {event.engine!r}, but {first} wants {self.engine!r}"
        if holder is not None and holder.claim == event.claim:
            return f"{holder} has left already" if holder.left else ""
        if holder is not None:
            return f"{newcomer} claims the place that {holder} has"
        if event.claim in self._claims:
            return f"{newcomer} bears the claim of {self.members[self._claims[event.claim]]}"
        return ""

    def _pay(self, cost: int) -> None:
        if self.bytes + cost > self.max_bytes:
            raise GroupError(
                f"group {self.name!r} would hold {self.bytes + cost} bytes of views and keys",
                hint=f"at most {self.max_bytes} bytes are kept for a group",
            )
        self.bytes += cost

    def _ask(self, event: ev.Ask, now: float) -> list[ev.Instruction]:
        member = self.members.get(event.rank)
        if member is None or self.over:
            return []
        member.asking = max(0, member.asking + (1 if event.open else -1))
        member.vanished = event.vanished and not member.asking
        if member.asking or member.watch is not None or member.left:
            member.due = None
        elif self.phase is GroupPhase.RUNNING:
            member.due = now + (RECONNECT_SECONDS if member.watched else FIRST_WATCH_SECONDS)
        else:
            member.due = now + (RECONNECT_SECONDS if event.vanished else ASK_AGAIN_SECONDS)
        return self._complete()

    def _planned(self, plan: GroupPlan) -> list[ev.Instruction]:
        if self.phase is not GroupPhase.PLANNING:
            return []
        self.plan, self.phase = plan, GroupPhase.RUNNING
        self._strip()
        return [ev.Save(), ev.AnswerJoins()]

    def _contribute(self, event: ev.Contribute) -> list[ev.Instruction]:
        member = self._must_run(event.rank, "comes to a fence")
        if not self.fences.awaits(member, event.round, event.keys, self.name):
            return []
        self._pay(event.cost)
        if not self.fences.give(event.rank, event.keys, self.size):
            return []
        self.bytes = sum(len(key) + len(value) for key, value in self.fences.last_keys.items())
        return [ev.Save(), ev.AnswerFences()]

    def _must_run(self, rank: int, what: str) -> Member:
        self.check()
        member = self.member(rank)
        if self.phase is not GroupPhase.RUNNING or member.left:
            why = "has left" if member.left else "has no JoinAnswer yet"
            raise GroupConflictError(f"group {self.name!r}: {member} {what}, but {why}")
        return member

    def _watch_opened(self, event: ev.WatchOpened) -> list[ev.Instruction]:
        member = self._must_run(event.rank, "opens a watch")
        before = member.watch
        member.watch, member.watched, member.due = event.stream, True, None
        return [] if before is None else [ev.EndWatch(stream=before)]

    def _watch_closed(self, event: ev.WatchClosed, now: float) -> list[ev.Instruction]:
        member = self.members.get(event.rank)
        if member is None or member.watch != event.stream:
            return []
        member.watch = None
        if self.phase is GroupPhase.RUNNING and not member.left and not member.asking:
            member.due = now + RECONNECT_SECONDS
        return []

    def _leave(self, member: Member, now: float) -> list[ev.Instruction]:
        if self.phase is GroupPhase.FORMING:
            self._withdraw(member, "came and left", now)
            return []
        if member.left:
            return []
        member.left, member.due = True, None
        self.left.append(member.rank)
        done: list[ev.Instruction] = [] if member.watch is None else [ev.EndWatch(stream=member.watch)]
        if self.phase is GroupPhase.FAILED:
            return done
        if len(self.left) < self.size:
            return [*done, ev.Save(can_wait=True)]
        self.phase, self.forget_at = GroupPhase.ENDED, now + ENDED_SECONDS
        self._strip()
        return [*done, ev.Save(), ev.AnswerJoins(), ev.AnswerFences()]

    def _tick(self, now: float) -> list[ev.Instruction]:
        silent = [member for member in self.members.values() if member.due is not None and member.due <= now]
        if self.phase is GroupPhase.FORMING:
            for member in silent:
                self._withdraw(member, "came and went", now)
            return self._fail(self._timeout(), now) if self.deadline <= now else []
        if not silent:
            return []
        lost = [one for one in self.members.values() if one.due is not None and one.due <= now + _TOGETHER_SECONDS]
        if self.failure is None:
            return self._fail(lost_failure(lost), now)
        for member in lost:  # silent since before the group failed: lost too
            member.due = None
        before = [self.members[rank] for rank in self.failure.ranks]
        self.failure = lost_failure([*before, *lost])
        return [ev.Save(), ev.Tell(event=lost_failure(lost).event())]

    def _withdraw(self, member: Member, how: str, now: float) -> None:
        del self.members[member.rank], self._claims[member.claim]
        self._gone[member.rank] = f"{member} {how}"
        if not self.members:  # nobody waits: the next who comes begins anew
            self.phase, self.forget_at = GroupPhase.ENDED, now

    def _timeout(self) -> Failure:
        gone = [text for _, text in sorted(self._gone.items())]
        notes = [f"refused: {text}" for text in self._refusals]
        if self.previous:
            notes.append(f"the group of this name before {self.previous}")
        present, seconds = self.members.values(), self.timeout_seconds
        return timeout_failure(present, size=self.size, seconds=seconds, gone=gone, notes=notes)

    def _fail(self, failure: Failure, now: float) -> list[ev.Instruction]:
        if self.over:
            return []
        saved = self.plan is not None
        self.failure, self.phase, self.forget_at = failure, GroupPhase.FAILED, now + FAILED_SECONDS
        for member in self.members.values():
            if failure.kind is not FailureKind.LOST or member.rank in failure.ranks:
                member.due = None
        self._strip()
        told: list[ev.Instruction] = [ev.AnswerJoins(), ev.AnswerFences(), ev.Tell(event=failure.event())]
        return [ev.Save(), *told] if saved else told

    def _strip(self) -> None:
        """Let go of what nobody asks for any more."""
        for member in self.members.values():
            member.view = None
        self.bytes = 0
        if self.over:
            self.plan = None
            self.fences.forget()
