"""How a group fails, and what its members are told then."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fabricd.cluster.groups_events import Abort, PlanFailed, Supersede
from fabricd.errors import (
    FabricError,
    GroupAbortedError,
    GroupConflictError,
    GroupError,
    GroupTimeoutError,
    NoNetworkError,
    RankLostError,
)
from fabricd.localview import LocalView
from fabricd.model.wire import WatchEvent
from fabricd.units import format_names, format_ranges

_PARTIES_SHOWN = 8


@dataclass(slots=True, kw_only=True)
class Member:
    """A rank's place in a group."""

    rank: int
    claim: str  #: hashed
    host: str
    pid: int
    view: LocalView | None = None  #: until the plan is made
    watch: int | None = None  #: its open stream
    watched: bool = False  #: it has had a stream
    asking: int = 0  #: requests that it holds open
    vanished: bool = False  #: it closed its request before the answer, and has not come back
    due: float | None = None  #: when it counts as lost; None while it shows life, and after it left
    left: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.host or 'unknown host'}, pid {self.pid})"


class FailureKind(StrEnum):
    """Why a group failed."""

    TIMEOUT = "timeout"
    ABORTED = "aborted"
    FENCED = "fenced"
    LOST = "lost"
    NO_NETWORK = "no-network"
    PLAN = "plan"


_ERRORS: dict[FailureKind, type[FabricError]] = {
    FailureKind.TIMEOUT: GroupTimeoutError,
    FailureKind.ABORTED: GroupAbortedError,
    FailureKind.FENCED: GroupConflictError,
    FailureKind.NO_NETWORK: NoNetworkError,
    FailureKind.PLAN: GroupError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The end of a group that did not end well."""

    kind: FailureKind
    reason: str  #: goes on after the group's name
    hint: str = ""
    ranks: tuple[int, ...] = ()  #: the lost ones
    told: str = ""  #: reason of the event on the streams
    details: dict[str, object] = field(default_factory=dict)

    @property
    def short(self) -> str:
        """The reason without who came and what else might explain it."""
        return self.told if self.kind is FailureKind.TIMEOUT else self.reason

    def error(self, group: str) -> FabricError:
        """Return what every member is answered."""
        if self.kind is FailureKind.LOST:
            lost = RankLostError(group, self.ranks)
            lost.details["reason"] = self.reason
            return lost
        return _ERRORS[self.kind](f"group {group!r} {self.reason}", hint=self.hint, details=self.details)

    def event(self) -> WatchEvent:
        """Return what the streams say."""
        kind = {FailureKind.LOST: "lost", FailureKind.FENCED: "fenced"}.get(self.kind, "aborted")
        return WatchEvent(kind=kind, ranks=self.ranks, reason=self.told or self.reason)


def failure_of(event: Abort | Supersede | PlanFailed) -> Failure:
    """Return the failure that an event means."""
    match event:
        case Abort(who=who, reason=reason):
            return Failure(
                kind=FailureKind.ABORTED,
                reason=f"was aborted by {who}: {reason or 'no reason given'}",
                told=f"{reason or 'no reason given'} (by {who})",
                details={"by": who, "reason": reason},
            )
        case Supersede(incarnation=incarnation):
            return fenced_failure(incarnation)
        case PlanFailed(error=error):
            kind = FailureKind.NO_NETWORK if isinstance(error, NoNetworkError) else FailureKind.PLAN
            return Failure(kind=kind, reason=f"has no plan: {error.message}", hint=error.hint, details=error.details)


def fenced_failure(incarnation: int) -> Failure:
    """Return the failure of what is older than an incarnation."""
    return Failure(
        kind=FailureKind.FENCED,
        reason=f"was taken over by incarnation {incarnation}",
        told=str(incarnation),
        hint="this process belongs to an attempt that was given up; let it end",
        details={"fenced_by": incarnation},
    )


def lost_failure(members: Iterable[Member]) -> Failure:
    """Return the failure of members that ended or cannot be reached."""
    lost = sorted(members, key=lambda member: member.rank)
    return Failure(
        kind=FailureKind.LOST,
        reason=f"{format_names(lost, _PARTIES_SHOWN)} ended, or cannot be reached any more",
        ranks=tuple(member.rank for member in lost),
    )


def timeout_failure(
    present: Iterable[Member], *, size: int, seconds: float, gone: Sequence[str], notes: Sequence[str]
) -> Failure:
    """Return the failure of a group whose deadline passed before it was complete.

    Args:
        present: who is there.
        size: how many should be.
        seconds: how long they were waited for.
        gone: who came and went.
        notes: further facts for whoever looks for the reason.
    """
    there = {member.rank: member for member in present}
    missing = [rank for rank in range(size) if rank not in there]
    what = f"is not complete after {seconds:g} s: no rank {format_ranges(missing)} of {size}"
    parts = [what, f"came: {'; '.join(hosts_of(there.values())) or 'nobody'}", *gone[:_PARTIES_SHOWN], *notes]
    return Failure(
        kind=FailureKind.TIMEOUT,
        reason="; ".join(parts),
        told=what,
        hint="did every rank start, with the same group, world size, daemon and secret?",
        details={"missing": missing, "present": sorted(there)},
    )


def hosts_of(members: Iterable[Member]) -> list[str]:
    """Return e.g. ``["rank 0-3 (a)", "rank 4 (b, pid 11)"]``, some of them."""
    by_host: dict[str, list[Member]] = {}
    for member in members:
        by_host.setdefault(member.host or "unknown host", []).append(member)
    told = []
    for host, there in sorted(by_host.items())[:_PARTIES_SHOWN]:
        pid = f", pid {there[0].pid}" if len(there) == 1 else ""
        told.append(f"rank {format_ranges(member.rank for member in there)} ({host}{pid})")
    return told + [f"{len(by_host) - _PARTIES_SHOWN} hosts more"] * (len(by_host) > _PARTIES_SHOWN)
