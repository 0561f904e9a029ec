"""The order of paths: pure and total. Whether to leave a path in use for a better one is not decided here."""

from collections.abc import Iterable
from dataclasses import replace

from fabricd.model.network import role_rank
from fabricd.model.observation import Evidence
from fabricd.model.path import Estimate, Path, PathType, Policy, Transport
from fabricd.paths.estimate import Comparison, estimate

_TYPE_ORDER = {kind: order for order, kind in enumerate(PathType)}
_TRANSPORT_ORDER = {transport: order for order, transport in enumerate(Transport)}
_EVIDENCE_ORDER = {evidence: order for order, evidence in enumerate(Evidence)}
_LAST = float("inf")

RankKey = tuple[bool, float, bool, float, int, int, int, int, int, tuple[str, ...]]
OrderKey = tuple[bool, bool, int, int, float, int, int, int, RankKey]

#: Estimates of different networks rest on nominal figures: what differs by less than this many digits is a tie.
_DIGITS = 3


def order_key(path: Path, estimated: Estimate | None, policy: Policy) -> OrderKey:
    """Return what answers are ordered by, the best first.

    In this order: there is a path at all; nothing that it needs is missing from what is known; what its network is for
    (an NVLink domain is for data alone); by policy ``priority`` the class of transport; the least estimated time, known
    before unknown, between nodes in three digits; between nodes the class of transport; fewer copies in host memory,
    which take processors and memory from others; fewer cautions; and what ``rank_key`` says.
    """
    between = bool(path.network)
    transport = _TRANSPORT_ORDER[path.transport]
    time = estimated.time_seconds if estimated else None
    if time is None and path.type not in (PathType.NET, PathType.DIS):
        time = path.latency_seconds or 0.0  # nothing in the node is known to be narrow, see rank_key
    return (
        path.type is PathType.DIS,
        bool(path.unverified),
        role_rank(path.role) if between and path.transport is not Transport.NVLINK else 0,
        transport if policy is Policy.PRIORITY else 0,
        _LAST if time is None else float(f"{time:.{_DIGITS}g}") if between else time,
        transport if between else 0,
        sum(end.gdr is False for end in path.ends),
        len(path.cautions),
        rank_key(path),
    )


def rank_key(path: Path) -> RankKey:
    """Return what paths are ordered by, the best first.

    In this order: there is a path at all; more bandwidth; backed by hardware before virtual; less latency, known
    before unknown; NCCL's order of types; the order of transports; measured before reported before assumed; fewer
    hops; ports nearer to the ends; and the names on the way, so that no two different paths are ever equal.

    Unknown bandwidth comes last across a network, where it means that nobody has measured. Within a node it comes
    first, as in the search: a link that no one rates there (a virtual machine's bus) is no bottleneck known of.
    """
    bandwidth, latency = path.bandwidth_bytes_per_second, path.latency_seconds
    unknown = _LAST if path.type is PathType.NET else -_LAST
    return (
        path.type is PathType.DIS,
        unknown if bandwidth is None else -bandwidth,
        path.virtual,
        _LAST if latency is None else latency,
        _TYPE_ORDER[path.type],
        _TRANSPORT_ORDER[path.transport],
        _EVIDENCE_ORDER[path.evidence],
        len(path.hops),
        sum(_TYPE_ORDER[end.type] for end in path.ends),
        (path.src, path.dst, *(hop.dst for hop in path.hops)),
    )


def ranked(paths: Iterable[Path], comparison: Comparison) -> tuple[Path, ...]:
    """Return the paths best first, each with its estimate, and with its place in ``rank``."""
    return with_places(in_order(paths, comparison))


def in_order(paths: Iterable[Path], comparison: Comparison) -> list[tuple[Path, Estimate]]:
    """Return the paths best first, each beside its estimate: most of them nobody will see."""
    timed = [(path, estimate(path, comparison)) for path in paths]
    timed.sort(key=lambda one: order_key(one[0], one[1], comparison.policy))
    return timed


def with_places(timed: Iterable[tuple[Path, Estimate]]) -> tuple[Path, ...]:
    """Return paths that are in order, each with its estimate and its place."""
    return tuple(replace(path, estimate=time, rank=place) for place, (path, time) in enumerate(timed, start=1))
