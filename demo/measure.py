"""Measure several jobs in turns, so that whatever else this machine does hits all of them alike."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from demo.job import Burst, Job

_BURST_SECONDS = 0.1  # short, so that jobs take turns faster than the machine's mood changes
_BURST_MOST = 20
_QUICK_TURNS = 12  # a quick job gets more turns a round: its best is sought among many more, at little cost


@dataclass(kw_only=True)
class Series:
    """Bursts of one job at one size."""

    size: int
    ranks: int
    bursts: list[Burst] = field(default_factory=list)
    count: int = 1  #: all_reduces in a burst
    turns: int = 1  #: bursts in a round

    @property
    def seconds(self) -> float:
        """Time of the best all_reduce."""
        return min(min(burst.seconds) for burst in self.bursts)

    @property
    def bus_bytes_per_second(self) -> float:
        """Bus bandwidth as nccl-tests define it: what each wire of a perfect ring would have carried."""
        return self.size / self.seconds * 2 * (self.ranks - 1) / self.ranks

    @property
    def wrong(self) -> int:
        """Elements that were not the sum, over all bursts."""
        return sum(burst.wrong for burst in self.bursts)

    def sent_bytes(self, network: str) -> float:
        """Bytes that all hosts' interfaces on a network sent for one all_reduce. Source: their own counters."""
        return sum(burst.sent_bytes[network] for burst in self.bursts) / sum(
            len(burst.seconds) for burst in self.bursts
        )

    def sent_share(self, network: str) -> float:
        """Share of all bytes sent that went over one network, 0 to 1."""
        return self.sent_bytes(network) / sum(map(self.sent_bytes, self.bursts[0].sent_bytes))


def measure_in_turns(
    jobs: Mapping[str, Job],
    sizes: Sequence[int],
    rounds: int,
    *,
    ranks: int,
    progress: Callable[[str], None],
    chance: random.Random,
) -> dict[str, dict[int, Series]]:
    """Return each job's series by size.

    Each round runs one burst of every job, or several of a quick one, in an order drawn anew. An all_reduce before
    the first round warms up, is not counted, and tells how many a burst should have.

    Args:
        jobs: by name, ready.
        sizes: bytes.
        rounds: bursts of each job and size.
        ranks: in each job.
        progress: is told what runs.
        chance: draws the orders.
    """
    series = {name: {size: Series(size=size, ranks=ranks) for size in sizes} for name in jobs}
    for size in sizes:
        for name, job in jobs.items():
            progress(f"{size:,} bytes, warming up: {name}")
            plan_turns(series[name][size], *job.burst(size, 1).seconds)
        turns = [name for name in jobs for _ in range(series[name][size].turns)]
        for number in range(rounds):
            for name in chance.sample(turns, len(turns)):
                progress(f"{size:,} bytes, round {number + 1} of {rounds}: {name}")
                series[name][size].bursts.append(jobs[name].burst(size, series[name][size].count))
    return series


def plan_turns(series: Series, seconds: float) -> None:
    """Decide how long a burst is and how many there are in a round, from the time of one all_reduce."""
    series.count = max(1, min(_BURST_MOST, int(_BURST_SECONDS / seconds)))
    series.turns = _QUICK_TURNS if series.count * seconds <= _BURST_SECONDS else 1
