"""Where the ranks of a group meet by IP: this rank's address on the planned network, and what others tell of theirs."""

import contextlib
import ipaddress

from fabricd.errors import EngineError
from fabricd.model.plan import GroupPlan, RankSlice

_LOOPBACK = "127.0.0.1"


def own_address(plan: GroupPlan, part: RankSlice, *, group: str, what: str) -> str:
    """Return this rank's address on the planned network, of the loopback where all ranks are on one host.

    Args:
        plan: of the group.
        part: this rank's.
        group: its name, for the message.
        what: meets there, for the message.

    Raises:
        EngineError: it has none.
    """
    if part.address:
        return part.address
    if len({one.node for one in plan.ranks}) == 1:
        return _LOOPBACK
    raise EngineError(
        f"the plan of group {group!r} names no IP address of rank {part.rank}, and {what} meets by IP",
        hint="give the hosts' data network IP addresses, or a network for management",
    )


def checked_endpoint(told: str, *, what: str) -> tuple[str, int]:
    """Return address and port of another rank's word, ``"ADDRESS PORT"``.

    Args:
        told: the word.
        what: listens there, for the message.

    Raises:
        EngineError: it is no such thing.
    """
    host, _, port = told.partition(" ")
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        if 0 < int(port) < 1 << 16:
            return host, int(port)
    raise EngineError(f"rank 0 does not tell where {what} is: {told[:60]!r}")
