"""The same all_reduce between two hosts whose names stand for a slow network: by default, by hand, and by the plan.

By default nothing is set. By hand somebody knows which network is fast, and tries what there is to try: for MPI the
network, the transports and the algorithms, for Gloo the network. By the plan a daemon says. All jobs are alive all the
time and measure in turns, so that a busy machine is equally unfair to them. Each of the quick ones is started several
times, for a connection that begins with bad luck keeps it; what counts is the median of the starts' medians.

MPI's ranks stay on a CPU each, as on hosts of their own. Gloo's, which have two threads, may use all, which is better
for them. Prints times, and how many times as fast this client's communicator is as the best by hand of all libraries,
and as MPI's and Gloo's defaults. Needs root on Linux, PyTorch and MPI; about 4 minutes where nothing else runs::

    python -m bench.two_hosts -b 1K -e 64M

On a machine with other work ``--realtime`` has the ranks run before all of it, which stands still meanwhile.
"""

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from demo.daemons import wait_for_peers
from demo.draw import SLOW_BITS_PER_SECOND
from demo.hosts import Host, NetworkSpec, make_hosts
from demo.job import Job, start_plain
from demo.namespaces import why_not
from fabricd.units import format_size, parse_size
from tests.support.host_daemons import PORT, daemons

SLOW, FAST = "slow", "fast"
#: Hosts' names are addresses of the first.
NETWORKS = [NetworkSpec(SLOW, "10.81.0.0/24", bits_per_second=SLOW_BITS_PER_SECOND), NetworkSpec(FAST, "10.82.0.0/24")]
PLAN, PLAN_GLOO, BY_HAND = "fabric_client", "fabric_client.torch", "by hand: "
DEFAULTS = ("mpi", "gloo")
_ON_FAST = {"UCX_NET_DEVICES": FAST}
_ALGORITHM = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"
MPI_BY_HAND: Mapping[str, Mapping[str, str]] = {
    "mpi slow": {"UCX_NET_DEVICES": SLOW},
    "mpi fast": _ON_FAST,
    "mpi fast, tcp": {**_ON_FAST, "UCX_TLS": "tcp,self"},
    "mpi fast, recursive doubling": {**_ON_FAST, _ALGORITHM: "recursive_doubling"},
    "mpi fast, ring": {**_ON_FAST, _ALGORITHM: "ring"},
    "mpi fast, pipelined tree": {
        **_ON_FAST, _ALGORITHM: "tree", "MPIR_CVAR_ALLREDUCE_TREE_PIPELINE_CHUNK_SIZE": "262144",
    },
}  # fmt: skip
GLOO_BY_HAND: Mapping[str, Mapping[str, str]] = {
    f"gloo {network}": {"GLOO_SOCKET_IFNAME": network} for network in (SLOW, FAST)
}
_BURST_SECONDS, _BURST_MOST = 0.05, 400
#: Tells how long a burst may be. On a busy machine the first ones take what others' time slices take.
_PROBE_BYTES = 4 << 20
#: What takes longer is measured twice and not again: by default, and on the slow network.
_SLOW_SECONDS = 0.4
_LEAST_ROUNDS = 5
#: Of all ranks: MPI's wait without letting others run, and lose their turns to whatever else the machine does.
_NICE = -5


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds of one operation."""

    seconds: float  #: median of the starts' medians
    starts: tuple[float, ...]  #: each start's median
    decile: float  #: the first, of all starts together: what one takes that nothing disturbs


class Cases:
    """All jobs, by name."""

    def __init__(
        self, stack: ExitStack, hosts: Sequence[Host], environment: Mapping[str, str], starts: int, *, realtime: bool
    ) -> None:
        """Start them; what is slow by its settings is started once."""
        self.jobs: dict[str, list[Job]] = {}
        self._stack, self._hosts, self._environment = stack, hosts, environment
        cpus = sorted(os.sched_getaffinity(0))
        first = {"DEMO_NICE": str(_NICE), **({"DEMO_REALTIME": "1"} if realtime else {})}
        self._anywhere = [first] * len(hosts)
        self._on_cpu = [{**self._anywhere[rank], "DEMO_CPU": str(cpus[rank % len(cpus)])} for rank in range(len(hosts))]
        self._port = 29500
        self._add_mpi("mpi", {}, 1)
        self._add_gloo("gloo", {}, 1)
        for name, settings in MPI_BY_HAND.items():
            self._add_mpi(BY_HAND + name, settings, 1 if SLOW in settings.values() else starts)
        for name, settings in GLOO_BY_HAND.items():
            self._add_gloo(BY_HAND + name, settings, 1 if SLOW in settings.values() else starts)
        for name, engine in ((PLAN, "fabricd"), (PLAN_GLOO, "fabricd-gloo")):
            for number in range(starts):
                env = {**environment, "FABRICD_GROUP": f"{engine}-{number}"}
                self._add(name, engine, env, self._on_cpu if name == PLAN else self._anywhere)
        for job in (job for jobs in self.jobs.values() for job in jobs):
            job.wait_ready()

    def _add_mpi(self, name: str, settings: Mapping[str, str], starts: int) -> None:
        by_rank = [{**settings, **cpu} for cpu in self._on_cpu]
        for _ in range(starts):
            job = self._stack.enter_context(start_plain(name, self._hosts, by_rank))
            self.jobs.setdefault(name, []).append(job)

    def _add_gloo(self, name: str, settings: Mapping[str, str], starts: int) -> None:
        for _ in range(starts):
            self._port += 1
            meet = {"MASTER_ADDR": self._hosts[0].link(FAST).address, "MASTER_PORT": str(self._port)}
            self._add(name, "gloo", {**meet, **settings}, self._anywhere)

    def _add(self, name: str, engine: str, env: Mapping[str, str], by_rank: Sequence[Mapping[str, str]]) -> None:
        job = self._stack.enter_context(Job(name, self._hosts))
        for rank, own in enumerate(by_rank):
            job.add_rank(engine, {**env, **own, "RANK": str(rank), "WORLD_SIZE": str(len(by_rank))})
        self.jobs.setdefault(name, []).append(job)


def measure(jobs: Mapping[str, Sequence[Job]], size: int, seconds: float, chance: random.Random) -> dict[str, Spread]:
    """Return what an all_reduce of so many bytes takes each job.

    Args:
        jobs: the starts of each, by name.
        size: bytes.
        seconds: to take for it, at least ``_LEAST_ROUNDS`` rounds.
        chance: draws the order of turns.

    Raises:
        SystemExit: a sum was wrong.
    """
    found: dict[str, list[list[float]]] = {}
    turns: list[tuple[Job, list[float]]] = []  # each start with its times
    for name, starts in jobs.items():
        found[name] = [list(burst(job, size, max(2, min(50, _PROBE_BYTES // size)))) for job in starts]
        turns += [(job, times) for job, times in zip(starts, found[name], strict=True) if min(times) < _SLOW_SECONDS]
    end, rounds = monotonic() + seconds, 0
    while rounds < _LEAST_ROUNDS or monotonic() < end:
        for job, times in chance.sample(turns, len(turns)):
            count = max(1, min(_BURST_MOST, int(_BURST_SECONDS / min(times))))
            times += burst(job, size, count + 1)[1:]  # the first one begins after the barrier
        rounds += 1
    return {name: spread(starts) for name, starts in found.items()}


def burst(job: Job, size: int, count: int) -> tuple[float, ...]:
    """Return the seconds of each of some all_reduces; end everything when a sum is wrong."""
    done = job.burst(size, count)
    if done.wrong:
        raise SystemExit(f"{job.name}: {done.wrong} elements of {format_size(size)} are not the sum")
    return done.seconds


def spread(starts: Sequence[Sequence[float]]) -> Spread:
    """Return what times of several starts come to."""
    medians = tuple(sorted(median(times) for times in starts))
    together = sorted(time for times in starts for time in times)
    return Spread(median(medians), medians, together[len(together) // 10])


def report(size: int, found: Mapping[str, Spread]) -> dict[str, Any]:
    """Print what was found at one size; return it as plain data."""
    print(f"{format_size(size)}: load {os.getloadavg()[0]:.1f}")
    for name, one in sorted(found.items(), key=lambda item: item[1].seconds):
        starts = f", starts {one.starts[0] * 1e6:.1f} to {one.starts[-1] * 1e6:.1f}" if len(one.starts) > 1 else ""
        print(f"  {name:38} {one.seconds * 1e6:12.1f} us{starts}; first decile {one.decile * 1e6:.1f}")
    ours = found[PLAN]
    best = min((one for one in found if one.startswith(BY_HAND)), key=lambda name: found[name].seconds)
    ratio = found[best].seconds / ours.seconds
    deciles = min(one.decile for name, one in found.items() if name.startswith(BY_HAND)) / ours.decile
    over = {name: found[name].seconds / ours.seconds for name in DEFAULTS}
    told = ", ".join(f"{factor:.2f} of {name}'s default" for name, factor in over.items())
    print(f"  = {ratio:.2f} of the best by hand ({best.removeprefix(BY_HAND)}; {deciles:.2f} by deciles), {told}")
    gloo = min(found[BY_HAND + name].seconds for name in GLOO_BY_HAND) / found[PLAN_GLOO].seconds
    print(f"  = {gloo:.2f} of Gloo's best by hand, by Gloo on the plan", flush=True)
    seconds = {name: {"median": one.seconds, "decile": one.decile} for name, one in found.items()}
    return {"bytes": size, "best": best, "ratio": ratio, "deciles": deciles, "over": over, "seconds": seconds}


@contextmanager
def all_cases(starts: int, *, realtime: bool = False) -> Iterator[Mapping[str, Sequence[Job]]]:
    """Make the hosts, their daemons and all jobs."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabricd-bench-")))
        hosts = stack.enter_context(make_hosts(2, NETWORKS))
        urls = [f"http://{host.link(SLOW).address}:{PORT}" for host in hosts]
        environment = stack.enter_context(daemons(folder, hosts, urls))
        for host in hosts:
            wait_for_peers(host, len(hosts))
        cases = Cases(stack, hosts, environment, starts, realtime=realtime)
        print("\n".join(f"# {line}" for line in cases.jobs[PLAN][0].explain.splitlines()), flush=True)
        yield cases.jobs


def main() -> int:
    """Measure; return 3 where hosts cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", default="1K", help="smallest size (default 1K)")
    parser.add_argument("-e", default="64M", help="largest size (default 64M)")
    parser.add_argument("-f", type=int, default=4, help="factor from size to size (default 4)")
    parser.add_argument("--starts", type=int, default=3, help="of each quick job (default 3)")
    parser.add_argument("--seconds", type=float, default=12.0, help="for each size, at least (default 12)")
    parser.add_argument("--realtime", action="store_true", help="let nothing else run in a rank's stead")
    parser.add_argument("--json", metavar="FILE", help="also write the figures there")
    options = parser.parse_args()
    if reason := why_not():
        print(f"two hosts are made of Linux namespaces, and this process {reason}")
        return 3
    rows, size, chance = [], parse_size(options.b), random.Random(1)
    with all_cases(options.starts, realtime=options.realtime) as jobs:
        while size <= parse_size(options.e):
            rows.append(report(size, measure(jobs, size, options.seconds, chance)))
            size *= options.f
    worst = min(rows, key=lambda row: float(row["ratio"]))
    print(f"worst: {worst['ratio']:.2f} of the best by hand, at {format_size(worst['bytes'])}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
