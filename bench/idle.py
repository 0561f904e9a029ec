"""What a daemon costs an eight-GPU node that nobody asks anything: processor time and memory, with its children.

    python -m bench.idle [--machine hgx-h100] [--seconds 20]

The machine is one of tests/machines, rendered to files in memory; GPUs answer through the simulated library under the
real nvidia-ml-py, so what a driver's own calls cost comes on top. Measured twice: with looks as fast as an interval of
a second allows, and without any but the first. That gives the cost of a look and of mere existence, and so the share
of a processor core at any interval.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from fabricd import daemon
from fabricd.background import in_thread
from fabricd.config import Config
from fabricd.config_load import Loaded
from fabricd.daemon.probing import GLANCE_SECONDS, PORTS_SECONDS
from fabricd.model.identity import NodeIdentity
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import Probe, ProbeContext, Roots
from fabricd.probe.glance import glance, infiniband_ports, port_states
from fabricd.probe.rdma_sysfs import RdmaProbe
from fabricd.probe.registry import PROBES
from fabricd.probe.runner import Runner
from tests.support import machine_files
from tests.support.machine import load
from tests.support.machine_answers import write_answers
from tests.support.machine_run import FAST, LiveNvml, nvml_probe

_NEVER = 3600.0
_ALLOWED_SHARE = 0.003


@dataclass(frozen=True, slots=True)
class Cost:
    """Of a stretch of time."""

    seconds: float
    processor_seconds: float  #: of the daemon and its children that have ended
    looks: int
    memory_bytes: int  #: resident, and its own


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="hgx-h100", help="a folder of tests/machines")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each of the two measurements")
    parser.add_argument("--serve", nargs=2, metavar=("FOLDER", "INTERVAL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.machine, Path(options.serve[0]), float(options.serve[1]))
        return
    still = measure(options.machine, _NEVER, options.seconds)
    busy = measure(options.machine, 1.0, options.seconds)
    base = still.processor_seconds / still.seconds + in_between(options.machine)
    look = (busy.processor_seconds - base * busy.seconds) / busy.looks
    print(f"{options.machine}: a look costs {look * 1e3:.1f} ms of processor time ({busy.looks} looks)")
    print(f"  without looks {base:.3%} of a core; memory {busy.memory_bytes / 1e6:.0f} MB (at most 90)")
    for interval in sorted({15.0, 30.0, 60.0, Config().probe_interval_seconds}):
        share = base + look / interval
        default = ", the default" if interval == Config().probe_interval_seconds else ""
        print(f"  looks every {interval:2.0f} s: {share:.3%} of a core (at most {_ALLOWED_SHARE:.1%}){default}")


def in_between(machine_name: str) -> float:
    """Return the share of a core that glances and looks at ports take, in threads as the daemon does it."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        roots = Roots.under(machine_files.render(load(machine_name)).write(Path(name)))
        rdma = RdmaProbe().run(ProbeContext(roots=roots, this_host=False)).facts["hcas"]
        ports = infiniband_ports(Snapshot(node=NodeIdentity(node_id="n", name="n"), hcas=rdma))
        glances = asyncio.run(_in_threads(lambda: glance(roots)))
        states = asyncio.run(_in_threads(lambda: port_states(roots, ports)))
        print(f"  a glance costs {glances * 1e3:.2f} ms, a look at {len(ports)} ports' states {states * 1e3:.2f} ms")
        return glances / GLANCE_SECONDS + states / PORTS_SECONDS


async def _in_threads(function: Callable[[], object]) -> float:
    """Return the processor time of a call in a thread of its own."""
    begun = time.process_time()
    for _ in range(100):
        await in_thread(function)
    return (time.process_time() - begun) / 100


def serve(machine_name: str, folder: Path, interval: float) -> None:
    """Be the daemon of a rendered machine."""
    machine = load(machine_name)
    tree = machine_files.render(machine)
    root = tree.write(folder / "root")
    answers = write_answers(machine, tree, folder / "answers")
    context = ProbeContext(roots=Roots.under(root), this_host=False, answers=answers)
    live = LiveNvml(nvml_probe(machine, folder))
    source = _Counted(
        context, probes=[live if probe.name == "nvml" else probe for probe in PROBES], tally=folder / "looks"
    )
    config = replace(Config(), port=0, socket=None, probe_interval_seconds=interval, log_level="warning")
    loaded = Loaded(config=config)
    del tree, machine  # of the simulation, not of a daemon
    launch = daemon.Launch(source=source, reload=lambda: loaded, live=False, ready_file=folder / "ready.json")
    daemon.run(loaded, launch)


class _Counted(Runner):
    """A runner that writes down how often NVML was asked, which is in each full look."""

    def __init__(self, ctx: ProbeContext, *, probes: Sequence[Probe], tally: Path) -> None:
        super().__init__(ctx, probes=probes)
        self._tally = tally
        self._looks = 0

    def refresh(self, names: Collection[str] | None = None) -> Snapshot:
        if names is None or "nvml" in names:
            self._looks += 1
            self._tally.write_text(str(self._looks))
        return super().refresh(names)


def measure(machine: str, interval: float, seconds: float) -> Cost:
    """Return what a daemon costs for a while, after it has got ready."""
    with tempfile.TemporaryDirectory(dir=FAST) as name:
        folder = Path(name)
        command = [sys.executable, "-m", "bench.idle", "--machine", machine, "--serve", name, str(interval)]
        with subprocess.Popen(command) as process:
            try:
                while not (folder / "ready.json").exists():
                    if process.poll() is not None:
                        raise SystemExit(f"the daemon ended with status {process.returncode}")
                    time.sleep(0.05)
                json.loads((folder / "ready.json").read_text())
                time.sleep(2.0)  # the first look's tail
                watched = psutil.Process(process.pid)
                used = _existing if interval == _NEVER else _used
                before, looks, begun = used(watched), int((folder / "looks").read_text()), time.monotonic()
                time.sleep(seconds)
                return Cost(
                    seconds=time.monotonic() - begun,
                    processor_seconds=used(watched) - before,
                    looks=int((folder / "looks").read_text()) - looks,
                    memory_bytes=watched.memory_full_info().uss,
                )
            finally:
                process.terminate()


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _existing(process: psutil.Process) -> float:
    """Return the processor time of the threads that live, finer than in ticks. Source: kernel scheduler/sched-stats."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


if __name__ == "__main__":
    main()
