"""A rank's membership in a group: join, fence, watch, leave, abort. The other side of ``fabricd.model.wire``.

Every request is asked again until its deadline while the daemon is away: a daemon that restarts in the middle of
a rendezvous delays it and does no more.
"""

import itertools
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

from fabric_client.connection import ANSWER_SECONDS, Connection
from fabric_client.transport import Answer, TransientError
from fabricd.errors import FabricError, GroupTimeoutError, UnreachableError
from fabricd.localview import LocalView
from fabricd.model.codec import from_json
from fabricd.model.wire import (
    CLAIM_HEADER,
    EVENT_LINES,
    INCARNATION_HEADER,
    SECRET_HEADER,
    FenceAnswer,
    FenceRequest,
    GroupPhase,
    GroupStatus,
    JoinAnswer,
    JoinRequest,
    RollAnswer,
)
from fabricd.units import format_ranges

T = TypeVar("T")

_LOG = logging.getLogger("fabric_client")

#: A rank that waits says after this time whom for, and so again with each question.
_FIRST_POLL_SECONDS = 5.0
#: How long one question is held open by the daemon; short enough that a silent network is noticed.
_POLL_SECONDS = 10.0
#: A daemon on this very host that never answered is not there; one elsewhere may still be starting.
_LOCAL_FIRST_CONTACT_SECONDS = 3.0
_RETRY_FIRST_SECONDS, _RETRY_MAX_SECONDS = 0.05, 1.0
_GOODBYE_SECONDS = 2.0
_ROLL_SECONDS = 4.0
_DOING_MAX = 200
_ACCEPTED = 202  #: others are still awaited
#: A plan of ten thousand ranks is a few MB.
_JOIN_ANSWER_MAX_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Member:
    """Who asks."""

    group: str
    rank: int
    size: int
    incarnation: int
    claim: str  #: 128 random bits in hex: what makes repeated requests one

    def headers(self, secret: str | None) -> dict[str, str]:
        """Return the headers of every request of this member."""
        found = {CLAIM_HEADER: self.claim, INCARNATION_HEADER: str(self.incarnation)}
        if secret:
            found[SECRET_HEADER] = secret
        return found


def new_claim() -> str:
    """Return a claim for this process."""
    return os.urandom(16).hex()


