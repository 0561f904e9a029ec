"""MPI and Gloo between two hosts whose names stand for a slow network: by default, by hand, and by the plan.

All jobs are alive all the time and measure in turns, so that a busy machine is equally unfair to them; the best of each
counts. Prints bus bandwidth and, for each engine, how the plan compares with the best choice by hand and with the
default. Needs root on Linux, PyTorch and MPI::

    python -m bench.two_hosts -b 64K -e 16M
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from demo.daemons import wait_for_peers
from demo.draw import SLOW_BITS_PER_SECOND
from demo.hosts import Host, NetworkSpec, make_hosts
from demo.job import Job, start_plain
from demo.measure import Series, measure_in_turns
from demo.namespaces import why_not
from fabricd.units import format_size, parse_size
from tests.support.host_daemons import PORT, daemons

DEFAULT, PLAN, SLOW, FAST = "default", "plan", "slow", "fast"
#: Hosts' names are addresses of the first.
NETWORKS = [NetworkSpec(SLOW, "10.81.0.0/24", bits_per_second=SLOW_BITS_PER_SECOND), NetworkSpec(FAST, "10.82.0.0/24")]


@contextmanager
def cases(hosts: Sequence[Host], environment: Mapping[str, str]) -> Iterator[dict[str, list[Job]]]:
    """Start all jobs: each engine by default, on each network by hand, and by the plan."""
    with ExitStack() as stack:
        found: dict[str, list[Job]] = {}
        settings = {DEFAULT: "", f"by hand: {SLOW}": SLOW, f"by hand: {FAST}": FAST}
        for number, (case, device) in enumerate(settings.items()):
            by_hand = [{"UCX_NET_DEVICES": device} if device else {}] * len(hosts)
            found[f"mpi {case}"] = [stack.enter_context(start_plain(f"mpi {case}", hosts, by_hand))]
            job = stack.enter_context(Job(f"gloo {case}", hosts))
            meet = {"MASTER_ADDR": hosts[0].link(FAST).address, "MASTER_PORT": str(29500 + number)}
            add_ranks(job, "gloo", {**meet, **({"GLOO_SOCKET_IFNAME": device} if device else {})}, len(hosts))
            found[job.name] = [job]
        for engine, name in (("fabricd", "mpi"), ("fabricd-gloo", "gloo")):
            job = stack.enter_context(Job(f"{name} {PLAN}", hosts))
            add_ranks(job, engine, {**environment, "FABRICD_GROUP": engine}, len(hosts))
            found[job.name] = [job]
        for jobs in found.values():
            jobs[0].wait_ready()
        yield found


def add_ranks(job: Job, engine: str, env: Mapping[str, str], size: int) -> None:
    """Start a rank on each host."""
    for rank in range(size):
        job.add_rank(engine, {**env, "RANK": str(rank), "WORLD_SIZE": str(size)})


def report(series: Mapping[str, Mapping[int, Series]], sizes: Sequence[int]) -> None:
    """Print bus bandwidth of each case, and the plan's ratios."""
    for size in sizes:
        print(f"{format_size(size)}:")
        for engine in ("mpi", "gloo"):
            speed = {
                name.removeprefix(f"{engine} "): one[size].bus_bytes_per_second
                for name, one in series.items()
                if name.startswith(engine)
            }
            best = max(value for name, value in speed.items() if name.startswith("by hand"))
            shown = ", ".join(f"{name} {value / 1e9:.3f} GB/s" for name, value in speed.items())
            print(f"  {engine}: {shown}")
            ratios = f"{speed[PLAN] / best:.2f}, plan / default {speed[PLAN] / speed[DEFAULT]:.2f}"
            print(f"  {engine}: plan / best by hand {ratios}", flush=True)


def main() -> int:
    """Measure; return 3 where hosts cannot be made."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-b", default="64K", help="smallest size (default 64K)")
    parser.add_argument("-e", default="16M", help="largest size, in steps of 16 (default 16M)")
    parser.add_argument("--rounds", type=int, default=1, help="of each size, and at most as many again")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what runs")
    options = parser.parse_args()
    if reason := why_not():
        print(f"two hosts are made of Linux namespaces, and this process {reason}")
        return 3
    sizes, size = [], parse_size(options.b)
    while size <= parse_size(options.e):
        sizes.append(size)
        size *= 16
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabricd-bench-")))
        hosts = stack.enter_context(make_hosts(2, NETWORKS))
        urls = [f"http://{host.link(SLOW).address}:{PORT}" for host in hosts]
        environment = stack.enter_context(daemons(folder, hosts, urls))
        for host in hosts:
            wait_for_peers(host, len(hosts))
        jobs = stack.enter_context(cases(hosts, environment))
        series = measure_in_turns(
            jobs,
            sizes,
            options.rounds,
            more_rounds=options.rounds,
            ranks=len(hosts),
            progress=lambda text: print(text, file=sys.stderr) if options.verbose else None,
            chance=random.Random(1),
        )
    if any(one[size].wrong for one in series.values() for size in sizes):
        print("wrong results")
        return 1
    report(series, sizes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
