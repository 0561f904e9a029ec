"""mpi4py's own tests on this client's MPI and on mpiexec's: what fails must be the same.

    python -m tests.mpi4py_suite [-n 3] [-i test_cco] [-e test_io] [--minutes 30] [--ours]

Fetches mpi4py's source release of the installed version, by version and hash, and runs its tests as N ranks twice:
under ``fabricctl run``, on the MPI that ``create_communicator`` has started, and under MPICH's ``mpiexec``. Without the
tests of dynamic processes, which this client refuses. Exit status 0: no test fails in the one that passes in the other;
with ``--ours``, which leaves out mpiexec, none but those that are known to.
"""

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from demo.daemons import end, program

#: Of the source release, as published on PyPI.
_SHA256 = {"4.1.2": "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02"}
_SHOWN = 40
_SLOWEST = 5
#: What starts the ranks ends them within this time.
_END_SECONDS = 30.0


@dataclass
class Outcome:
    """What became of the tests of one run, on all its ranks together.

    Attributes:
        passed: names of the tests that passed on every rank.
        failed: failed on some rank, and why, of the first rank that did.
        skipped: skipped on some rank.
        unfinished: what each rank did last that did not come to the end.
        spent: seconds of the first rank in each file of tests.
        seconds: of the run.
    """

    passed: set[str] = field(default_factory=set)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    unfinished: dict[int, str] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    seconds: float = 0.0


def read_outcome(folder: Path, ranks: int) -> Outcome:
    """Return what the ranks have noted in a folder."""
    found = Outcome()
    for rank in range(ranks):
        path = folder / f"{rank}.txt"
        lines = [line.split("\t") for line in path.read_text().splitlines()] if path.exists() else []
        for outcome, name, took, why in lines:
            if rank == 0 and took:
                found.spent[name.partition(".")[0]] += float(took)
            if outcome == "passed":
                found.passed.add(name)
            elif outcome == "failed":
                found.failed.setdefault(name, why)
            elif outcome == "skipped":
                found.skipped.add(name)
        if not lines or lines[-1][0] != "end":
            found.unfinished[rank] = lines[-1][1] if lines else "nothing"
    found.passed -= found.failed.keys() | found.skipped
    return found


def differences(ours: Outcome, theirs: Outcome) -> list[str]:
    """Return what differs, a line each; what fails in both is no difference."""
    return [
        *(f"fails here alone: {name}: {ours.failed[name]}" for name in sorted(ours.failed.keys() - theirs.failed)),
        *(f"fails under mpiexec alone: {name}" for name in sorted(theirs.failed.keys() - ours.failed)),
        *(f"skipped here alone: {name}" for name in sorted(ours.skipped & theirs.passed)),
        *(f"ran under mpiexec alone: {name}" for name in sorted(_all(theirs) - _all(ours))),
        *(f"rank {rank} did not come to the end, after {last}" for rank, last in sorted(ours.unfinished.items())),
    ]


def _all(outcome: Outcome) -> set[str]:
    return outcome.passed | outcome.failed.keys() | outcome.skipped


def _slowest(ours: Outcome, theirs: Outcome) -> list[str]:
    """Return the files whose tests take longest beyond what they take under mpiexec."""
    return sorted(ours.spent, key=lambda name: theirs.spent[name] - ours.spent[name])[:_SLOWEST]


