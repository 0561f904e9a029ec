"""Why an operation did not end: who does not answer, who is elsewhere, and what has changed on the network."""

from contextlib import suppress

from fabric_client.rendezvous import Rendezvous
from fabric_client.staleness import changes_since
from fabricd.errors import FabricError, GroupError, RankLostError
from fabricd.model.plan import GroupPlan
from fabricd.units import format_ranges

_SHOWN = 4


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
    with suppress(FabricError):  # the ranks' answers are there all the same
        told += changes_since(rendezvous.connection, plan)[-_SHOWN:]
    return "; ".join(told) or "all ranks answer that they are in it"
