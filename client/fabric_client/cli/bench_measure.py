"""Measures a collective over a range of sizes, and checks every result."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fabric_client.cli.bench_cases import COLLECTIVES, Collective, Spec, Trial, count_wrong
from fabric_client.cli.bench_options import OPERATORS, ROOTED, TYPES, BenchOptions
from fabric_client.communicator import Communicator


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One way (out of place or in place) at one size."""

    seconds: float  #: of one operation, average over the iterations and the ranks
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong: int  #: elements, over all ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size."""

    bytes: int
    count: int  #: elements, of one block where the collective has blocks
    type: str
    op: str  #: "none" for what does not reduce
    root: int  #: -1 for what has no root
    out_of_place: Timing
    in_place: Timing | None


def measure(comm: Communicator, options: BenchOptions, progress: Callable[[int, int, int], None]) -> Iterator[Row]:
    """Yield a row for each size, on every rank the same.

    Args:
        comm: what to measure.
        options: checked, for as many ranks.
        progress: told the number of the size that begins now, how many there are, and the size.
    """
    collective = COLLECTIVES[options.collective]
    dtype = np.dtype(TYPES[options.type])
    sizes = list(options.sizes())
    for number, asked in enumerate(sizes):
        progress(number, len(sizes), asked)
        blocks = comm.size if collective.blocks else 1
        count = max(1, asked // dtype.itemsize // blocks)
        spec = Spec(dtype=dtype, op=OPERATORS[options.op], root=options.root, count=count)
        trial = collective.make(comm, spec)
        size = count * blocks * dtype.itemsize
        yield Row(
            bytes=size,
            count=count,
            type=options.type,
            op=options.op if collective.reduces else "none",
            root=options.root if options.collective in ROOTED else -1,
            out_of_place=_out_of_place(comm, trial, collective, options, size),
            in_place=_in_place(comm, trial, collective, options, size),
        )


def _out_of_place(comm: Communicator, trial: Trial, collective: Collective, options: BenchOptions, size: int) -> Timing:
    trial.reset()
    seconds = _time(comm, trial.run, options)
    trial.reset()
    trial.run()
    return _timing(comm, seconds, count_wrong(trial.result, trial.expected), collective, size)


def _in_place(
    comm: Communicator, trial: Trial, collective: Collective, options: BenchOptions, size: int
) -> Timing | None:
    if trial.run_in_place is None:
        return None
    trial.reset()
    trial.run_in_place()  # checked before it is timed: repeated in place, the data become something else
    wrong = count_wrong(trial.result_in_place, trial.expected)
    trial.reset()
    with np.errstate(all="ignore"):
        seconds = _time(comm, trial.run_in_place, options)
    return _timing(comm, seconds, wrong, collective, size)


def _time(comm: Communicator, run: Callable[[], object], options: BenchOptions) -> float:
    for _ in range(options.warmup):
        run()
    comm.barrier()
    started = time.perf_counter()
    for _ in range(options.iterations):
        run()
    mine = (time.perf_counter() - started) / options.iterations
    return float(comm.all_reduce(np.asarray(mine), "average"))


def _timing(comm: Communicator, seconds: float, wrong: int, collective: Collective, size: int) -> Timing:
    algorithm = size / seconds
    return Timing(
        seconds=seconds,
        algorithm_bytes_per_second=algorithm,
        bus_bytes_per_second=algorithm * collective.bus_factor(comm.size),
        wrong=int(comm.all_reduce(np.asarray(wrong))),
    )
