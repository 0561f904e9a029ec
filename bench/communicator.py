"""This communicator against MPI under mpiexec: the same all_reduce, in turns, in one run.

Two jobs are alive all the time: one whose ranks met through a daemon (``fabricctl run``), and one of plain mpi4py under
mpiexec with blocking ``Allreduce``. They measure in turns, round by round, so that a busy machine is equally unfair to
both. Where each rank can have a CPU, it stays on one: two ranks that take turns on one CPU measure the kernel. Ranks
that wait for their turn block on a socket and cost nothing.

Each operation is timed, on the rank that takes longest for it. Prints, for each size, the first decile of both jobs,
which is what one takes that nothing disturbs, and the ratio of the deciles and of the medians: 1.00 is as fast as MPI
itself, less is faster::

    python bench/communicator.py -n 2 -b 1K -e 64M
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean, median

from fabricd.units import format_size, parse_size

OURS, MPI = "fabric_client", "mpiexec"
_BURST_BYTES = 16 << 20
_START_SECONDS = 60.0
#: Small sizes are cheap: they get as many rounds as fit into this time.
_SECONDS = 2.0


class Job:
    """The ranks of one job, each behind a connection of its own."""

    def __init__(self, name: str, ranks: int, server: socket.socket, command: list[str]) -> None:
        """Start the ranks and wait until each has connected."""
        self.name = name
        program = [*command, sys.executable, __file__, "--rank-of", name, "--at", server.getsockname()]
        self.process = subprocess.Popen(program, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        server.settimeout(_START_SECONDS)
        self._ranks = [server.accept()[0].makefile("rw") for _ in range(ranks)]

    def measure(self, size: int, count: int) -> list[float]:
        """Return the seconds of each of ``count`` all_reduces, on the rank that took longest for it."""
        for rank in self._ranks:
            rank.write(json.dumps([size, count]) + "\n")
            rank.flush()
        answers = [json.loads(rank.readline()) for rank in self._ranks]
        if any(answer["wrong"] for answer in answers):
            raise SystemExit(f"{self.name}: wrong results at {size} bytes")
        return list(map(max, zip(*(answer["seconds"] for answer in answers), strict=True)))

    def close(self) -> None:
        """Let the ranks end."""
        for rank in self._ranks:
            rank.close()
        self.process.wait(30)


@contextmanager
def jobs(ranks: int) -> Iterator[list[Job]]:
    """Run both jobs for the time of the block."""
    programs = Path(sys.executable).parent
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(socket.socket(socket.AF_UNIX))
        server.bind(str(Path(folder) / "s"))
        server.listen(2 * ranks)
        found = []
        for name, command in (
            (OURS, [str(programs / "fabricctl"), "run", "-n", str(ranks), "--"]),
            (MPI, [str(programs / "mpiexec"), "-n", str(ranks)]),
        ):
            found.append(Job(name, ranks, server, command))
            stack.callback(found[-1].close)
        yield found


def run_rank(name: str, address: str) -> None:
    """Be a rank: measure when told to, until the connection ends."""
    import numpy as np

    rank, size, all_reduce, barrier, close = open_ours() if name == OURS else open_mpi()
    cpus = sorted(os.sched_getaffinity(0))
    if size <= len(cpus):  # only now: a rank that has one CPU when it starts thinks that all ranks share it
        os.sched_setaffinity(0, {cpus[rank]})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        stream = connection.makefile("rw")
        for line in stream:
            nbytes, count = json.loads(line)
            array = np.full(nbytes // 4, rank + 1, dtype=np.float32)
            out = np.zeros_like(array)
            all_reduce(array, out)
            barrier()
            clock = [time.perf_counter()]
            for _ in range(count):
                all_reduce(array, out)
                clock.append(time.perf_counter())
            seconds = [end - begin for begin, end in pairwise(clock)]
            wrong = int(np.count_nonzero(out != size * (size + 1) / 2))
            stream.write(json.dumps({"seconds": seconds, "wrong": wrong}) + "\n")
            stream.flush()
    close()


World = tuple[int, int, Callable[..., object], Callable[[], object], Callable[[], object]]


def open_ours() -> World:
    from fabric_client import create_communicator

    comm = create_communicator(engine="mpi")
    return comm.rank, comm.size, lambda array, out: comm.all_reduce(array, out=out), comm.barrier, comm.close


def open_mpi() -> World:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    return comm.Get_rank(), comm.Get_size(), comm.Allreduce, comm.Barrier, MPI.Finalize


def sizes(begin: str, end: str, factor: int) -> Iterator[int]:
    """Yield the sizes in bytes."""
    size = parse_size(begin)
    while size <= parse_size(end):
        yield size
        size *= factor


def measure_in_turns(both: Sequence[Job], size: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each job's all_reduces of one size."""
    count = max(3, min(200, _BURST_BYTES // size))
    found: dict[str, list[float]] = {job.name: [] for job in both}
    enough = time.monotonic() + _SECONDS
    turns = 0
    while turns < rounds or time.monotonic() < enough:
        for job in both if turns % 2 else reversed(both):
            found[job.name] += job.measure(size, count)[1:]  # the first one begins after the barrier, which costs
        turns += 1
    return found


def spread(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the first decile and the median."""
    ordered = sorted(seconds)
    return ordered[len(ordered) // 10], median(ordered)


def compare(ranks: int, begin: str, end: str, factor: int, rounds: int) -> list[dict[str, float]]:
    """Measure both jobs in turns and print a line for each size."""
    where = f"{ranks} ranks on {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    print(f"# all_reduce of float, {where}, {rounds} rounds or more, in turns; times are first deciles")
    columns = f"{'size':>6} {'times':>6} {MPI + ' us':>14} {OURS + ' us':>18} {'ratio':>7} {'of medians':>11}"
    print(f"# {columns} {'busbw GB/s':>11}")
    rows = []
    with jobs(ranks) as both:
        for size in sizes(begin, end, factor):
            seconds = measure_in_turns(both, size, rounds)
            (mpi, mpi_median), (ours, ours_median) = (spread(seconds[name]) for name in (MPI, OURS))
            bandwidth = size / ours * 2 * (ranks - 1) / ranks / 1e9
            print(
                f"{format_size(size):>8} {len(seconds[OURS]):>6} {mpi * 1e6:>14.1f} {ours * 1e6:>18.1f} "
                f"{ours / mpi:>7.2f} {ours_median / mpi_median:>11.2f} {bandwidth:>11.2f}",
                flush=True,
            )
            rows.append({"bytes": size, MPI: mpi, OURS: ours, "ratio": ours / mpi, "median": ours_median / mpi_median})
    print(f"# geometric mean of the ratios: {geometric_mean(row['ratio'] for row in rows):.2f}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=2)
    parser.add_argument("-b", "--begin", default="1K")
    parser.add_argument("-e", "--end", default="64M")
    parser.add_argument("-f", "--factor", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", metavar="FILE", help="also write the figures there, in seconds")
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    parser.add_argument("--at", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of:
        run_rank(options.rank_of, options.at)
        return
    rows = compare(options.ranks, options.begin, options.end, options.factor, options.rounds)
    if options.json:
        Path(options.json).write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
