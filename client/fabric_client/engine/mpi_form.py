"""Whether the clients of all hosts make the same messages of an operation: else they would wait for each other.

The first rank of each host says so among the keys that MPI's processes exchange before they connect: one installation
serves a host, and a key of each rank would be a good part of all keys. Those of earlier versions say nothing.
"""

from collections.abc import Mapping

from fabricd.errors import EngineError
from fabricd.model.plan import GroupPlan
from fabricd.units import format_ranges

#: To be raised with each change of what ranks send each other over MPI, or beside it, for one operation.
_FORM = "2"
_KEY = "fabricd-form-"


def with_form(keys: Mapping[str, str], rank: int, plan: GroupPlan) -> Mapping[str, str]:
    """Return a rank's keys, and with them what its client does, where it is for this rank to say."""
    return {**keys, f"{_KEY}{rank}": _FORM} if rank in speakers(plan) else keys


def check_forms(keys: Mapping[str, str], plan: GroupPlan) -> None:
    """Refuse a group of which some hosts' clients do otherwise.

    Raises:
        EngineError: names the ranks that said so.
    """
    others = [rank for rank in speakers(plan) if keys.get(f"{_KEY}{rank}") != _FORM]
    if others:
        raise EngineError(
            f"rank {format_ranges(others)} runs a version of this client whose messages are others",
            hint="install the same version of fabric_client on all hosts of a job",
        )


def speakers(plan: GroupPlan) -> list[int]:
    """Return the first rank of each host, ascending."""
    first: dict[int, int] = {}
    for part in plan.ranks:
        first[part.host_index] = min(part.rank, first.get(part.host_index, part.rank))
    return sorted(first.values())
