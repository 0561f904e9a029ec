"""What NCCL's rules give away: why its path is narrower than what the hardware can do."""

from fabricd.model.path import Path, PathType
from fabricd.paths.explain import narrowest_hop
from fabricd.units import format_bandwidth

#: NCCL's figures are single precision, ours are not.
_SAME = 1.001


def given_away(physical: Path, nccl: Path) -> str:
    """Return why NCCL's path between two ends is narrower than the physical one, ``""`` if it is not.

    Args:
        physical: best path by what the hardware can do.
        nccl: NCCL's path between the same ends; ``because`` holds the rules that made it.
    """
    ours, theirs = physical.bandwidth_bytes_per_second, nccl.bandwidth_bytes_per_second or 0.0
    if nccl.type is PathType.DIS:
        return "NCCL has no path between the two"
    if ours is not None and ours <= theirs * _SAME:
        return ""
    figures = f"{format_bandwidth(ours)} by hardware, {format_bandwidth(theirs)} for NCCL"
    if ours is None:
        figures = f"no limit known by hardware, {format_bandwidth(theirs)} for NCCL"
    rules = [reason for reason in nccl.because if reason.startswith("rule ")]
    if _way(physical) == _way(nccl):
        return f"{figures}: the same way, but NCCL counts {_nominal(nccl)}"
    if rules:
        return f"{figures}: NCCL takes {nccl.type} by {rules[-1]}"
    if physical.type is not nccl.type:
        order = list(PathType)
        if order.index(nccl.type) < order.index(physical.type):
            return f"{figures}: NCCL takes {nccl.type}, as it ranks types of path before bandwidth"
        return f"{figures}: NCCL takes {nccl.type}; it knows no way like this one ({_through(physical)})"
    return f"{figures}: NCCL takes another way of type {nccl.type} ({_through(nccl)})"


def _way(path: Path) -> list[str]:
    return [hop.dst for hop in path.hops]


def _through(path: Path) -> str:
    return "through " + ", ".join(_way(path)[:-1]) if len(path.hops) > 1 else "directly"


def _nominal(path: Path) -> str:
    hop = narrowest_hop(path)
    if hop is None:
        return "nothing"
    return f"{format_bandwidth(hop.bandwidth_bytes_per_second)} for {hop.src} - {hop.dst} ({hop.link})"