class Rendezvous:
    """The group's daemon as one member sees it. Blocking; may be used by several threads.

    Args:
        connection: the group's owner; sends the member's headers with every request.
        member: who asks.
    """

    def __init__(self, connection: Connection, member: Member) -> None:
        self.connection = connection
        self.member = member
        self._base = f"/v1/groups/{quote(member.group, safe='')}"
        self._own = f"{self._base}/members/{member.rank}"
        self._contacted = False
        self._awaited: tuple[int, ...] = ()  #: ranks for which the others wait, as last told

    @property
    def watch_path(self) -> str:
        """Path of this member's event stream."""
        return f"{self._own}/watch"

    def join(self, view: LocalView, *, timeout: float, engine: str = "mpi") -> tuple[JoinAnswer, Answer | None]:
        """Register this rank and wait for the others and the plan. While it waits long, it tells for whom.

        Returns:
            The plan, and this member's event stream, which has begun with it: so there is no moment in which a rank
            that dies would not be missed at once. None from a daemon of before, which wants to be asked for it.

        Raises:
            GroupTimeoutError: ranks are missing; names them when the daemon answered at all.
            GroupConflictError: another process has this rank, or another world size.
            AccessError: wrong or no secret.
            UnreachableError: no daemon answers.
        """
        request = JoinRequest(
            world_size=self.member.size,
            claim=self.member.claim,
            view=view,
            incarnation=self.member.incarnation,
            engine=engine,
            timeout_seconds=timeout,
        )
        what = f"joining group {self.member.group!r} as rank {self.member.rank}"
        began = time.monotonic()

        def ask(wait: float, seconds: float) -> tuple[JoinAnswer, Answer | None] | None:
            answer = self.connection.ask("PUT", self._own, body=request, accept=EVENT_LINES, wait=wait, seconds=seconds)
            if answer.status == _ACCEPTED:
                status = from_json(answer.read(), GroupStatus, what=f"answer to {what}")
                self._awaited = status.missing
                self._tell_who_is_missing(status, time.monotonic() - began)
                return None
            if answer.media_type != EVENT_LINES:
                return from_json(answer.read(), JoinAnswer, what=f"answer to {what}"), None
            try:
                line = answer.line(longest=_JOIN_ANSWER_MAX_BYTES, seconds=_POLL_SECONDS)
                if not line:
                    raise TransientError(f"{what}: the answer broke off")
                return from_json(line, JoinAnswer, what=f"answer to {what}"), answer
            except BaseException:
                answer.close()
                raise

        # The daemon's own deadline names the missing ranks: give it the time to say so.
        return self._until(began + timeout + _GOODBYE_SECONDS, ask, what)

    def fence(self, number: int, keys: Mapping[str, str], *, timeout: float) -> Mapping[str, str]:
        """Give this rank's new keys of a round, return everybody's.

        Raises:
            GroupTimeoutError: not all ranks came to this round in time.
            FabricError: what became of the group.
        """
        request = FenceRequest(rank=self.member.rank, keys=dict(keys))
        what = f"fence {number} of group {self.member.group!r}"

        path = f"{self._base}/fence/{number}"

        def ask(wait: float, seconds: float) -> Mapping[str, str] | None:
            answer = self.connection.ask("POST", path, body=request, wait=wait, seconds=seconds)
            content = answer.read()
            if answer.status == _ACCEPTED:
                self._awaited = from_json(content, GroupStatus, what=f"answer to {what}").missing
                return None
            return from_json(content, FenceAnswer, what=f"answer to {what}").keys

        return self._until(time.monotonic() + timeout, ask, what)

    def roll(self) -> RollAnswer:
        """Have the daemon ask every member what it is doing; it answers within 2 s.

        Raises:
            FabricError: it does not answer, or what became of the group.
        """
        return self.connection.post(f"{self._own}/roll", RollAnswer, body={}, seconds=_ROLL_SECONDS)

    def here(self, doing: str) -> None:
        """Answer such a question.

        Raises:
            FabricError: the daemon does not take it.
        """
        self.connection.request("PUT", f"{self._own}/doing", params={"what": doing[:_DOING_MAX]}, seconds=_ROLL_SECONDS)

    def leave(self) -> bool:
        """Tell the daemon that this rank goes in peace; tell whether it heard."""
        return self._goodbye(self._own, {})

    def abort(self, reason: str) -> bool:
        """End the group for all ranks; ``reason`` is shown to them. Tell whether the daemon heard."""
        return self._goodbye(self._base, {"reason": reason[:500]})

    def _goodbye(self, path: str, params: Mapping[str, str]) -> bool:
        if not self._contacted:
            return False  # nobody there knows of this rank
        deadline = time.monotonic() + _GOODBYE_SECONDS
        pause = _RETRY_FIRST_SECONDS
        while True:
            try:
                self.connection.request("DELETE", path, params=params)
            except TransientError:
                if time.monotonic() + pause >= deadline:
                    return False
                time.sleep(pause)
                pause *= 2
            except FabricError:
                return False  # the group is gone already
            else:
                return True

    def _tell_who_is_missing(self, status: GroupStatus, seconds: float) -> None:
        """Say whom the group waits for; of those who wait, the lowest rank does."""
        if status.phase is not GroupPhase.FORMING or status.present[:1] != (self.member.rank,):
            return
        _LOG.warning(
            "group %r waits since %.0f s for rank %s of %d; here: %s",
            status.group, seconds, format_ranges(status.missing), status.size, "; ".join(status.hosts) or "nobody",
        )  # fmt: skip

    def _until(self, deadline: float, ask: Callable[[float, float], T | None], what: str) -> T:
        """Ask until there is an answer; None means that others are still awaited.

        Args:
            deadline: of ``time.monotonic``; where the network is silent it takes a second longer.
            ask: given for how long the daemon may hold the answer back, and for how long it may be late then.
            what: for errors.
        """
        started, failing_since, told = time.monotonic(), None, False
        pause = _RETRY_FIRST_SECONDS
        last: FabricError | None = None
        polls = itertools.chain([_FIRST_POLL_SECONDS], itertools.repeat(_POLL_SECONDS))
        while (left := deadline - time.monotonic()) > 0:
            try:
                wait = min(next(polls), left)
                found = ask(wait, min(ANSWER_SECONDS, max(1.0, left - wait)))
            except TransientError as error:
                last = error
                self._contacted |= error.connected
                failing_since = failing_since or time.monotonic()
                self._give_up_on_nobody(failing_since, error)
                if not told and time.monotonic() - failing_since > _FIRST_POLL_SECONDS:
                    told = True
                    _LOG.warning("%s: %s; asking for %.0f s more", what, error.message, left)
                time.sleep(min(left, pause * (0.5 + os.urandom(1)[0] / 512)))  # so that not all ask again at once
                pause = min(_RETRY_MAX_SECONDS, pause * 2)
                continue
            self._contacted = True
            pause = _RETRY_FIRST_SECONDS
            if found is not None:
                return found
        if last is not None and not self._contacted:
            raise UnreachableError(f"{what}: {last.message}", hint=last.hint)
        raise GroupTimeoutError(
            f"{what}: no answer within {deadline - started:.0f} s"
            + (f"; not come: rank {format_ranges(self._awaited)}" if self._awaited else "")
            + (f" (last: {last.message})" if last else "")
        ) from last

    def _give_up_on_nobody(self, failing_since: float, error: TransientError) -> None:
        if self._contacted or not self.connection.address.is_local:
            return
        if time.monotonic() - failing_since > _LOCAL_FIRST_CONTACT_SECONDS:
            raise UnreachableError(error.message, hint=error.hint) from None
