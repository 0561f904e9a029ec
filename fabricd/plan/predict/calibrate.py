"""From results of a machine to its calibration."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from fabricd.errors import InputError
from fabricd.plan.nccl.emulate import NcclPlan
from fabricd.plan.nccl.job import COLLECTIVES
from fabricd.plan.predict.calibration import MAX_SCALE, MIN_SCALE, Calibrated, Point, rising
from fabricd.plan.predict.conditions import Conditions
from fabricd.plan.predict.model import Curve, bus_factor, curve_of
from fabricd.plan.predict.nccl_tests import Row, Run

#: Below this the time of a message says little about bandwidth.
_LEAST_BYTES = 1 << 20
#: Two decimals of small bandwidths, and what rounding leaves of larger ones.
_TOLERANCE = 0.01


def calibrated(runs: Sequence[Run], name: str, plan: NcclPlan, conditions: Conditions) -> Calibrated:
    """Return what runs of one collective on one job say.

    Args:
        runs: of as many ranks as the plan has.
        name: the collective, "all_reduce".
        plan: NCCL's, of the machines that were measured, ports merged.
        conditions: of these machines.

    Raises:
        InputError: a collective without a model, results of another number of ranks, or none of 1 MiB and more.
    """
    collective = COLLECTIVES.get(name)
    curve = None if collective is None else curve_of(plan, conditions, collective)
    if collective is None or curve is None:
        what = f"no model of {name!r}" if name else "the results do not say which collective they are of"
        raise InputError(what, hint=f"--collective {'|'.join(COLLECTIVES)}")
    for run in runs:
        _check_ranks(run, name, bus_factor(collective, plan.job.ranks), plan.job.ranks)
    rows = [row for run in runs for row in run.rows]
    sizes = sorted({row.bytes for row in rows})
    points = rising(
        [
            Point(bytes=size, time_seconds=statistics.median(_time(row) for row in rows if row.bytes == size) / 1e6)
            for size in sizes
        ]
    )
    last = points[-1]
    if last.bytes < _LEAST_BYTES:
        raise InputError(f"no result of {name} is for 1 MiB or more", hint="one of 1 GiB tells the bandwidth best")
    return Calibrated(
        collective=collective,
        nodes=plan.job.nodes,
        ranks=plan.job.ranks,
        transport=conditions.transport,
        scale=scale_of(curve, last.bytes, last.time_seconds * 1e6),
        points=points,
    )


def scale_of(curve: Curve, size: int, time: float) -> float:
    """Return the factor on bandwidth with which a model gives a measured time, 1/64 to 2.

    Args:
        curve: the model, unscaled.
        size: of the message, bytes.
        time: measured, us.
    """
    low, high = math.log(MIN_SCALE), math.log(MAX_SCALE)
    for _ in range(30):
        middle = (low + high) / 2
        if replace(curve, scale=math.exp(middle)).time(size) > time:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def _time(row: Row) -> float:
    """Return the time in us; of very long ones bandwidth has more digits."""
    return row.time if row.time < 1e7 or not row.algbw else row.bytes / row.algbw / 1e3


def _check_ranks(run: Run, name: str, factor: float, ranks: int) -> None:
    """Raise if a run is of another job: it lists other ranks, or its two bandwidths have another ratio."""
    if run.hosts and len(run.hosts) != ranks:
        raise InputError(
            f"{run.source}: {len(run.hosts)} ranks, but the topology makes {ranks}",
            hint="name the topology of the GPUs that ran, and --nodes",
        )
    largest = max(run.rows, key=lambda row: row.algbw)
    if largest.algbw >= 1 and abs(largest.busbw / largest.algbw - factor) > _TOLERANCE * factor + 0.01 / largest.algbw:
        raise InputError(
            f"{run.source}: busbw is {largest.busbw / largest.algbw:.3f} times algbw, "
            f"but {factor:.3f} for {name} of {ranks} ranks",
            hint="name the topology of the GPUs that ran, --nodes, and --collective if the file does not say it",
        )
