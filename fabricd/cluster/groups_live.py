"""One group in this process: its state, and who waits for it."""

import asyncio
import hmac
from dataclasses import dataclass, replace

from fabricd.cluster.groups_access import Access
from fabricd.cluster.groups_events import Join
from fabricd.cluster.groups_roll import RollCall
from fabricd.cluster.groups_state import GroupState
from fabricd.cluster.groups_stream import WatchStream
from fabricd.localview import LocalView
from fabricd.model.codec import to_line
from fabricd.model.plan import RankSlice
from fabricd.model.wire import FenceAnswer, JoinAnswer, JoinRequest, WatchEvent


class Group:
    """One incarnation of a group.

    Args:
        state: its life.
        access: what opens it.
        owner: who made it, for counting.
    """

    def __init__(self, state: GroupState, access: Access, owner: str) -> None:
        self.state = state
        self.access = access
        self.owner = owner
        self.streams: dict[int, WatchStream] = {}
        self.joined = asyncio.Event()
        self.fenced = asyncio.Event()
        self.planning: asyncio.Task[None] | None = None
        self.roll: RollCall | None = None  #: the latest
        self._bare: tuple[RankSlice, ...] | None = None  #: the plan's slices without settings
        self._encoded: tuple[int, bytes] | None = None  #: the latest fence's answer

    def is_member(self, claim: str, rank: int) -> bool:
        """Whether that rank's place was claimed with that claim."""
        member = self.state.members.get(rank)
        return member is not None and hmac.compare_digest(member.claim, self.access.claim_hash(claim))

    def wake_fences(self) -> None:
        """Let those who wait at the fence look again."""
        self.fenced.set()
        self.fenced = asyncio.Event()

    def join_event(self, rank: int, request: JoinRequest, view: LocalView, cost: int) -> Join:
        """Return what a request to join means; of its claim only a hash is kept."""
        return Join(
            rank=rank,
            claim=self.access.claim_hash(request.claim),
            size=request.world_size,
            engine=request.engine,
            view=view,
            cost=cost,
        )

    def called_roll(self, now: float) -> RollCall:
        """Return the roll call that stands, or call a new one.

        Args:
            now: monotonic seconds.
        """
        if self.roll is None or not self.roll.is_kept(now):
            self.roll = RollCall((one.rank for one in self.state.members.values() if not one.left), now)
            for stream in self.streams.values():
                stream.put(WatchEvent(kind="roll"))
        return self.roll

    def has_answer(self, fence: int | None) -> bool:
        """Whether there is an answer to a join, or to those who came to a fence."""
        return self.state.plan is not None if fence is None else self.state.fences.answers(fence)

    def join_answer(self, rank: int) -> bytes | None:
        """Return what a member is answered once there is a plan."""
        state = self.state
        if state.plan is None:
            return None
        if self._bare is None:
            self._bare = tuple(replace(one, settings=()) for one in state.plan.ranks)
        slices = (*self._bare[:rank], state.plan.ranks[rank], *self._bare[rank + 1 :])
        answer = JoinAnswer(
            group=state.name,
            incarnation=state.incarnation,
            rank=rank,
            size=state.size,
            kvsname=state.kvsname,
            plan=replace(state.plan, ranks=slices),
        )
        return to_line(answer)

    def fence_answer(self, number: int) -> bytes | None:
        """Return the keys of a round once it is complete; they are encoded once for all."""
        fences = self.state.fences
        if not fences.answers(number):
            return None
        if self._encoded is None or self._encoded[0] != number:
            self._encoded = (number, to_line(FenceAnswer(round=number, keys=fences.last_keys)))
        return self._encoded[1]


@dataclass(slots=True, kw_only=True)
class Ticket:
    """A member's request that waits for others.

    Attributes:
        fence: number of the round; None for a join.
        vanished: set by who holds the request when its client went away.
    """

    group: Group
    rank: int
    fence: int | None = None
    vanished: bool = False
