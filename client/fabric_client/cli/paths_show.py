"""Paths for people: a table, or each with its hops and reasons."""

from collections.abc import Iterator, Sequence

from rich.console import Console

from fabric_client.cli.clean import clean
from fabric_client.cli.show import console, table, text
from fabricd.model.path import Estimate, Path, PathAnswer
from fabricd.units import format_bandwidth, format_latency, format_names, format_size, format_time

#: Names shown of those with one reason.
_ALIKE = 6


def show_table(answer: PathAnswer, *, pair: bool) -> None:
    """Print one line for each path; of a pair with ranks, and with what is no candidate."""
    out = console()
    columns = ["SRC", "DST", "TYPE", "TRANSPORT", ">BANDWIDTH", ">LATENCY", "EVIDENCE", "THROUGH"]
    if answer.paths and pair:
        columns.insert(6, f">{format_size(answer.bytes)} IN")
        out.print(table(["RANK", *columns], [[path.rank, *_row(path, timed=True)] for path in answer.paths]))
    elif answer.paths:
        out.print(table(columns, [_row(path) for path in _one_way(answer.paths)]))
    else:
        out.print(text(f"no path from {answer.src or 'here'} to {answer.dst or 'anything'}", "yellow"))
    _show_capacity(out, answer)
    if pair:
        _show_rejected(out, answer, "dim")
    _show_notes(out, answer)


def _one_way(paths: Sequence[Path]) -> list[Path]:
    """Leave out the way back where it is the same, but for an end that was asked for."""
    shown: dict[tuple[str, str], Path] = {}
    for path in paths:
        back = shown.get((path.dst, path.src))
        figures = (path.type, path.bandwidth_bytes_per_second)
        if back is None or figures != (back.type, back.bandwidth_bytes_per_second):
            shown[path.src, path.dst] = path
    return list(shown.values())


def _row(path: Path, *, timed: bool = False) -> tuple[object, ...]:
    through = " ".join(_through(path))
    bandwidth = format_bandwidth(path.bandwidth_bytes_per_second) + (" virtual" if path.virtual else "")
    latency = format_latency(path.latency_seconds)
    time = [format_time(path.estimate.time_seconds if path.estimate else None)] if timed else []
    evidence = f"{path.evidence}, path not verified" if path.unverified else path.evidence
    return (path.src, path.dst, path.type, path.transport, bandwidth, latency, *time, evidence, through)


def _through(path: Path) -> Iterator[str]:
    """Yield what a path leads through; between nodes only what was to be chosen: relay, ports and network."""
    if not path.ends:
        yield from (hop.dst for hop in path.hops[:-1])
        return
    near, far = path.ends
    yield from filter(None, [near.relay, near.port, path.network, far.port, far.relay])


def show_explained(answer: PathAnswer) -> None:
    """Print every path with its hops and the reasons for its place."""
    out = console()
    for path in answer.paths:
        place = f"{path.rank}. " if path.rank else ""
        figures = f"{format_bandwidth(path.bandwidth_bytes_per_second)}, {format_latency(path.latency_seconds)}"
        title = f"{place}{path.src} -> {path.dst}: {path.type} over {path.transport}, {figures}, {path.evidence}"
        out.print(text(title, "bold"))
        if path.estimate is not None:
            out.print(text(f"     {_estimate(path.estimate)}"))
        for hop in path.hops:
            speed = format_bandwidth(hop.bandwidth_bytes_per_second)
            detail = f", {hop.detail}" if hop.detail else ""
            out.print(text(f"     {hop.src} - {hop.dst}  {hop.link}, {speed}, {hop.evidence}{detail}", "dim"))
        for reason in path.because:
            out.print(text(f"     {reason}"))
    _show_capacity(out, answer)
    _show_rejected(out, answer)
    if not answer.paths:
        out.print(text(f"no path from {clean(answer.src)} to {clean(answer.dst)}", "yellow"))
    _show_notes(out, answer)


def _estimate(estimate: Estimate) -> str:
    """Tell an estimate with its parts, and where each comes from."""
    latency = f"{format_latency(estimate.latency_seconds)} latency, {estimate.latency_evidence}"
    transfer = "its bandwidth is not known"
    if estimate.transfer_seconds is not None:
        share = f"1 of {estimate.flows} shares of the path, " if estimate.flows > 1 else ""
        bandwidth = f"{format_bandwidth(estimate.share_bytes_per_second)}, {estimate.bandwidth_evidence}"
        transfer = f"{format_time(estimate.transfer_seconds)} at {share}{bandwidth}"
    return f"{format_size(estimate.bytes)} in {format_time(estimate.time_seconds)}: {latency}; {transfer}"


def _show_rejected(out: Console, answer: PathAnswer, style: str = "") -> None:
    """Print what is no candidate; what has the same reason in one line."""
    names: dict[str, list[str]] = {}
    for one in answer.rejected:
        names.setdefault(one.reason, []).append(one.name)
    for reason, alike in names.items():
        out.print(text(f"no candidate: {format_names(alike, _ALIKE)}: {reason}", style))


def _show_notes(out: Console, answer: PathAnswer) -> None:
    for note in answer.notes:
        out.print(text(note, "yellow"))


def _show_capacity(out: Console, answer: PathAnswer) -> None:
    if answer.capacity is None:
        return
    bounds = ", ".join(f"{hop.src} - {hop.dst}" for hop in answer.capacity.bottleneck)
    figure = format_bandwidth(answer.capacity.bandwidth_bytes_per_second)
    out.print(text(f"all paths at once: {figure}" + (f", bounded by {bounds}" if bounds else "")))
