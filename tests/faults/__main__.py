"""``python -m tests.faults``: communicators to which something happens, one after another, until none is left.

Two hosts of namespaces, a daemon on each. For each communicator of two to four real MPI ranks, on one host or both, a
fault and its moment are drawn from a seed: a rank killed or stopped, a cable pulled, a host cut off, the daemon killed,
the daemon killed and started again; while the ranks gather, work or close. Every rank must end, in time, well or with a
typed error that names the rank or the link; and nothing may stay behind: processes, shared memory of either kind, and
groups and descriptors of the daemon. Needs root on Linux.
"""

import argparse
import collections
import random
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from fabricd.errors import UnavailableError
from tests.faults.rounds import choose, play
from tests.faults.world import World, make_world

#: The daemon remembers a group that failed for a minute, to answer its ranks.
_FORGET_SECONDS = 75.0


def main() -> int:
    """Return 0 when all was well, 1 when not, 3 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Communicators and faults.")
    parser.add_argument("--count", type=int, default=100, help="how many communicators (default 100)")
    parser.add_argument("--seed", type=int, default=None, help="what happens; drawn and printed by default")
    parser.add_argument("--first", type=int, default=0, help="begin with this one of the seed's")
    parser.add_argument("--seconds", type=float, default=3000.0, help="begin no new one after so long (default 3000)")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the hosts end with this program
    print(f"# seed {seed}", flush=True)
    try:
        with tempfile.TemporaryDirectory(prefix="fabricd-faults-") as folder, make_world(Path(folder)) as world:
            return run(world, seed, options.first, options.count, options.seconds)
    except UnavailableError as error:
        print(f"faults: cannot run here: {error}", file=sys.stderr)
        return 3


def run(world: World, seed: int, first: int, count: int, seconds: float) -> int:
    """Play the rounds; print one line each, and a summary; return the exit status."""
    began = time.monotonic()
    outcomes: collections.Counter[str] = collections.Counter()
    failed, longest, played = [], 0.0, 0
    for number in range(first, first + count):
        if time.monotonic() - began > seconds:
            break
        plan = choose(number, random.Random(f"{seed}:{number}"))
        report = play(world, plan)
        played += 1
        longest = max(longest, report.seconds)
        outcomes.update(report.outcomes)
        print(f"{plan}: {', '.join(report.outcomes)} ({report.seconds:.1f} s)", flush=True)
        for what in report.wrong:
            print(f"    WRONG {what}", flush=True)
        if report.wrong:
            failed.append(number)
    left = groups_left(world)
    told = ", ".join(f"{count} {what}" for what, count in outcomes.most_common())
    print(f"faults: {played} of {count} communicators, seed {seed}; ranks ended: {told}")
    print(f"faults: the last rank ended {longest:.1f} s after its fault at most; {left} groups left at the daemon")
    good = not failed and not left and played == count
    print(f"faults: {'PASS' if good else f'FAIL {failed}'} after {time.monotonic() - began:.0f} s")
    return int(not good)


def groups_left(world: World) -> int:
    """Return how many groups the daemon still knows when it should have forgotten all."""
    deadline = time.monotonic() + _FORGET_SECONDS
    while (left := world.groups()) and time.monotonic() < deadline:
        time.sleep(1.0)
    return left


if __name__ == "__main__":
    sys.exit(main())
