"""Why an operation did not end: who does not answer, who is elsewhere, and what has changed on the network."""

from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from fabric_client.connection import Connection
from fabric_client.rendezvous import Rendezvous
from fabric_client.staleness import changes_since
from fabricd.errors import FabricError, GroupError, RankLostError
from fabricd.model.plan import GroupPlan
from fabricd.units import format_ranges

_SHOWN = 4
_ASKED = 16  #: nodes; each answer is a whole node


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
        answer = rendezvous.roll()
    except (GroupError, RankLostError) as error:  # another rank was quicker to ask, and to give up
        return error.message
    except FabricError as error:
        return f"nobody can be asked why: {error.message}"
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
