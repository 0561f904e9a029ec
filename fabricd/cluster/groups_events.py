"""What happens to a group, and what is to be done about it: the alphabet of ``fabricd.cluster.groups_state``."""

from collections.abc import Mapping
from dataclasses import dataclass

from fabricd.errors import FabricError
from fabricd.localview import LocalView
from fabricd.model.plan import GroupPlan
from fabricd.model.wire import WatchEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """A process claims a rank."""

    rank: int
    claim: str  #: hashed
    size: int
    engine: str
    view: LocalView
    cost: int = 0  #: bytes that the request took


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A member's request begins or ends to be held open."""

    rank: int
    open: bool
    vanished: bool = False  #: it was the member's end that closed the connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribute:
    """A member comes to a fence with its keys."""

    rank: int
    round: int
    keys: Mapping[str, str]
    cost: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOpened:
    """A member opened its event stream."""

    rank: int
    stream: int  #: unique in this process


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchClosed:
    """A member's event stream ended, whatever the reason."""

    rank: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """A member goes in peace."""

    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """Somebody ends the group for all."""

    who: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Supersede:
    """A newer incarnation of the group has begun."""

    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The plan is made."""

    plan: GroupPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFailed:
    """There is no plan."""

    error: FabricError


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; wanted a few times a second."""


Event = Join | Ask | Contribute | WatchOpened | WatchClosed | Leave | Abort | Supersede | Planned | PlanFailed | Tick


@dataclass(frozen=True, slots=True)
class MakePlan:
    """All ranks are there: make the plan, then feed Planned or PlanFailed."""


@dataclass(frozen=True, slots=True)
class AnswerJoins:
    """Joins that wait can be answered, with the plan or with the failure."""


@dataclass(frozen=True, slots=True)
class AnswerFences:
    """Fences that wait can be answered, with the keys or with the failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tell:
    """Send an event to every open stream."""

    event: WatchEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWatch:
    """Close a stream."""

    stream: int


@dataclass(frozen=True, slots=True)
class Save:
    """What a restarted daemon must know has changed; comes before the answers that rest on it."""

    can_wait: bool = False  #: for a moment, so that many changes are saved together


Instruction = MakePlan | AnswerJoins | AnswerFences | Tell | EndWatch | Save
