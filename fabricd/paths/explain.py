"""Why a path stands where it does: one sentence for each fact that decided."""

from collections.abc import Sequence
from dataclasses import replace

from fabricd.model.observation import Evidence
from fabricd.model.path import Hop, Path
from fabricd.paths.rank import rank_key
from fabricd.units import format_bandwidth, format_latency


def explained(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return ranked paths with their reasons: the best with what holds it back, each other with why it lost."""
    if not paths:
        return ()
    best = paths[0]
    first = replace(best, because=(*best.because, *_facts(best), *_why_first(best, paths[1:])))
    others = [replace(path, because=(*path.because, *_facts(path), why_behind(path, best))) for path in paths[1:]]
    return (first, *others)


def why_behind(path: Path, best: Path) -> str:
    """Return the fact that puts a path behind a better one: the first part of the order in which they differ."""
    mine, theirs = rank_key(path), rank_key(best)
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
        "equal in everything; the order of names decides",
    )
    return reasons[min(part, len(reasons) - 1)]


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
    said = [f"its narrowest hop: {_figure(hop)}"] if hop else ["no hop on it tells its bandwidth"]
    if not others:
        said.append("the only candidate")
    return said


def narrowest_hop(path: Path) -> Hop | None:
    """Return the first hop that is as narrow as the path, ``None`` where no hop's figure is known."""
    known = [hop for hop in path.hops if hop.bandwidth_bytes_per_second is not None]
    return min(known, key=lambda hop: hop.bandwidth_bytes_per_second or 0.0, default=None)


def _figure(hop: Hop) -> str:
    detail = f", {hop.detail}" if hop.detail else ""
    speed = format_bandwidth(hop.bandwidth_bytes_per_second)
    return f"{hop.src} - {hop.dst} ({hop.link}{detail}) {speed}, {hop.evidence}"


def _facts(path: Path) -> list[str]:
    """What a reader must know of a path, wherever it stands."""
    if path.virtual and path.evidence is not Evidence.MEASURED:
        return ["virtual: no hardware backs it, so its nominal speed says nothing until it is measured"]
    return ["virtual: no hardware backs it"] if path.virtual else []
