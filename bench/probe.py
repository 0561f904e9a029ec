"""Cost of a look at an eight-GPU node: all probes, each probe, every call into NVML, and hwloc's lstopo beside them.

    python bench/probe.py [--machine hgx-h100] [--repeat 5]

The machine is one of tests/machines, rendered to files; GPUs answer through the simulated library under the real
nvidia-ml-py, so NVML's figures are those of the binding and of the process it runs in, without a driver's time:
multiply the number of calls by what one costs on a real node. ``nvidia-smi topo -m`` is counted, not run: the calls
without which its matrix cannot be printed.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fabricd.probe.base import ProbeContext, ProbeStopped, Roots
from fabricd.probe.nvml import decode
from fabricd.probe.registry import PROBES
from fabricd.probe.runner import take_snapshot
from tests.support import machine_files
from tests.support.machine import load
from tests.support.machine_run import FAST, LiveNvml, nvml_probe


def seconds(function: Callable[[], object], repeat: int) -> tuple[float, float]:
    """Return the median of wall time and of processor time, children included."""
    walls, cpus = [], []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), processor_seconds()
        function()
        walls.append(time.perf_counter() - wall)
        cpus.append(processor_seconds() - cpu)
    return sorted(walls)[repeat // 2], sorted(cpus)[repeat // 2]


def processor_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def calls_for_a_matrix(gpus: int, links: int) -> int:
    """Return how many NVML calls the matrix of ``nvidia-smi topo -m`` takes at least.

    Once: start, count, stop. For each GPU: handle, PCI address, CPU and memory affinity, NUMA node of its memory; for
    each of its links: state, PCI address of the far end. For each pair: the common ancestor.
    """
    return 3 + 5 * gpus + 2 * links + gpus * (gpus - 1) // 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="hgx-h100", help="a folder of tests/machines")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    machine = load(options.machine)
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        folder = Path(name)
        root = machine_files.render(machine).write(folder / "root")
        context = ProbeContext(roots=Roots.under(root), this_host=False)
        live = LiveNvml(nvml_probe(machine, folder))
        probes = [live if probe.name == "nvml" else probe for probe in PROBES]
        take_snapshot(context, probes=probes)  # builds the library, warms the files
        print(f"{options.machine}, median of {options.repeat}:         wall ms   processor ms")
        report("all probes at once", lambda: take_snapshot(context, probes=probes), options.repeat)
        for probe in probes:
            report(f"  {probe.name}", lambda probe=probe: quietly(probe, context), options.repeat)
        report("lstopo on the same files", lstopo(root), options.repeat)
        answer = decode(live.probe.ask())
        links = sum(len(gpu.links) for gpu in answer.gpus)
        least = calls_for_a_matrix(len(answer.gpus), links)
        print(f"NVML calls of a look                 {answer.calls + 1:6}   ({len(answer.gpus)} GPUs, {links} links)")
        print(f"  of nvidia-smi topo -m, at least    {least:6}   ratio {(answer.calls + 1) / least:.1f}")


def report(what: str, function: Callable[[], object] | None, repeat: int) -> None:
    """Print one line."""
    if function is None:
        print(f"{what:36} not installed (package hwloc-nox)")
        return
    wall, cpu = seconds(function, repeat)
    print(f"{what:36} {wall * 1e3:7.1f}   {cpu * 1e3:7.1f}")


def quietly(probe: object, context: ProbeContext) -> None:
    """Run a probe; that it has nothing to tell here is no matter."""
    try:
        probe.run(context)
    except ProbeStopped:
        return


def lstopo(root: Path) -> Callable[[], object] | None:
    """Return a run of hwloc's lstopo on the rendered files."""
    program = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
    if program is None:
        return None
    environment = {**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0"}
    command = [program, "--of", "console", "--whole-io"]
    return lambda: subprocess.run(command, env=environment, check=True, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
