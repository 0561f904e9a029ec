"""The error tree. Each class has a stable code, which HTTP answers and exit statuses carry.

::

    FabricError
    ├── InputError              the caller's fault: exit 2, HTTP 400
    │   ├── ParseError          text, file or message that is not what it claims to be
    │   ├── ConfigError         configuration; lists every fault
    │   └── UnknownNameError    a node, device or format that does not exist; lists those that do
    ├── AccessError             HTTP 403: token or secret missing, wrong or too weak
    │   └── TokenError          HTTP 401: this door needs the bearer token
    ├── UnreachableError        nothing answers where the question was sent: exit 3
    ├── BusyError               HTTP 503: not now; says when to ask again
    ├── UnavailableError        an optional part is not installed, or a device is not usable
    ├── GroupError              the rendezvous of a job's ranks
    │   ├── GroupConflictError  two claims to one rank, different world sizes, a fenced incarnation
    │   ├── GroupTimeoutError   ranks are missing; names them
    │   ├── GroupAbortedError   somebody aborted it; says who and why
    │   ├── NoNetworkError      no network joins the hosts; names what each has
    │   └── GroupGoneError      expired or unknown
    └── CommunicatorError       a running communicator
        ├── RankLostError       names the group and the lost ranks
        ├── OperationTimeoutError
        └── EngineError         what MPI or NCCL reported, mapped
"""

from collections.abc import Mapping, Sequence

from fabricd.nearest import nearest


class FabricError(Exception):
    """Root of all errors that fabricd raises on purpose.

    Attributes:
        code: stable identifier, part of the HTTP interface.
        message: what was tried, what was found.
        hint: the next step, or the valid choices; may be empty.
        details: machine-readable facts, JSON-able.
    """

    code = "internal"
    http_status = 500
    exit_status = 1

    def __init__(self, message: str, *, hint: str = "", details: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details: dict[str, object] = dict(details or {})

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class InputError(FabricError):
    """The caller gave something that cannot be used."""

    code = "bad-input"
    http_status = 400
    exit_status = 2


class ParseError(InputError):
    """Text that is not in the form it should have."""

    code = "parse-error"


class ConfigError(InputError):
    """The configuration has faults; ``faults`` lists all of them, one sentence each."""

    code = "config-error"

    def __init__(self, faults: Sequence[str], *, source: str = "configuration") -> None:
        self.faults = tuple(faults)
        lines = "".join(f"\n  - {fault}" for fault in self.faults)
        super().__init__(f"{source}: {len(self.faults)} fault(s){lines}", details={"faults": list(self.faults)})


class UnknownNameError(InputError):
    """A name that nothing here bears. The message lists the names that exist, and which was probably meant."""

    code = "unknown-name"
    http_status = 404

    def __init__(self, kind: str, name: str, known: Sequence[str]) -> None:
        shown = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")
        super().__init__(
            f"no {kind} called {name!r}{nearest(name, known, cutoff=0.7)}",
            hint=f"known: {shown}" if known else f"no {kind} is known here",
            details={"kind": kind, "name": name, "known": list(known[:100])},
        )


class AccessError(FabricError):
    """The caller may not do this. Never says which half of a credential was wrong."""

    code = "access-denied"
    http_status = 403


class TokenError(AccessError):
    """The caller must show the bearer token."""

    code = "token-required"
    http_status = 401


class BusyError(FabricError):
    """Not now: a limit is reached, or the daemon is starting or ending. The same question may be asked again.

    Attributes:
        retry_after_seconds: when to ask again.
    """

    code = "busy"
    http_status = 503
    exit_status = 3

    def __init__(self, message: str, *, hint: str = "", retry_after_seconds: int = 1) -> None:
        self.retry_after_seconds = retry_after_seconds
        super().__init__(message, hint=hint, details={"retry_after_seconds": retry_after_seconds})


class UnreachableError(FabricError):
    """Nothing answered where the question was sent."""

    code = "unreachable"
    http_status = 502
    exit_status = 3


class UnavailableError(FabricError):
    """An optional part is missing; the hint names what to install or enable."""

    code = "unavailable"
    http_status = 503


class GroupError(FabricError):
    """The rendezvous of a job's ranks failed."""

    code = "group-error"
    http_status = 409


class GroupConflictError(GroupError):
    """Two parties claim what only one can have; both are named."""

    code = "group-conflict"


class GroupTimeoutError(GroupError):
    """Not all ranks came in time; ``details["missing"]`` lists them."""

    code = "group-timeout"
    http_status = 408


class GroupAbortedError(GroupError):
    """The group was aborted; the message says by whom and why."""

    code = "group-aborted"


class NoNetworkError(GroupError):
    """No network joins the hosts of a group; says what each host has, and why that does not do."""

    code = "no-network"


class GroupGoneError(GroupError):
    """The group is unknown here, or expired."""

    code = "group-gone"
    http_status = 404


class CommunicatorError(FabricError):
    """A communicator cannot go on."""

    code = "communicator-error"


class RankLostError(CommunicatorError):
    """Ranks ended or vanished without leaving the group.

    Attributes:
        group: the group's name.
        ranks: the lost ranks, ascending.
    """

    code = "rank-lost"
    http_status = 409

    def __init__(self, group: str, ranks: Sequence[int], *, during: str = "") -> None:
        self.group = group
        self.ranks = tuple(sorted(ranks))
        names = ", ".join(str(rank) for rank in self.ranks)
        super().__init__(
            f"group {group!r} lost rank{'s' if len(self.ranks) > 1 else ''} {names}"
            + (f" during {during}" if during else ""),
            hint="the communicator cannot be used any more; restart the job or form a new group",
            details={"group": group, "ranks": list(self.ranks)},
        )


class OperationTimeoutError(CommunicatorError):
    """An operation did not end within its deadline."""

    code = "operation-timeout"


class EngineError(CommunicatorError):
    """The engine below (MPI, NCCL) reported an error."""

    code = "engine-error"
