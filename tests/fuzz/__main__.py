"""``python -m tests.fuzz``: coverage-guided fuzzing of what reads text, files and messages of others.

Each target (``tests/fuzz/targets``) runs in a process of its own, for so many seconds or until it breaks: an error that
is no documented one, a broken law, an input that takes longer than ``--timeout`` or more memory than ``--memory``. What
broke is kept in the folder; a copy of it in ``tests/fuzz/seeds/TARGET`` is replayed by the suite ever after.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import NAMES, ROOT

#: A campaign that does not end by itself so long after its time hangs.
_GRACE_SECONDS = 300.0
_STAT = re.compile(r"^stat::(\w+):\s+(\d+)$", re.MULTILINE)
_COVERAGE = re.compile(r"\bcov: (\d+) ")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a campaign ended."""

    name: str
    broke: bool
    told: str


def main() -> int:
    """Return 0 when nothing broke, 1 when something did, 2 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description="Fuzz what reads others' text.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"by default all: {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default 60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at once (default: processors)")
    parser.add_argument("--timeout", type=int, default=20, help="seconds that one input may take (default 20)")
    parser.add_argument("--memory", type=int, default=2048, help="MiB that a target may take (default 2048)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/fuzz", help="keeps inputs, logs, what broke")
    options = parser.parse_args()
    unknown = set(options.targets) - set(NAMES)
    if unknown:
        parser.error(f"no target called {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if subprocess.run([sys.executable, "-c", "import atheris"], capture_output=True, check=False).returncode:
        print("fuzz: atheris is not installed: pip install 'fabricd[fuzz]'", file=sys.stderr)
        return 2
    options.folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda name: _campaign(name, options), options.targets or NAMES)
        broke = 0
        for outcome in outcomes:
            print(f"fuzz: {outcome.name}: {outcome.told}", flush=True)
            broke += outcome.broke
    return int(broke > 0)


def _campaign(name: str, options: argparse.Namespace) -> Outcome:
    """Run one target to its end."""
    log = options.folder / f"{name}.log"
    command = [
        sys.executable, "-m", "tests.fuzz.campaign", name, str(options.folder / name),
        f"-max_total_time={options.seconds}", f"-timeout={options.timeout}", f"-rss_limit_mb={options.memory}",
        f"-artifact_prefix={options.folder}/{name}-", "-print_final_stats=1",
    ]  # fmt: skip
    with log.open("wb") as output:
        status = _run(command, output.fileno(), options.seconds + options.timeout + _GRACE_SECONDS)
    said = log.read_text(errors="replace")
    stats = dict(_STAT.findall(said))
    reached = _COVERAGE.findall(said)
    figures = f"{stats.get('number_of_executed_units', '?')} inputs, coverage {reached[-1] if reached else '?'}"
    if status == 0:
        return Outcome(name, False, f"{figures}, nothing broke in {options.seconds} s")
    kept = re.findall(r"Test unit written to (\S+)", said)
    where = f"kept as {kept[-1]}" if kept else f"see {log}"
    return Outcome(name, True, f"{figures}, BROKE: {_reason(said) or f'status {status}'}; {where}")


def _run(command: Sequence[str], output: int, seconds: float) -> int | None:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()
        process.wait()


def _reason(said: str) -> str:
    """Return the line that tells what broke."""
    for pattern in (r"^ === Uncaught Python exception: ===\n(.*)$", r"^==\d+== ERROR: (.*)$", r"^(\w+Error: .*)$"):
        if match := re.search(pattern, said, re.MULTILINE):
            return match[1][:300]
    return ""


if __name__ == "__main__":
    sys.exit(main())
