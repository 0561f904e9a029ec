"""Why a path stands where it does: one sentence for each fact that decided."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path
from fabricd.paths.estimate import AS_USUAL, Comparison
from fabricd.paths.rank import OrderKey, RankKey, figures_of, order_key
from fabricd.units import format_bandwidth, format_latency, format_size, format_time

_ROLE = 2  #: place in ``OrderKey``


def explained(paths: Sequence[Path], comparison: Comparison = AS_USUAL) -> tuple[Path, ...]:
    """Return ranked paths with their reasons: the best with what holds it back, each other with why it lost."""
    if not paths:
        return ()
    best = paths[0]
    first = replace(best, because=(*best.because, *_facts(best), *_why_first(best, paths[1:])))
    if not paths[1:]:
        return (first,)
    key = order_key(figures_of(best), comparison)
    others = [
        replace(path, because=(*path.because, *_facts(path), _why_behind(path, best, key, comparison)))
        for path in paths[1:]
    ]
    return (first, *others)


def _why_behind(path: Path, best: Path, key: OrderKey, comparison: Comparison) -> str:
    """Return the fact that puts a path behind a better one: the first part of the order in which they differ."""
    *mine, my_figures = order_key(figures_of(path), comparison)
    *theirs, their_figures = key
    if path.role == best.role:  # an NVLink domain comes before what is for data, but that is not the reason
        mine[_ROLE] = theirs[_ROLE]
    part = next((index for index, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), len(mine))
    if part == len(mine):
        return _by_figures(path, best, my_figures, their_figures)
    reasons = (
        "there is no path",
        "not verified, so it comes after those of which nothing is missing" + _would_be(path, best),
        f"its network is for {path.role}, that of the best for {best.role or 'data'}" + _would_be(path, best),
        f"by policy {comparison.policy}, {best.transport} comes before {path.transport}" + _would_be(path, best),
        f"RDMA done by software: it comes after {best.transport} until somebody measures it",
        _slower(path, best),
        f"as fast, but over {path.transport} instead of {best.transport}",
        f"as fast, but copied in host memory at {' and at '.join(_copied(path))}",
        f"as fast, but more speaks against it: {'; '.join(path.cautions)}",
    )
    return reasons[part]


def _copied(path: Path) -> Iterator[str]:
    """Yield the ports whose data goes through host memory."""
    return (end.port for end in path.ends if end.gdr is False)


def _would_be(path: Path, best: Path) -> str:
    """Say that a path would be first by its time alone, where it would."""
    mine, theirs = (one.estimate.time_seconds if one.estimate else None for one in (path, best))
    if mine is None or theirs is None or mine >= theirs:
        return ""
    return f"; by time alone it would lead, with {format_time(mine)} against {format_time(theirs)}"


def _slower(path: Path, best: Path) -> str:
    mine, theirs = path.estimate, best.estimate
    if mine is None or theirs is None or mine.transfer_seconds is None or theirs.transfer_seconds is None:
        return _narrower(path, best)
    in_transfer = mine.transfer_seconds - theirs.transfer_seconds
    in_latency = (mine.latency_seconds or 0.0) - (theirs.latency_seconds or 0.0)
    if in_transfer >= in_latency:
        return _narrower(path, best)
    latencies = f"{format_latency(path.latency_seconds)} against {format_latency(best.latency_seconds)}"
    return (
        f"as wide, but slower: {latencies}"
        if in_transfer == 0
        else f"slower for {format_size(mine.bytes)}: {latencies}"
    )


def _by_figures(path: Path, best: Path, mine: RankKey, theirs: RankKey) -> str:
    part = next((index for index, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), len(mine))
    reasons = (
        "there is no path",
        _narrower(path, best),
        "no hardware backs it, and a path of hardware is as wide",
        f"as wide, but slower: {format_latency(path.latency_seconds)} against {format_latency(best.latency_seconds)}",
        f"as wide and quick, but {path.type} against {best.type}",
        f"as wide and quick, but over {path.transport} instead of {best.transport}",
        f"as wide and quick, but its figures are {path.evidence}, those of the best {best.evidence}",
        f"as wide and quick, but {len(path.hops)} hops instead of {len(best.hops)}",
        f"as wide and quick, but its ports are farther from the ends ({_types(path)} against {_types(best)})",
        "equal in everything; the order of names decides",
    )
    return reasons[min(part, len(reasons) - 1)]


def _types(path: Path) -> str:
    return " and ".join(end.type for end in path.ends)


def _narrower(path: Path, best: Path) -> str:
    theirs = f"{format_bandwidth(best.bandwidth_bytes_per_second)} of the best ({best.evidence})"
    if best.bandwidth_bytes_per_second is None:
        theirs = "the best, on which no limit is known"
    hop = narrowest_hop(path)
    if hop is None:
        return f"how fast it is is not known; known comes before unknown: {theirs}"
    return f"narrower: {_figure(hop)} against {theirs}"


def _why_first(best: Path, others: Sequence[Path]) -> list[str]:
    hop = narrowest_hop(best)
    unknown = f"nothing tells what {best.network} carries" if best.network else "no hop on it tells its bandwidth"
    said = [f"its narrowest hop: {_figure(hop)}" if hop else unknown]
    if not others:
        said.append("the only candidate")
    return said


def narrowest_hop(path: Path) -> Hop | None:
    """Return the first hop that is as narrow as the path, ``None`` where no hop's figure is known."""
    if path.bandwidth_bytes_per_second is None:
        return None
    known = [hop for hop in path.hops if hop.bandwidth_bytes_per_second is not None]
    return min(known, key=lambda hop: hop.bandwidth_bytes_per_second or 0.0, default=None)


def _figure(hop: Hop) -> str:
    detail = f", {hop.detail}" if hop.detail else ""
    speed = format_bandwidth(hop.bandwidth_bytes_per_second)
    return f"{hop.src} - {hop.dst} ({hop.link}{detail}) {speed}, {hop.evidence}"


def _facts(path: Path) -> list[str]:
    """What a reader must know of a path, wherever it stands."""
    return [*(f"not verified: {one}" for one in path.unverified), *path.cautions, *_virtual(path)]


def _virtual(path: Path) -> list[str]:
    if path.virtual and path.evidence is not Evidence.MEASURED:
        return ["virtual: no hardware backs it, so its nominal speed says nothing until it is measured"]
    return ["virtual: no hardware backs it"] if path.virtual else []
