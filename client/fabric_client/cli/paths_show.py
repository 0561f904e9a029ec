"""Paths for people: a table, or each with its hops and reasons."""

from collections.abc import Sequence

from rich.console import Console

from fabric_client.cli.show import clean, console, table, text
from fabricd.model.path import Path, PathAnswer
from fabricd.units import format_bandwidth, format_latency


def show_table(answer: PathAnswer, *, pair: bool) -> None:
    """Print one line for each path; of a pair with ranks, and with what is no candidate."""
    out = console()
    columns = ["SRC", "DST", "TYPE", "TRANSPORT", ">BANDWIDTH", ">LATENCY", "EVIDENCE", "THROUGH"]
    if answer.paths and pair:
        out.print(table(["RANK", *columns], [[path.rank, *_row(path)] for path in answer.paths]))
    elif answer.paths:
        out.print(table(columns, [_row(path) for path in _one_way(answer.paths)]))
    else:
        out.print(text(f"no path from {answer.src or 'here'} to {answer.dst or 'anything'}", "yellow"))
    _show_capacity(out, answer)
    for one in answer.rejected if pair else ():
        out.print(text(f"no candidate: {one.name}: {one.reason}", "dim"))
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


def _row(path: Path) -> tuple[object, ...]:
    through = " ".join(hop.dst.removeprefix("network:") for hop in path.hops[:-1])
    bandwidth = format_bandwidth(path.bandwidth_bytes_per_second) + (" virtual" if path.virtual else "")
    latency = format_latency(path.latency_seconds)
    return (path.src, path.dst, path.type, path.transport, bandwidth, latency, path.evidence, through)


def show_explained(answer: PathAnswer) -> None:
    """Print every path with its hops and the reasons for its place."""
    out = console()
    for path in answer.paths:
        place = f"{path.rank}. " if path.rank else ""
        figures = f"{format_bandwidth(path.bandwidth_bytes_per_second)}, {format_latency(path.latency_seconds)}"
        title = f"{place}{path.src} -> {path.dst}: {path.type} over {path.transport}, {figures}, {path.evidence}"
        out.print(text(title, "bold"))
        for hop in path.hops:
            speed = format_bandwidth(hop.bandwidth_bytes_per_second)
            detail = f", {hop.detail}" if hop.detail else ""
            out.print(text(f"     {hop.src} - {hop.dst}  {hop.link}, {speed}, {hop.evidence}{detail}", "dim"))
        for reason in path.because:
            out.print(text(f"     {reason}"))
    _show_capacity(out, answer)
    for one in answer.rejected:
        out.print(text(f"no candidate: {one.name}: {one.reason}"))
    if not answer.paths:
        out.print(text(f"no path from {clean(answer.src)} to {clean(answer.dst)}", "yellow"))
    _show_notes(out, answer)


def _show_notes(out: Console, answer: PathAnswer) -> None:
    for note in answer.notes:
        out.print(text(note, "yellow"))


def _show_capacity(out: Console, answer: PathAnswer) -> None:
    if answer.capacity is None:
        return
    bounds = ", ".join(f"{hop.src} - {hop.dst}" for hop in answer.capacity.bottleneck)
    figure = format_bandwidth(answer.capacity.bandwidth_bytes_per_second)
    out.print(text(f"all paths at once: {figure}" + (f", bounded by {bounds}" if bounds else "")))
