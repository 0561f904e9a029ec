"""The order of paths: pure and total. Whether to leave a path in use for a better one is not decided here."""

from collections.abc import Iterable
from dataclasses import replace

from fabricd.model.observation import Evidence
from fabricd.model.path import Path, PathType, Transport

_TYPE_ORDER = {kind: order for order, kind in enumerate(PathType)}
_TRANSPORT_ORDER = {transport: order for order, transport in enumerate(Transport)}
_EVIDENCE_ORDER = {evidence: order for order, evidence in enumerate(Evidence)}
_LAST = float("inf")

RankKey = tuple[bool, float, bool, float, int, int, int, int, tuple[str, ...]]


def rank_key(path: Path) -> RankKey:
    """Return what paths are ordered by, the best first.

    In this order: there is a path at all; more bandwidth; backed by hardware before virtual; less latency, known
    before unknown; NCCL's order of types; the order of transports; measured before reported before assumed; fewer
    hops; and the names on the way, so that no two different paths are ever equal.

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
        (path.src, path.dst, *(hop.dst for hop in path.hops)),
    )


def ranked(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Return the paths best first, each with its place in ``rank``."""
    return tuple(replace(path, rank=place) for place, path in enumerate(sorted(paths, key=rank_key), start=1))
