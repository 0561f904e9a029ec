"""The two-host trap: a slow network that no host can tell from the fast one, and who walks into it.

Two hosts on this machine (see ``demo.hosts``), a daemon on each, two networks with names, subnets and order drawn at
random; one of them carries 200 Mbit/s, shaped where no host sees it. The same all_reduce runs as MPI as it is, on each
network chosen by hand, and on the daemon's plan. ``python -m demo.trap --runs 10 --json`` judges ten draws.
"""

import argparse
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from demo.daemons import Daemon, wait_for_peers
from demo.draw import Draw, draw
from demo.hosts import Host, make_hosts
from demo.job import Job, start_plain
from demo.measure import MORE_ROUNDS, Series, measure_in_turns
from demo.namespaces import why_not
from demo.report import Verdict, describe, excuse, judge, table
from fabricd.errors import FabricError

DEFAULT, PLAN = "library default", "fabricd's plan"
PORT = 7470
STARTS = 3  #: of each job, see ``demo.measure.measure_in_turns``
SIZES = (1 << 20, 16 << 20, 64 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run of the trap."""

    draw: Draw
    series: Mapping[str, Mapping[int, Series]]  #: by case and size
    explain: str  #: the plan's own words
    verdict: Verdict


def by_hand(network: str) -> str:
    """Return the name of the case in which a person chose that network."""
    return f"by hand: {network}"


@contextmanager
def planned_jobs(drawn: Draw, hosts: Sequence[Host], folder: Path, starts: int) -> Iterator[list[Job]]:
    """Run a daemon on each host, and jobs whose ranks ask the first one."""
    urls = [f"http://{host.link(drawn.control).address}:{PORT}" for host in hosts]
    files = {name: _secret_file(folder / name) for name in ("token", "secret")}
    with ExitStack() as stack:
        daemons = []
        for host, url in zip(hosts, urls, strict=True):
            peers = [word for peer in urls if peer != url for word in ("--peer", peer)]
            names = ["--host", "0.0.0.0", "--port", str(PORT), "--node-id", host.name]  # noqa: S104 - on a made host
            arguments = [*names, "--token-file", files["token"], *peers]
            daemons.append(stack.enter_context(Daemon(host.name, folder, arguments, start=_starter(host))))
        for daemon in daemons:
            daemon.wait_ready()
        for host in hosts:
            wait_for_peers(host, len(hosts))
        jobs = [stack.enter_context(Job(PLAN, hosts)) for _ in range(starts)]
        for number, job in enumerate(jobs):
            for rank in range(len(hosts)):
                env = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts)), "FABRICD_URL": urls[0]}
                env |= {"FABRICD_GROUP": f"trap-{number}", "FABRICD_GROUP_SECRET_FILE": files["secret"]}
                job.add_rank("fabricd", {**env, "FABRICD_TOKEN_FILE": files["token"]})
        yield jobs


def _starter(host: Host) -> Callable[..., Any]:
    return lambda command, output: host.popen(command, stdout=output, stderr=output)


def _secret_file(path: Path) -> str:
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return str(path)


def run_trap(
    seed: int,
    *,
    sizes: Sequence[int],
    rounds: int,
    more_rounds: int = MORE_ROUNDS,
    starts: int = STARTS,
    progress: Callable[[str], None] = lambda _text: None,
) -> Outcome:
    """Set the trap once and measure who walks into it.

    Args:
        seed: decides the draw.
        sizes: of the all_reduce, bytes.
        rounds: at each size, at least.
        more_rounds: at most, while the best times are not found again.
        starts: of each job.
        progress: is told what runs.

    Raises:
        FabricError: hosts, daemons or ranks could not be started.
    """
    chance = random.Random(seed)  # noqa: S311 - a demonstration's chance, repeatable on purpose
    drawn = draw(chance)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fabricd-trap-")))
        progress("making two hosts and two networks")
        hosts = stack.enter_context(make_hosts(2, drawn.networks))
        plain: dict[str, list[Mapping[str, str]]] = {DEFAULT: [{}, {}]}
        for spec in drawn.networks:
            plain[by_hand(spec.name)] = [{"UCX_NET_DEVICES": name} for name in spec.interfaces]
        progress(f"starting a daemon on each host, and {len(plain) + 1} jobs {starts} times")
        jobs = {
            name: [stack.enter_context(start_plain(name, hosts, settings)) for _ in range(starts)]
            for name, settings in plain.items()
        }
        jobs[PLAN] = stack.enter_context(planned_jobs(drawn, hosts, folder, starts))
        for job in (job for starts in jobs.values() for job in starts):
            job.wait_ready()
        series = measure_in_turns(
            jobs, sizes, rounds, more_rounds=more_rounds, ranks=len(hosts), progress=progress, chance=chance
        )
        verdict = judge(drawn, series, default=DEFAULT, plan=PLAN)
        return Outcome(draw=drawn, series=series, explain=jobs[PLAN][0].explain, verdict=verdict)


def run_and_show(console: Console, seed: int, *, sizes: Sequence[int], rounds: int) -> Outcome:
    """Set the trap once; show what runs while it does, then the table and the verdict."""
    begun = time.monotonic()
    stage = ""

    def told(text: str) -> None:
        nonlocal stage
        seconds = f"{time.monotonic() - begun:3.0f} s"
        status.update(f"{seconds}  {text}")
        if not console.is_terminal and text.partition(", ")[0] != stage:  # nobody sees a line that changes
            stage = text.partition(", ")[0]
            console.print(f"{seconds}  {stage}", highlight=False)

    with console.status("") as status:
        outcome = run_trap(seed, sizes=sizes, rounds=rounds, progress=told)
    console.print(describe(outcome.draw), highlight=False)
    console.print(table(outcome.draw, outcome.series, default=DEFAULT))
    console.print(f"seed {seed}: {outcome.verdict}", highlight=False)
    if excused := excuse(outcome.verdict, os.getloadavg()[0], len(os.sched_getaffinity(0))):
        console.print(excused, highlight=False)
    console.print(f"\nwhat the communicator says of itself:\n{outcome.explain}", markup=False, highlight=False)
    return outcome


def as_json(seed: int, outcome: Outcome) -> dict[str, Any]:
    """Return one run as plain data."""
    return {
        "seed": seed,
        "networks": [asdict(spec) for spec in outcome.draw.networks],
        "slow": outcome.draw.slow,
        "control": outcome.draw.control,
        "cases": {
            case: {
                str(size): {
                    "seconds": series.seconds,
                    "bus_bytes_per_second": series.bus_bytes_per_second,
                    "wrong": series.wrong,
                    "share_on_slow": series.sent_share(outcome.draw.slow),
                }
                for size, series in sizes.items()
            }
            for case, sizes in outcome.series.items()
        },
        "explain": outcome.explain,
        "verdict": asdict(outcome.verdict),
    }


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's choices."""
    parser = argparse.ArgumentParser(prog="python -m demo.trap", description="The two-host trap (root on Linux).")
    parser.add_argument("--runs", type=int, default=1, help="draws, each with hosts of its own (default 1)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds at each size, at least (default 3)")
    parser.add_argument("--seed", type=int, help="of the first draw; the next ones count up (default: at random)")
    parser.add_argument("--json", action="store_true", help="one JSON object a run on standard output")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run the trap; return 0 when every run's verdict is good, 1 when one is not, 3 when it cannot run here."""
    options = parse_arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(stderr=options.json)
    reason = why_not()
    if reason:
        console.print(f"The two hosts are made of Linux namespaces, and this process {reason}.")
        return 3
    first = secrets.randbelow(1 << 31) if options.seed is None else options.seed
    good = 0
    for seed in range(first, first + options.runs):
        outcome = run_and_show(console, seed, sizes=SIZES, rounds=options.rounds)
        good += outcome.verdict.good
        if options.json:
            print(json.dumps(as_json(seed, outcome)), flush=True)
    console.print(f"{good} of {options.runs} runs good")
    return 0 if good == options.runs else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FabricError as error:
        print(f"demo.trap: {error}", file=sys.stderr)
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)
