"""Why an operation did not end: who does not answer, who is elsewhere, and what has changed on the network."""

import logging
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from fabric_client.blocking import BlockingCall
from fabric_client.connection import Connection
from fabric_client.progress import PATIENCE_SECONDS
from fabric_client.rendezvous import Rendezvous
from fabric_client.staleness import changes_since
from fabric_client.watch import GroupWatch
from fabricd.errors import FabricError, GroupError, RankLostError
from fabricd.model.plan import GroupPlan
from fabricd.units import format_ranges

_LOG = logging.getLogger("fabric_client")

_SHOWN = 4
_ASKED = 16  #: nodes; each answer is a whole node
#: After the first word, and after each later one, no rank of the group says another for so long.
_QUIET_SECONDS = (240.0, 600.0)
#: Of ranks that begin to wait together the lowest asks; the others hear of it by then, and leave it to that one.
_TURN_SECONDS, _LAST_TURN = 0.25, 20
_GLANCE_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interface:
    name: str
    admin_up: bool = False
    carrier: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Interfaces:
    """Of a node's snapshot, what is asked here."""

    interfaces: tuple[_Interface, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    snapshot: _Interfaces | None = None


def why_late(rendezvous: Rendezvous, plan: GroupPlan, what: str) -> str:
    """Return what is known about an operation that did not end in time. Blocking, for some seconds at most.

    Args:
        rendezvous: the group's daemon, which asks all ranks what they are doing.
        plan: whose devices count.
        what: the operation.
    """
    try:
        return _found(rendezvous, plan, what)
    except (GroupError, RankLostError) as error:  # another rank was quicker to ask, and to give up
        return error.message
    except FabricError as error:
        return f"nobody can be asked why: {error.message}"


def _found(rendezvous: Rendezvous, plan: GroupPlan, what: str) -> str:
    answer = rendezvous.roll()
    told = []
    if answer.silent:
        nodes = sorted({part.node for part in plan.ranks if part.rank in answer.silent})
        more = ", ..." if len(nodes) > _SHOWN else ""
        told.append(f"rank {format_ranges(answer.silent)} ({', '.join(nodes[:_SHOWN])}{more}) does not answer")
    elsewhere: dict[str, list[int]] = {}
    for rank, doing in answer.doing.items():
        if doing != what and rank.isdecimal():
            elsewhere.setdefault(doing, []).append(int(rank))
    for doing, ranks in sorted(elsewhere.items())[:_SHOWN]:
        told.append(f"rank {format_ranges(ranks)} is in {doing or 'no operation'}")
    told += network_changes(rendezvous.connection, plan)
    return "; ".join(told) or "all ranks answer that they are in it"


class LateWord:
    """Says what an operation that lasts waits for, in one line of the log; see :class:`fabric_client.progress.Word`.

    Not that anything is wrong: the others may compute. All ranks hear when one calls the roll, and so only one says it.
    Where the daemon does not answer there is nothing to say.

    Args:
        rendezvous: the group's daemon.
        watch: hears of roll calls.
        plan: whose devices count.
        what: the operation.
        ends: when it does at the latest, in words.
    """

    def __init__(self, rendezvous: Rendezvous, watch: GroupWatch, plan: GroupPlan, what: str, ends: str) -> None:
        self._rendezvous = rendezvous
        self._watch = watch
        self._plan = plan
        self._what = what
        self._ends = ends
        self._turn = min(rendezvous.member.rank, _LAST_TURN) * _TURN_SECONDS
        self._due = PATIENCE_SECONDS + self._turn
        self._asked: BlockingCall[str] | None = None

    def look(self, waited: float) -> float:
        """See the protocol. The roll is called in a thread, for others may need this one to move data on."""
        if self._asked is None:
            self._due = max(self._due, waited + self._quiet_for())
            if waited < self._due:
                return self._due
            try:
                self._asked = BlockingCall(lambda: _found(self._rendezvous, self._plan, self._what), "roll")
            except RuntimeError:  # no more threads; what waits is not to end by that
                self._due = waited + PATIENCE_SECONDS
                return self._due
        if not self._asked.ended():
            return waited + _GLANCE_SECONDS
        asked, self._asked, self._due = self._asked, None, waited + PATIENCE_SECONDS
        with suppress(FabricError):
            why = asked.result()
            rank = self._rendezvous.member.rank
            _LOG.warning("rank %d: %s has waited %.0f s: %s; %s", rank, self._what, waited, why, self._ends)
        return self._due

    def _quiet_for(self) -> float:
        """Return for how many seconds nothing is to be said, because the roll was called lately."""
        calls = self._watch.rolls
        if not calls:
            return 0.0
        left = self._watch.rolled + _QUIET_SECONDS[min(calls, len(_QUIET_SECONDS)) - 1] - time.monotonic()
        return left + self._turn if left > 0 else 0.0


def network_changes(connection: Connection, plan: GroupPlan) -> list[str]:
    """Return what has changed since the plan was made that concerns it, or what is down; empty where nobody answers."""
    with suppress(FabricError):
        return list(changes_since(connection, plan)[-_SHOWN:]) or _down_now(connection, plan)
    return []


def _down_now(connection: Connection, plan: GroupPlan) -> list[str]:
    """Return planned devices that are down now: the history holds back what a link does that flaps.

    Raises:
        FabricError: the daemon does not answer.
    """
    planned: dict[str, set[str]] = {}
    for part in plan.ranks:
        planned.setdefault(part.node, set()).update(part.devices)
    told: list[str] = []
    for node in sorted(planned)[:_ASKED] if len(planned) > 1 else ():
        status = connection.get(f"/v1/nodes/{quote(node, safe='')}", _Node)
        told += [
            f"{node}: {one.name} (planned) is down"
            for one in (status.snapshot.interfaces if status.snapshot else ())
            if one.name in planned[node] and (one.carrier is False or not one.admin_up)
        ]
    return told[:_SHOWN]
