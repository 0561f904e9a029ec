"""Messages of the group interface (rendezvous of a job's ranks), version 1.

A rank talks to the group's owner, one daemon::

    PUT    /v1/groups/{group}/members/{rank}?wait=S   JoinRequest -> 200 JoinAnswer | 202 GroupStatus (ask again)
    POST   /v1/groups/{group}/fence/{round}?wait=S    FenceRequest -> 200 FenceAnswer | 202 GroupStatus
    GET    /v1/groups/{group}/members/{rank}/watch    stream of WatchEvent, one JSON object a line; held open as
                                                      long as the rank lives: its end without a leave is a loss
    POST   /v1/groups/{group}/members/{rank}/roll     -> RollAnswer: who answers, and what each is doing; within 2 s
    PUT    /v1/groups/{group}/members/{rank}/doing?what=TEXT   the answer to the event "roll" -> 204
    DELETE /v1/groups/{group}/members/{rank}          leave -> 204
    DELETE /v1/groups/{group}?reason=TEXT             abort -> 204
    GET    /v1/groups/{group}                         GroupStatus

A join that accepts ``application/x-ndjson`` is answered with 200 by such a stream, of which the first line is the
JoinAnswer: it is the member's watch from then on, and there is no moment in between.

The group's secret travels in the header ``X-Fabricd-Group-Secret``, a member's claim in ``X-Fabricd-Claim``,
the incarnation in ``X-Fabricd-Incarnation``; none of them stands in a URL. Without a secret only processes of
the same user over the Unix socket may join, and such a group's name is that user's own. Every request may be
repeated: joins and fences are idempotent for one claim.

**Signs of life.** An open request is one. A rank that waits to join asks again within 10 s, or its place is free
again; a rank that got its JoinAnswer opens its watch within 30 s, before it needs the others; a watch that breaks is
opened again within 1.5 s. After a restart of the daemon the watches are opened again within 30 s.

**Fences** are numbered 0, 1, 2, ...; every rank comes to each. The latest complete round is kept for those who ask
again, older ones are not.

**Errors** are problems with these codes: ``access-denied`` (no secret, a weak one, or not the one of the living group
of that name), ``group-gone`` (for all but joins: no group of that name *for this caller*; whether others have one
cannot be told from it), ``group-conflict`` (details ``fenced_by``: a newer incarnation took over), ``group-timeout``
(details ``missing``), ``group-aborted``, ``rank-lost`` (details ``ranks``), ``no-network``, ``busy`` (ask again).
After a failure every request of its members is answered with it for a minute; then the group is gone. A name whose
group has ended or failed can be used anew at once.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from fabricd.localview import LocalView
from fabricd.model.observation import missing_word
from fabricd.model.plan import GroupPlan

SECRET_HEADER = "X-Fabricd-Group-Secret"  # noqa: S105 - the name of a header, no secret
CLAIM_HEADER = "X-Fabricd-Claim"
INCARNATION_HEADER = "X-Fabricd-Incarnation"

#: Media type of a member's event stream, one JSON object a line.
EVENT_LINES = "application/x-ndjson"

#: Pattern of a group's name.
GROUP_NAME = r"[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,199}"
#: A shorter secret can be guessed. Launchers draw 128 random bits or more.
SECRET_MIN_LENGTH = 16
#: Pattern of a claim.
CLAIM = r"[A-Za-z0-9_-]{16,128}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A rank asks to be a member."""

    world_size: int
    claim: str  #: 128 random bits in hex, drawn once by each process; a repeated join bears the same
    view: LocalView
    incarnation: int = 0  #: restart count; a higher one fences a lower
    engine: str = "mpi"  #: "mpi", "gloo", "nccl"; "auto" lets the plan choose; the same on all ranks
    timeout_seconds: float = 60.0  #: from the first join, for all ranks to come


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAnswer:
    """The group is complete and planned."""

    group: str
    incarnation: int
    rank: int
    size: int
    kvsname: str  #: 128 random bits, new for each group and incarnation
    plan: GroupPlan  #: ``ranks`` tells of all ranks; ``settings`` stand in this rank's own slice only


class GroupPhase(StrEnum):
    """Where a group is in its life."""

    FORMING = "forming"
    PLANNING = "planning"
    RUNNING = "running"
    ENDED = "ended"  #: every rank left
    FAILED = "failed"  #: aborted, timed out, fenced, or lost ranks
    OTHER = "other"  #: a phase that this version does not know; only in what others tell

    @classmethod
    def _missing_(cls, value: object) -> "GroupPhase | None":
        return missing_word(value, cls.OTHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """What a member may know of a group."""

    group: str
    incarnation: int
    size: int
    phase: GroupPhase
    present: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()  #: that have not come: while it is forming, to the group; while it runs, to the fence
    lost: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    reason: str = ""
    hosts: tuple[str, ...] = ()  #: while it is forming: who is where, in words, of some hosts
    kvsname: str = ""  #: what MPI's processes know it by, see JoinAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceRequest:
    """New keys of one rank for one round; answered when every rank's have come."""

    rank: int
    keys: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceAnswer:
    """The keys of all ranks of the round."""

    round: int
    keys: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEvent:
    """Something happened to the group."""

    #: "hello", "alive" (heartbeat), "lost", "left", "aborted", "fenced", "stopping" (the daemon ends; reconnect), and
    #: "roll" (say what this rank is doing). Others are of later versions, and mean nothing to this one.
    kind: str
    ranks: tuple[int, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollAnswer:
    """Who of a group's members answers. Those that left are not called."""

    silent: tuple[int, ...] = ()  #: stopped, or their hosts hang or cannot be reached; or of a version before this
    doing: dict[str, str] = field(default_factory=dict)  #: by rank: the operation that it is in, "" for none
