"""The order of paths: pure and total. Whether to leave a path in use for a better one is not decided here."""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from fabricd.model.network import role_rank
from fabricd.model.observation import Evidence
from fabricd.model.path import Path, PathType, Policy, Transport
from fabricd.paths.estimate import Comparison, estimate, time_of

_TYPE_ORDER = {kind: order for order, kind in enumerate(PathType)}
_TRANSPORT_ORDER = {transport: order for order, transport in enumerate(Transport)}
_EVIDENCE_ORDER = {evidence: order for order, evidence in enumerate(Evidence)}
_LAST = float("inf")

RankKey = tuple[bool, float, bool, float, int, int, int, int, int, tuple[str, ...]]
OrderKey = tuple[bool, bool, int, int, bool, float, int, int, int, RankKey]

#: Estimates of different networks rest on nominal figures: what differs by less than this many digits is a tie.
_DIGITS = 3


class Figures(NamedTuple):
    """What a path is ordered by."""

    type: PathType
    transport: Transport
    network: str
    role: str
    unverified: bool
    bandwidth: float | None  #: bytes/s
    latency: float | None  #: seconds
    virtual: bool
    evidence: Evidence
    measured: bool  #: somebody has measured the network between the two ports
    copies: int  #: ends at which it is copied in host memory
    cautions: int
    hops: int
    distances: int  #: how far the ports are from the ends, by NCCL's order of types
    names: tuple[str, ...]  #: of the ends, and of where each hop leads


def figures_of(path: Path) -> Figures:
    """Return what a path is ordered by."""
    return Figures(
        path.type,
        path.transport,
        path.network,
        path.role,
        bool(path.unverified),
        path.bandwidth_bytes_per_second,
        path.latency_seconds,
        path.virtual,
        path.evidence,
        path.measured_age_seconds is not None,
        sum(end.gdr is False for end in path.ends),
        len(path.cautions),
        len(path.hops),
        sum(distance(end.type) for end in path.ends),
        (path.src, path.dst, *(hop.dst for hop in path.hops)),
    )


def distance(kind: PathType) -> int:
    """Return the place of a type in NCCL's order, the nearest first."""
    return _TYPE_ORDER[kind]


def order_key(one: Figures, comparison: Comparison) -> OrderKey:
    """Return what answers are ordered by, the best first.

    In this order: there is a path at all; nothing that it needs is missing from what is known; what its network is for
    (an NVLink domain is for data alone); by policy ``priority`` the class of transport; RDMA that software does last,
    until it is measured; the least estimated time, known before unknown, between nodes in three digits; between nodes
    the class of transport; fewer copies in host memory, which take processors and memory from others; fewer cautions;
    and what ``rank_key`` says.
    """
    between = bool(one.network)
    transport = _TRANSPORT_ORDER[one.transport]
    time = time_of(one.type, one.bandwidth, one.latency, comparison)
    if time is None and one.type not in (PathType.NET, PathType.DIS):
        time = one.latency or 0.0  # nothing in the node is known to be narrow, see rank_key
    return (
        one.type is PathType.DIS,
        one.unverified,
        role_rank(one.role) if between and one.transport is not Transport.NVLINK else 0,
        transport if comparison.policy is Policy.PRIORITY else 0,
        one.transport is Transport.ROCE and one.virtual and not one.measured,  # its rate is that of the interface below
        _LAST if time is None else float(f"{time:.{_DIGITS}g}") if between else time,
        transport if between else 0,
        one.copies,
        one.cautions,
        rank_key(one),
    )


def rank_key(one: Figures) -> RankKey:
    """Return what paths are ordered by, the best first.

    In this order: there is a path at all; more bandwidth; backed by hardware before virtual; less latency, known
    before unknown; NCCL's order of types; the order of transports; measured before reported before assumed; fewer
    hops; ports nearer to the ends; and the names on the way, so that no two different paths are ever equal.

    Unknown bandwidth comes last across a network, where it means that nobody has measured. Within a node it comes
    first, as in the search: a link that no one rates there (a virtual machine's bus) is no bottleneck known of.
    """
    unknown = _LAST if one.type is PathType.NET else -_LAST
    return (
        one.type is PathType.DIS,
        unknown if one.bandwidth is None else -one.bandwidth,
        one.virtual,
        _LAST if one.latency is None else one.latency,
        _TYPE_ORDER[one.type],
        _TRANSPORT_ORDER[one.transport],
        _EVIDENCE_ORDER[one.evidence],
        one.hops,
        one.distances,
        one.names,
    )


def ranked(paths: Iterable[Path], comparison: Comparison) -> tuple[Path, ...]:
    """Return the paths best first, each with its estimate, and with its place in ``rank``."""
    in_order = sorted(paths, key=lambda path: order_key(figures_of(path), comparison))
    return tuple(
        replace(path, estimate=estimate(path, comparison), rank=place) for place, path in enumerate(in_order, start=1)
    )
