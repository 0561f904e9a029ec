"""How long it takes until ranks have a communicator: by this client, and by MPI under mpiexec, in turns.

    python -m bench.creation [--ranks 2 8 32] [--rounds 3]

Each job is new processes, that start, make a communicator, pass a barrier and end; a daemon runs already, as on any
node. Modules are compiled, as those of an installed package are. For both ways, the best round's figures:

- job: from the launcher's start to its end, with all that the interpreter loads;
- processor: what launcher, ranks and daemon use of it meanwhile, which other load on the machine changes little;
- communicator: from when the last rank asks for one, MPI not loaded, to when the last one is past the first barrier.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from demo.daemons import Daemon, program

OURS, THEIRS = "fabric_client", "mpiexec"
_JOB_SECONDS = 300.0
_PAIR = re.compile(r"\[[0-9.]+, [0-9.]+\]")


def run_rank(name: str) -> None:
    """Be a rank: print when it asked for a communicator, and when it had one."""
    import numpy as np  # noqa: F401 - a rank has arrays

    if name == OURS:
        from fabric_client import create_communicator

        asked = time.time()
        comm = create_communicator()
        comm.barrier()
        had = time.time()
        comm.close()
    else:
        asked = time.time()
        from mpi4py import MPI  # starts MPI as well

        MPI.COMM_WORLD.Barrier()
        had = time.time()
        MPI.Finalize()
    sys.stdout.write(json.dumps([asked, had]) + "\n")


def used(daemon: psutil.Process) -> float:
    """Return the processor seconds of all jobs that have ended, and of the daemon."""
    jobs, own = resource.getrusage(resource.RUSAGE_CHILDREN), daemon.cpu_times()
    return jobs.ru_utime + jobs.ru_stime + own.user + own.system


def run_job(name: str, ranks: int, environ: dict[str, str], daemon: psutil.Process) -> tuple[float, float, float]:
    """Return the seconds of a job, of processors, and of its communicator."""
    launcher = {OURS: [program("fabricctl"), "run"], THEIRS: [program("mpiexec")]}[name]
    separator = ["--"] if name == OURS else []
    command = [*launcher, "-n", str(ranks), *separator, sys.executable, "-m", "bench.creation", "--rank-of", name]
    begun, before = time.monotonic(), used(daemon)
    job = subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_JOB_SECONDS
    )
    took = time.monotonic() - begun
    told = [json.loads(pair) for pair in _PAIR.findall(job.stdout)]  # ranks' lines may come interleaved
    if job.returncode != 0 or len(told) != ranks:
        raise SystemExit(f"{name}: {len(told)} of {ranks} ranks, status {job.returncode}\n{job.stderr[-2000:]}")
    return took, used(daemon) - before, max(had for _, had in told) - max(asked for asked, _ in told)


def compare(sizes: list[int], rounds: int, environ: dict[str, str], daemon: psutil.Process) -> None:
    """Print a line for each number of ranks."""
    print(f"# {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, best of {rounds} rounds in turns, seconds")
    print(f"# {'':>5} " + " ".join(f"{what + ':':<36}" for what in ("job", "processor", "communicator")))
    print(f"# {'ranks':>5} " + " ".join([f"{THEIRS:>14} {OURS:>14} {'ratio':>6}"] * 3))
    for ranks in sizes:
        best = {name: [float("inf")] * 3 for name in (OURS, THEIRS)}
        for turn in range(rounds):
            for name in (OURS, THEIRS) if turn % 2 else (THEIRS, OURS):
                best[name] = [min(pair) for pair in zip(best[name], run_job(name, ranks, environ, daemon), strict=True)]
        pairs = zip(best[THEIRS], best[OURS], strict=True)
        told = " ".join(f"{theirs:>14.3f} {ours:>14.3f} {ours / theirs:>6.2f}" for theirs, ours in pairs)
        print(f"{ranks:>7} {told}", flush=True)


def main() -> None:
    """Run the benchmark, or be one of its ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank-of", choices=(OURS, THEIRS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        run_rank(arguments.rank_of)
        return
    with tempfile.TemporaryDirectory(prefix="fabricd-bench-") as folder:
        socket = str(Path(folder) / "d.sock")
        options = ["--port", "0", "--socket", socket, "--node-id", "bench"]
        with Daemon("bench", Path(folder), options) as daemon:
            daemon.wait_ready()
            environ = {
                **os.environ,
                "FABRICD_URL": f"unix:{socket}",
                "PYTHONPYCACHEPREFIX": str(Path(folder) / "cache"),
            }
            environ.pop("PYTHONDONTWRITEBYTECODE", None)
            for name in (OURS, THEIRS):  # which compiles the modules, and counts for nothing
                run_job(name, 1, environ, psutil.Process(daemon.process.pid))
            compare(arguments.ranks, arguments.rounds, environ, psutil.Process(daemon.process.pid))


if __name__ == "__main__":
    main()
