"""Measure several jobs in turns, so that whatever else this machine does hits all of them alike."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from demo.job import Burst, Job

_BURST_SECONDS = 0.1  # short, so that jobs take turns faster than the machine's mood changes
_BURST_MOST = 20
#: A job gets as many bursts in a round as take this long, so the best of a quick one is sought among many.
_ROUND_SECONDS = 1.2
#: A best that was a stroke of luck, or that the machine never allowed, is not found again: then there are more rounds.
_SETTLED_COUNT, _SETTLED_WITHIN = 3, 1.03
MORE_ROUNDS = 8


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
    def settled(self) -> bool:
        """Whether several all_reduces came close to the best."""
        times = sorted(seconds for burst in self.bursts for seconds in burst.seconds)
        return len(times) >= _SETTLED_COUNT and times[_SETTLED_COUNT - 1] <= _SETTLED_WITHIN * times[0]

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
    jobs: Mapping[str, Sequence[Job]],
    sizes: Sequence[int],
    rounds: int,
    *,
    more_rounds: int = MORE_ROUNDS,
    ranks: int,
    progress: Callable[[str], None],
    chance: random.Random,
) -> dict[str, dict[int, Series]]:
    """Return each job's series by size.

    Each round runs every job, in bursts and in an order drawn anew. All_reduces before the first round warm up, are not
    counted, and tell how long a burst is. While a quick job's best has not been found several times, all quick jobs
    get more rounds, equally many. Of a quick job all starts take turns: a connection that begins with bad luck (which
    core serves it, how its buffers grew) keeps it, a fifth slower for as long as it lives.

    Args:
        jobs: by name, ready; of each, the same job started several times.
        sizes: bytes.
        rounds: at each size, at least.
        more_rounds: at most, for quick jobs.
        ranks: in each job.
        progress: is told what runs.
        chance: draws the orders.
    """
    result: dict[str, dict[int, Series]] = {name: {} for name in jobs}
    for size in sizes:
        series = {}
        for name, starts in jobs.items():
            progress(f"{size:,} bytes, warming up: {name}")
            series[name] = Series(size=size, ranks=ranks)
            plan_turns(series[name], *starts[0].burst(size, 1).seconds)
            result[name][size] = series[name]
        quick = [name for name in jobs if series[name].turns > 1]
        using = {name: starts if name in quick else starts[:1] for name, starts in jobs.items()}
        for job in (job for name in quick for job in using[name][1:]):
            job.burst(size, 1)
        for number in range(rounds + more_rounds):
            if number >= rounds and all(series[name].settled for name in quick):
                break
            turns = [name for name in (jobs if number < rounds else quick) for _ in range(series[name].turns)]
            for name in chance.sample(turns, len(turns)):
                progress(f"{size:,} bytes, round {number + 1}: {name}")
                job = using[name][len(series[name].bursts) % len(using[name])]
                series[name].bursts.append(job.burst(size, series[name].count))
    return result


def plan_turns(series: Series, seconds: float) -> None:
    """Decide how many all_reduces a burst has and how many bursts a round, from the time of one all_reduce."""
    series.count = max(1, min(_BURST_MOST, int(_BURST_SECONDS / seconds)))
    series.turns = max(1, int(_ROUND_SECONDS / (series.count * seconds)))