def fetch(folder: Path) -> Path:
    """Download the source release of the installed mpi4py and return where it lies unpacked."""
    installed = version("mpi4py")
    if installed not in _SHA256:
        raise SystemExit(f"mpi4py {installed} is installed, and hashes are known of {', '.join(_SHA256)}")
    wanted = folder / "wanted.txt"
    wanted.write_text(f"mpi4py=={installed} --hash=sha256:{_SHA256[installed]}\n")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--no-deps", "--no-binary", "mpi4py"]
    subprocess.run([*pip, "--no-build-isolation", "-r", str(wanted), "-d", str(folder)], check=True)
    with tarfile.open(folder / f"mpi4py-{installed}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(folder)
    return folder / f"mpi4py-{installed}"


def run(
    command: list[str], how: str, source: Path, folder: Path, ranks: int, rest: list[str], minutes: float
) -> Outcome:
    """Run the tests once and return what became of them.

    Args:
        command: starts the ranks.
        how: see ``tests.mpi4py_suite.rank``.
        source: mpi4py's release.
        folder: for the ranks' notes and output.
        ranks: how many.
        rest: more for mpi4py's test program.
        minutes: until the run is ended.
    """
    folder.mkdir()
    begun = time.monotonic()
    rank = [sys.executable, "-m", "tests.mpi4py_suite.rank", how, str(source), str(folder), *rest]
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [*command, *rank], env=_environment(ranks), stdout=output, stderr=output, stdin=subprocess.DEVNULL
        )
        try:
            process.wait(minutes * 60)
        except subprocess.TimeoutExpired:
            pass  # the ranks' notes tell how far they came
        finally:
            end(process, _END_SECONDS)
    found = read_outcome(folder, ranks)
    found.seconds = time.monotonic() - begun
    return found


def _environment(ranks: int) -> dict[str, str]:
    """Return the ranks' environment: where they outnumber CPUs, those that wait sleep (docs/mpi.md says why)."""
    sleep = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"} if ranks > len(os.sched_getaffinity(0)) else {}
    return {**sleep, **os.environ}


def main() -> int:
    """Run both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", type=int, default=3)
    parser.add_argument("-i", "--include", action="append", default=[], metavar="REGEX", help="test files")
    parser.add_argument("-e", "--exclude", action="append", default=[], metavar="REGEX", help="test files")
    parser.add_argument("--ours", action="store_true", help="not under mpiexec, too")
    parser.add_argument("--minutes", type=float, default=30.0, help="for each of the two runs")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the ranks end with this program
    rest = [word for pattern in chosen.include for word in ("-i", pattern)]
    rest += [word for pattern in chosen.exclude for word in ("-e", pattern)]
    count = str(chosen.ranks)
    ways = {
        "mpiexec": ("mpi4py", [program("mpiexec"), "-n", count]),
        "fabricctl run": ("client", [program("fabricctl"), "run", "-n", count, "--"]),
    }
    if chosen.ours:
        del ways["mpiexec"]
    found: dict[str, Outcome] = {}
    with TemporaryDirectory(prefix="mpi4py-suite-") as name:
        folder = Path(name)
        source = fetch(folder)
        for title, (how, command) in ways.items():
            found[title] = one = run(command, how, source, folder / how, chosen.ranks, rest, chosen.minutes)
            print(
                f"{title}: {len(one.passed)} tests passed, {len(one.failed)} failed, {len(one.skipped)} skipped "
                f"on {chosen.ranks} ranks in {one.seconds:.0f} s",
                flush=True,
            )
            if one.unfinished:
                print(f"-- the end of what the ranks said:\n{(folder / how / 'output.txt').read_text()[-2000:]}")
    return judge(found["fabricctl run"], found.get("mpiexec"))


def judge(ours: Outcome, theirs: Outcome | None) -> int:
    """Print what is to be known of the runs, and return the exit status; ``theirs`` None: it was left out."""
    told = differences(ours, theirs or Outcome())
    if theirs is not None:
        for name, why in sorted(theirs.failed.items())[:_SHOWN]:
            print(f"fails under mpiexec: {name}: {why}")
        for name in _slowest(ours, theirs):
            print(f"{name}: {ours.spent[name]:.0f} s, {theirs.spent[name]:.0f} under mpiexec")
    print("\n".join(told[:_SHOWN]) if told else "no difference" if theirs else "none fails")
    return 1 if told or not ours.passed else 0


if __name__ == "__main__":
    sys.exit(main())
