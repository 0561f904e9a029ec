"""Prints the benchmark as nccl-tests does, so that its readers and its scripts understand it."""

from collections.abc import Sequence
from typing import Any

from fabric_client.cli.bench_measure import Row, Timing
from fabric_client.cli.bench_options import BenchOptions
from fabric_client.communicator import Communicator
from fabricd.model.codec import to_builtins

HEADER = """\
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)"""


def title(comm: Communicator, options: BenchOptions) -> str:
    """Return the lines above the table: what runs, and on which path."""
    lines = [
        f"# fabricctl bench {options.collective}: {comm.size} ranks over {options.engine}, "
        f"iterations {options.iterations}, warmup {options.warmup}, every element checked"
    ]
    lines.extend(f"# {line}" for line in comm.explain().splitlines())
    return "\n".join(lines)


def row_text(row: Row) -> str:
    """Return one line of the table."""
    left = f"{row.bytes:12d}  {row.count:12d}  {row.type:>8s}  {row.op:>6s}  {row.root:6d}"
    return f"{left}  {_timing_text(row.out_of_place)}  {_timing_text(row.in_place)}"


def summary(rows: Sequence[Row]) -> str:
    """Return the lines below the table."""
    wrong = wrong_elements(rows)
    return (
        f"# Out of bounds values : {wrong} {'OK' if wrong == 0 else 'FAILED'}\n"
        f"# Avg bus bandwidth    : {average_bus_bandwidth(rows) / 1e9:g}\n#"
    )


def report(comm: Communicator, options: BenchOptions, rows: Sequence[Row]) -> dict[str, Any]:
    """Return all of it for programs, in SI base units."""
    return {
        "options": to_builtins(options),
        "group": comm.group,
        "ranks": comm.size,
        "explain": comm.explain().splitlines(),
        "rows": to_builtins(rows),
        "wrong": wrong_elements(rows),
        "average_bus_bytes_per_second": average_bus_bandwidth(rows),
    }


def wrong_elements(rows: Sequence[Row]) -> int:
    """Return how many elements were wrong in the whole run."""
    return sum(timing.wrong for timing in _timings(rows))


def average_bus_bandwidth(rows: Sequence[Row]) -> float:
    """Return the average over all sizes and both ways, bytes/s."""
    timings = _timings(rows)
    return sum(timing.bus_bytes_per_second for timing in timings) / len(timings) if timings else 0.0


def _timings(rows: Sequence[Row]) -> list[Timing]:
    return [timing for row in rows for timing in (row.out_of_place, row.in_place) if timing is not None]


def _timing_text(timing: Timing | None) -> str:
    if timing is None:
        return f"{'N/A':>7s} {'N/A':>7s} {'N/A':>7s} {'N/A':>6s}"
    microseconds = timing.seconds * 1e6
    time_text = f"{microseconds:7.2f}" if microseconds < 1000 else f"{microseconds:7.0f}"
    algorithm, bus = timing.algorithm_bytes_per_second / 1e9, timing.bus_bytes_per_second / 1e9
    return f"{time_text} {algorithm:7.2f} {bus:7.2f} {timing.wrong:6d}"
