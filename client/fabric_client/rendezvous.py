"""A rank's membership in a group: join, fence, watch, leave, abort. The other side of ``fabricd.model.wire``.

Every request is asked again until its deadline while the daemon is away: a daemon that restarts in the middle of
a rendezvous delays it and does no more.
"""

import random
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import quote

import httpx

from fabric_client.connection import Connection, TransientError
from fabricd.errors import FabricError, GroupTimeoutError, UnreachableError
from fabricd.localview import LocalView
from fabricd.model.codec import from_json
from fabricd.model.wire import (
    CLAIM_HEADER,
    INCARNATION_HEADER,
    SECRET_HEADER,
    FenceAnswer,
    FenceRequest,
    JoinAnswer,
    JoinRequest,
)

T = TypeVar("T")

#: How long one question is held open by the daemon; short enough that a silent network is noticed.
_POLL_SECONDS = 10.0
#: A daemon on this very host that never answered is not there; one elsewhere may still be starting.
_LOCAL_FIRST_CONTACT_SECONDS = 3.0
#: A question that was held open for as long has been heard, whatever became of the daemon then: nobody refuses at once.
_HEARD_SECONDS = 0.2
_RETRY_FIRST_SECONDS, _RETRY_MAX_SECONDS = 0.05, 1.0
_GOODBYE_SECONDS = 2.0


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
    return secrets.token_hex(16)


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
        self._contacted = False

    @property
    def watch_path(self) -> str:
        """Path of this member's event stream."""
        return f"{self._base}/members/{self.member.rank}/watch"

    def join(self, view: LocalView, *, timeout: float, engine: str = "mpi") -> JoinAnswer:
        """Register this rank and wait for the others and the plan.

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
        # The daemon's own deadline names the missing ranks: give it the time to say so.
        return self._until(
            time.monotonic() + timeout + _GOODBYE_SECONDS,
            JoinAnswer,
            lambda wait: self.connection.request(
                "PUT", f"{self._base}/members/{self.member.rank}", body=request, wait=wait
            ),
            f"joining group {self.member.group!r} as rank {self.member.rank}",
        )

    def fence(self, number: int, keys: Mapping[str, str], *, timeout: float) -> Mapping[str, str]:
        """Give this rank's new keys of a round, return everybody's.

        Raises:
            GroupTimeoutError: not all ranks came to this round in time.
            FabricError: what became of the group.
        """
        request = FenceRequest(rank=self.member.rank, keys=dict(keys))
        answer = self._until(
            time.monotonic() + timeout,
            FenceAnswer,
            lambda wait: self.connection.request("POST", f"{self._base}/fence/{number}", body=request, wait=wait),
            f"fence {number} of group {self.member.group!r}",
        )
        return answer.keys

    def leave(self) -> bool:
        """Tell the daemon that this rank goes in peace; tell whether it heard."""
        return self._goodbye(f"{self._base}/members/{self.member.rank}", {})

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

    def _until(self, deadline: float, kind: type[T], ask: Callable[[float], httpx.Response], what: str) -> T:
        """Ask until there is an answer; 202 means that others are still awaited."""
        started, failing_since = time.monotonic(), None
        pause = _RETRY_FIRST_SECONDS
        last: FabricError | None = None
        while (left := deadline - time.monotonic()) > 0:
            asked = time.monotonic()
            try:
                response = ask(min(_POLL_SECONDS, left))
            except TransientError as error:
                last = error
                self._contacted |= time.monotonic() - asked > _HEARD_SECONDS
                failing_since = failing_since or time.monotonic()
                self._give_up_on_nobody(failing_since, error)
                time.sleep(min(left, pause * random.uniform(0.5, 1.0)))  # noqa: S311 - spreads retries, no secret
                pause = min(_RETRY_MAX_SECONDS, pause * 2)
                continue
            self._contacted = True
            pause = _RETRY_FIRST_SECONDS
            if response.status_code != httpx.codes.ACCEPTED:
                return from_json(response.content, kind, what=f"answer to {what}")
        if last is not None and not self._contacted:
            raise UnreachableError(f"{what}: {last.message}", hint=last.hint) from last
        raise GroupTimeoutError(
            f"{what}: no answer within {deadline - started:.0f} s" + (f" (last: {last.message})" if last else "")
        ) from last

    def _give_up_on_nobody(self, failing_since: float, error: TransientError) -> None:
        if self._contacted or not self.connection.address.is_local:
            return
        if time.monotonic() - failing_since > _LOCAL_FIRST_CONTACT_SECONDS:
            raise UnreachableError(error.message, hint=error.hint) from error
