"""Whether the clients of all ranks make the same messages of an operation: else they would wait for each other.

Each says so among the keys that MPI's processes exchange before they connect. Those of earlier versions say nothing.
"""

from collections.abc import Mapping

from fabricd.errors import EngineError
from fabricd.units import format_ranges

#: To be raised with each change of what ranks send each other over MPI, or beside it, for one operation.
_FORM = "1"
_KEY = "fabricd-form-"


def with_form(keys: Mapping[str, str], rank: int) -> Mapping[str, str]:
    """Return keys, and with them what this rank's client does."""
    return {**keys, f"{_KEY}{rank}": _FORM}


def check_forms(keys: Mapping[str, str], size: int) -> None:
    """Refuse a group of which some ranks' clients do otherwise.

    Raises:
        EngineError: names the ranks.
    """
    others = [rank for rank in range(size) if keys.get(f"{_KEY}{rank}") != _FORM]
    if others:
        raise EngineError(
            f"rank {format_ranges(others)} runs a version of this client whose messages are others",
            hint="install the same version of fabric_client for all ranks of a job",
        )
