"""``python -m tests.soak``: an hour of a small cluster whose clients never rest and to which everything bad happens.

Three real daemons on hosts that are namespaces. Clients ask, poll, stream, plan and form groups all the time, while one
fault after another (``faults.py``) is done to the daemons, in an order drawn from the seed. It passes when

- every daemon lives and says so during each fault, and is well again within a bound after it,
- no answer was an error of the server but a 503 that says when to come again,
- the steady daemon's memory grows by less than a bound in an hour, and its descriptors do not.

Needs root on Linux.
"""

import argparse
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from demo.namespaces import why_not
from fabricd.errors import FabricError
from tests.soak.cluster import Cluster, Node, running
from tests.soak.faults import FAULTS, Fault, FaultError, patience
from tests.soak.load import Answers, Load

#: After a fault all must be well within this time. A shortage counts as over 10 s after it was met last, and a node
#: whose daemon was killed is asked again after at most 15 s.
WELL_SECONDS = 30.0
#: What a daemon's memory may grow by in an hour, judged over cycles of all faults from the third on: a crowd of 5,000
#: leaves the allocator with pages that it keeps, at the first time.
MEMORY_PER_HOUR = 8e6
WARM_CYCLES = 2
LEAST_CYCLES = 5
DESCRIPTORS = 12
QUIET_SECONDS = 4.0


@dataclass
class Sample:
    """A daemon when all was quiet."""

    at: float  #: hours since the start
    memory: int  #: resident bytes
    descriptors: int


@dataclass
class Course:
    """What happened."""

    wells: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)  #: what must not have happened
    samples: dict[str, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    cycles: int = 0


def main() -> int:
    """Return 0 when all went well, 1 when not, 3 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no fault after so long (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="draws the order of the faults and what they vary in")
    parser.add_argument("--patience", type=float, default=1.0, help="bounds of time are so many times as long")
    parser.add_argument("--only", default="", help="faults whose name holds this")
    options = parser.parse_args()
    if why := why_not():
        print(f"soak: cannot run here: {why}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the hosts end with this program
    patience.times = options.patience
    faults = [fault for fault in FAULTS if options.only in fault.name]
    folder = Path(tempfile.mkdtemp(prefix="fabricd-soak-"))
    with running(folder) as cluster, Load(cluster, options.seed) as load:
        course = soak(cluster, faults, options.minutes * 60, random.Random(options.seed))
    course.faults += load.answers.wrong[:20]
    for node in cluster.nodes:
        if "Traceback" in node.log:
            course.faults.append(f"{node.name}'s log holds a traceback: {folder}")
    report(course, load.answers)
    if not course.faults:
        shutil.rmtree(folder)
    return 1 if course.faults else 0


def soak(cluster: Cluster, faults: list[Fault], seconds: float, draw: random.Random) -> Course:
    """Do one fault after another; in each cycle all of them, in another order."""
    course, begun = Course(), time.monotonic()
    sample(cluster, course, begun)
    while time.monotonic() - begun < seconds:
        for fault in draw.sample(faults, len(faults)):
            if time.monotonic() - begun >= seconds:
                return course
            do(fault, cluster, course, draw)
        time.sleep(QUIET_SECONDS)
        course.cycles += 1
        sample(cluster, course, begun)
    return course


def do(fault: Fault, cluster: Cluster, course: Course, draw: random.Random) -> None:
    """Do one fault, and see whether all is well again."""
    begun = time.monotonic()
    try:
        fault.run(cluster, draw)
    except (FaultError, FabricError, OSError, httpx.TransportError) as error:
        course.faults.append(f"{fault.name}: {error!r}")
        print(course.faults[-1], flush=True)
    lasted = time.monotonic() - begun
    try:
        took = cluster.wait_well(WELL_SECONDS * patience.times)
        course.wells[fault.name].append(took)
        told = f"well again after {took:4.1f} s"
    except TimeoutError as error:
        course.faults.append(f"{fault.name}: not well after {WELL_SECONDS * patience.times:g} s: {error}")
        told = course.faults[-1]
    clock = time.strftime("%H:%M:%S")
    print(f"{clock} {fault.name:<20} lasted {lasted:5.1f} s, {told}; {_memory(cluster.steady)}", flush=True)


def sample(cluster: Cluster, course: Course, begun: float) -> None:
    """Look at the daemons that nobody ends."""
    for node in (cluster.steady, cluster.replay):
        process = node.process
        at = (time.monotonic() - begun) / 3600
        course.samples[node.name].append(Sample(at, process.memory_info().rss, process.num_fds()))


def _memory(node: Node) -> str:
    return f"{node.process.memory_info().rss / 1e6:.0f} MB, {node.process.num_fds()} descriptors"


def growth(samples: list[Sample]) -> float:
    """Return by how many bytes memory grows in an hour: the median of the slopes between all pairs of samples."""
    pairs = [(a, b) for index, a in enumerate(samples) for b in samples[index + 1 :]]
    return statistics.median((b.memory - a.memory) / (b.at - a.at) for a, b in pairs)


def report(course: Course, answers: Answers) -> None:
    """Judge what remains to be judged, and print all."""
    print(f"\n{'fault':<20} {'times':>5} {'well again after, median':>25} {'at most':>9}")
    for name, wells in sorted(course.wells.items()):
        print(f"{name:<20} {len(wells):>5} {statistics.median(wells):>23.1f} s {max(wells):>7.1f} s")
    print(f"\n{answers.total} answers, {answers.shed()} of them 503; {answers.broken.total()} questions without one")
    for what, count in answers.broken.most_common():
        print(f"  {what}: {count}")
    for name, samples in course.samples.items():
        later = samples[1 + WARM_CYCLES :]
        told = "too short to judge"
        if len(later) >= LEAST_CYCLES:
            slope = growth(later)
            told = f"{slope / 1e6:+.1f} MB an hour after {WARM_CYCLES} cycles, at most {MEMORY_PER_HOUR / 1e6:g}"
            if slope > MEMORY_PER_HOUR:
                course.faults.append(f"{name}'s memory: {told}")
        course_of = " ".join(f"{one.memory / 1e6:.0f}" for one in samples)
        print(f"{name}: {told}; MB after each cycle: {course_of}")
        more = samples[-1].descriptors - samples[0].descriptors
        print(f"{name}: descriptors {samples[0].descriptors} at the start, {samples[-1].descriptors} at the end")
        if more > DESCRIPTORS:
            course.faults.append(f"{name} has {more} descriptors more at the end")
    verdict = "FAIL" if course.faults else "PASS"
    print(f"\nverdict {verdict}: {course.cycles} cycles of {len(FAULTS)} faults")
    for fault in course.faults:
        print(f"  {fault}")


if __name__ == "__main__":
    sys.exit(main())
