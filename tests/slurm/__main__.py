"""Communicators under a real srun, over its PMI and planned by a daemon; and the prologs that ship for Slurm.

    python -m tests.slurm

Sets up a Slurm of one node in a folder of its own (see ``tests.slurm.cluster``), runs jobs, and takes it down. Exit
status 0: all is as it should be.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.slurm.cluster import Slurm, expect, slurm_cluster, unpack
from tests.slurm.prologs import run_checks
from tests.support.daemon import daemon

_RANKS = 3
_SECRET = "0123456789abcdef0123456789abcdef"
Line = dict[str, Any]


def run_ranks(slurm: Slurm, *options: str, environ: Mapping[str, str] | None = None, more: tuple[str, ...] = ()) -> Any:
    """Run ``tests.slurm.rank`` as three ranks; return their lines by rank, srun's status and what it said."""
    arguments = [*options, "-n", str(_RANKS), sys.executable, "-m", "tests.slurm.rank", *more]
    done = slurm.srun(arguments, environ={"FABRICD_URL": "", "FABRICD_GROUP": "", **(environ or {})})
    lines: list[Line] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda line: int(line["rank"])), done.returncode, done.stderr


def expect_results(lines: list[Line], status: int, said: str) -> None:
    """Check what every job of three ranks must come to."""
    expect(status == 0 and len(lines) == _RANKS, "three ranks end well", said)
    expect([line["rank"] for line in lines] == list(range(_RANKS)), "each rank is there once", lines)
    expect(all(line["exact"] and line["size"] == _RANKS for line in lines), "the sums are exact", lines)
    expect([line["pair"] for line in lines] == [2, 2, 1], "split makes a pair and a single", lines)


def over_its_pmi(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """Srun's own PMI, without daemon and plan."""
    lines, status, said = run_ranks(slurm, "--mpi=pmi2")
    expect_results(lines, status, said)
    expect("over the launcher's PMI; no plan" in lines[0]["explain"], "MPI started over srun's PMI", lines[0])
    expect({line["verdict"] for line in lines} == {"NO_PLAN"}, "nothing was planned", lines)


def planned_beside_its_pmi(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """A daemon is named: its plan counts, also where srun has a PMI."""
    lines, status, said = run_ranks(slurm, "--mpi=pmi2", environ=environ)
    expect_results(lines, status, said)
    expect(lines[0]["group"].startswith("slurm-"), "the group is named for job and step", lines[0])
    expect("share memory" in lines[0]["explain"], "the daemon planned", lines[0])
    expect({line["verdict"] for line in lines} == {"CONFIRMED"}, "the plan is what happened", lines)


def planned_without_pmi(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """No PMI at all: rank and size are Slurm's, and MPI meets by the daemon."""
    lines, status, said = run_ranks(slurm, "--mpi=none", environ=environ)
    expect_results(lines, status, said)
    expect("from SLURM_PROCID and SLURM_STEP_NUM_TASKS" in lines[0]["explain"], "rank from Slurm", lines[0])


def two_steps_at_once(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """Two steps of one allocation are two groups."""
    script = (
        f'srun=$1; shift; for step in 1 2; do $srun --overcommit --overlap --mpi=none -n {_RANKS} "$@" & done; wait'
    )
    command = ["bash", "-c", script, "bash", *slurm.command("srun"), sys.executable, "-m", "tests.slurm.rank"]
    done = slurm.run("salloc", "--quiet", "-n", str(_RANKS), *command, environ=environ)
    lines: list[Line] = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    groups = sorted({line["group"] for line in lines})
    expect(len(lines) == 2 * _RANKS and len(groups) == 2, "two steps are two groups", done.stdout + done.stderr)


def a_rank_is_lost(slurm: Slurm, environ: Mapping[str, str]) -> None:
    """The others hear which; nobody hangs."""
    begun = time.monotonic()
    lines, status, said = run_ranks(slurm, "--mpi=none", "--kill-on-bad-exit=0", environ=environ, more=("lose", "1"))
    expect([line["rank"] for line in lines] == [0, 2], "the other two go on to say so", said)
    expect(
        all(
            line["error"].startswith("RankLostError: group 'slurm-") and "lost rank 1" in line["error"]
            for line in lines
        ),
        "each names rank 1",
        lines,
    )
    expect(status != 0 and time.monotonic() - begun < 60, "srun ends, with a status", status)


CHECKS: tuple[Callable[[Slurm, Mapping[str, str]], None], ...] = (
    over_its_pmi,
    planned_beside_its_pmi,
    planned_without_pmi,
    two_steps_at_once,
    a_rank_is_lost,
)


def main() -> None:
    """Run all checks."""
    if os.geteuid() != 0:
        raise SystemExit("a Slurm of one's own needs root")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster ends with this program
    before = set(Path("/dev/shm").glob("mpich_shm_*"))
    with TemporaryDirectory(prefix="fabricd-slurm-") as name:
        root, folder, files, prologs = (Path(name) / part for part in ("root", "cluster", "daemon", "prologs"))
        for path in (root, folder, files, prologs):
            path.mkdir()
        Path(name).chmod(0o755)
        unpack(root)
        with slurm_cluster(root, folder) as slurm, daemon(files) as running:
            print(slurm.ask("sinfo", "--version").strip() + f", a node of its own: {slurm.node}")
            environ = {"FABRICD_URL": running.url, "FABRICD_GROUP_SECRET": _SECRET}
            for check in CHECKS:
                begun = time.monotonic()
                check(slurm, environ)
                print(f"{check.__doc__ or ''}".strip() + f" ({time.monotonic() - begun:.1f} s)", flush=True)
        run_checks(root, prologs)
    left = set(Path("/dev/shm").glob("mpich_shm_*")) - before
    expect(not left, "no shared memory is left", left)
    print("all as it should be")


if __name__ == "__main__":
    main()
