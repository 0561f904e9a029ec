"""Measures a collective over a range of sizes, and checks every result."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from fabric_client.cli.bench_cases import COLLECTIVES, OPERATORS, TYPES, Collective, Spec, Trial, count_wrong
from fabric_client.communicator import Communicator
from fabricd.errors import InputError
from fabricd.units import parse_size


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure; names and meanings are nccl-tests'."""

    collective: str = "all_reduce"
    begin: str = "1K"  #: smallest size
    end: str = "64M"  #: largest size
    factor: int = 4  #: from size to size
    type: str = "float"
    op: str = "sum"
    root: int = 0
    iterations: int = 20
    warmup: int = 5
    json: bool = False

    def check(self) -> None:
        """Refuse what cannot be measured.

        Raises:
            InputError: says what and lists the valid choices.
        """
        for what, value, valid in (
            ("collective", self.collective, COLLECTIVES),
            ("type", self.type, TYPES),
            ("operator", self.op, OPERATORS),
        ):
            if value not in valid:
                raise InputError(f"no {what} called {value!r}", hint="valid: " + ", ".join(valid))
        if self.factor < 2 or self.iterations < 1 or self.warmup < 0 or self.root < 0:
            raise InputError("factor must be 2 or more, iterations 1 or more, warmup and root 0 or more")
        if not 0 < parse_size(self.begin) <= parse_size(self.end):
            raise InputError(f"sizes from {self.begin} to {self.end} are none")
        if self.op == "avg" and np.dtype(TYPES[self.type]).kind != "f":
            raise InputError(f"avg of {self.type} has no meaning", hint="valid: half, float, double")

    def sizes(self) -> Iterator[int]:
        """Yield the sizes in bytes."""
        size, last = parse_size(self.begin), parse_size(self.end)
        while size <= last:
            yield size
            size *= self.factor


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
        options: checked.
        progress: told the number of the size that begins now, how many there are, and the size.
    """
    collective = COLLECTIVES[options.collective]
    if collective.rooted and options.root >= comm.size:
        raise InputError(f"root {options.root} is not a rank", hint=f"valid: 0 to {comm.size - 1}")
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
            root=options.root if collective.rooted else -1,
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
