"""Results of a machine itself, and how they correct the fitted model.

The largest message tells how much of the planned bandwidth is real, so it scales bandwidth at all sizes and for other
collectives. Between the sizes that were measured, the measured times stand.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.plan.nccl.job import Collective, Job
from fabricd.plan.predict.conditions import Conditions

#: A path can be that much slower than it says, but hardly faster.
MIN_SCALE, MAX_SCALE = 1 / 64, 2.0
_SCHEMA = 1


class TimeBySize(Protocol):
    """A model of time."""

    def time(self, size: int) -> float:
        """Return the time of a message, us."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured message."""

    bytes: int
    time_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """Results of one collective on so many ranks.

    Attributes:
        collective: in NCCL's name.
        nodes: machines, or NVLink domains.
        ranks: GPUs in all.
        transport: between the nodes.
        scale: factor on the model's bandwidth, so that it gives the time of the largest message.
        points: measured, by size; times do not fall.
    """

    collective: str
    nodes: int
    ranks: int
    transport: str
    scale: float
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Correction:
    """What a calibration says about one job and collective."""

    scale: float
    points: tuple[Point, ...]  #: none if only the scale is known
    basis: str

    def covers(self, size: int) -> bool:
        """Return whether smaller and larger messages, or this very one, were measured."""
        return bool(self.points) and self.points[0].bytes <= size <= self.points[-1].bytes

    def time(self, curve: TimeBySize, size: int) -> float:
        """Return the time of a message, us, of a model whose bandwidth is scaled already."""
        if not self.points:
            return curve.time(size)
        sizes = [point.bytes for point in self.points]
        if not self.covers(size):
            end = self.points[0 if size < sizes[0] else -1]
            return curve.time(size) * end.time_seconds * 1e6 / curve.time(end.bytes)
        above = bisect.bisect_left(sizes, size)
        low, high = self.points[max(above - 1, 0)], self.points[above]
        if size == high.bytes:
            return high.time_seconds * 1e6
        share = math.log(size / low.bytes) / math.log(high.bytes / low.bytes)
        return float(1e6 * low.time_seconds ** (1 - share) * high.time_seconds**share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What ``fabricctl calibrate`` writes.

    Attributes:
        schema: 1, since 2026-11.
        results: at most one for each collective and size of job.
    """

    schema: int = _SCHEMA
    results: tuple[Calibrated, ...] = ()

    def lookup(self, collective: Collective, job: Job, conditions: Conditions) -> Correction | None:
        """Return what is known for a job: its own results, else the scale of the most alike; None if nothing is.

        Only results of as far a reach count: one machine's say nothing about the network, nor the reverse.
        """
        alike = [
            one
            for one in self.results
            if (one.nodes > 1) == (job.nodes > 1) and (one.nodes == 1 or one.transport == conditions.transport)
        ]
        if not alike:
            return None
        same = [one for one in alike if one.collective == collective]
        own = next((one for one in same if (one.nodes, one.ranks) == (job.nodes, job.ranks)), None)
        if own is not None:
            count = len(own.points)
            return Correction(own.scale, own.points, f"calibrated with {count} of this job's own results")
        logs = [math.log(one.scale) for one in same or alike]
        used = ", ".join(sorted({f"{one.collective} on {one.ranks} ranks" for one in same or alike}))
        return Correction(math.exp(sum(logs) / len(logs)), (), f"bandwidth scaled by results of {used}")


def rising(points: Sequence[Point]) -> tuple[Point, ...]:
    """Return points with the nearest times that do not fall with size (pooling adjacent violators, in logarithms)."""
    pools: list[tuple[float, int]] = []
    for point in points:
        total, count = math.log(point.time_seconds), 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    levels = [math.exp(total / count) for total, count in pools for _ in range(count)]
    return tuple(Point(bytes=point.bytes, time_seconds=level) for point, level in zip(points, levels, strict=True))


def read_calibration(data: bytes | str, *, source: str) -> Calibration:
    """Return what ``fabricctl calibrate`` wrote.

    Args:
        data: JSON.
        source: what to call it in messages.

    Raises:
        ParseError: it is no calibration, is of a later version, or holds figures that cannot be.
    """
    calibration = from_json(data, Calibration, what=source)
    if calibration.schema != _SCHEMA:
        raise ParseError(
            f"{source} has schema {calibration.schema}, not {_SCHEMA}", hint="fabricctl calibrate makes it anew"
        )
    if not calibration.results:
        raise ParseError(f"{source} holds no results", hint="fabricctl calibrate RESULTS --out FILE makes one")
    for number, one in enumerate(calibration.results):
        if fault := _fault(one):
            raise ParseError(f"{source}: results[{number}]: {fault}", hint="fabricctl calibrate makes it anew")
    return calibration


def _fault(one: Calibrated) -> str:
    """Return what cannot be, "" if nothing."""
    if one.collective not in list(Collective):
        return f"no collective is called {one.collective[:40]!r}"
    if not MIN_SCALE * 0.99 <= one.scale <= MAX_SCALE * 1.01:
        return f"a scale of {one.scale:g}"
    if not one.points or not all(point.bytes > 0 and 0 < point.time_seconds < math.inf for point in one.points):
        return "no points, or one without bytes or time"
    if any(low.bytes >= high.bytes or low.time_seconds > high.time_seconds for low, high in pairwise(one.points)):
        return "bytes and times of points do not rise"
    return ""
