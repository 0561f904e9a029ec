"""Takes a snapshot of a rendered machine: files from the tree, GPUs from the real binding on the simulated library."""

import functools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import Probe, ProbeContext, ProbeResult, Roots
from fabricd.probe.nvml import NvmlProbe
from fabricd.probe.registry import PROBES
from fabricd.probe.runner import take_snapshot
from tests.support import machine_files, machine_nvml
from tests.support.excerpt import excerpt
from tests.support.golden import golden_text
from tests.support.machine import Machine, load
from tests.support.machine_answers import write_answers
from tests.support.nvml_library import environment

#: Thousands of small files: in memory they are written thirty times faster than on some disks.
FAST = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class LiveNvml:
    """The NVML probe as it runs on its own host, within a snapshot whose other sources are files."""

    probe: NvmlProbe
    name: str = "nvml"

    @property
    def deadline_seconds(self) -> float:
        return self.probe.deadline_seconds

    def run(self, ctx: ProbeContext) -> ProbeResult:
        return self.probe.run(replace(ctx, this_host=True))


def nvml_probe(
    machine: Machine, folder: Path, scenario: machine_nvml.Scenario | None = None, **options: float
) -> NvmlProbe:
    """Return a probe that sees a machine's GPUs, or those of a changed scenario. Writes into ``folder``."""
    answers = scenario if scenario is not None else machine_nvml.scenario(machine) if "driver" in machine.facts else {}
    path = machine_nvml.write_scenario(answers, folder / "scenario.txt")
    hidden = machine.section("driver").get("hide", [])
    return NvmlProbe(environment=environment(path, hidden=hidden, calls=folder / "calls.txt"), **options)


def context_of(
    machine: Machine, folder: Path, *, probes: Sequence[Probe] | None = None
) -> tuple[ProbeContext, list[Probe], Path]:
    """Render a machine below ``folder``; return what probes see of it, the probes, and the root of its tree."""
    tree = machine_files.render(machine)
    root = tree.write(folder / "root")
    answers = write_answers(machine, tree, folder / "answers")
    live = LiveNvml(nvml_probe(machine, folder))
    chosen = [live if probe.name == "nvml" else probe for probe in (PROBES if probes is None else probes)]
    return ProbeContext(roots=Roots.under(root), this_host=False, answers=answers), chosen, root


def snapshot_of(machine: Machine, folder: Path, *, probes: Sequence[Probe] | None = None) -> tuple[Snapshot, Path]:
    """Render a machine below ``folder`` and return its snapshot and the root of its tree."""
    context, chosen, root = context_of(machine, folder, probes=probes)
    return take_snapshot(context, probes=chosen), root


@functools.cache
def probed(name: str) -> tuple[Snapshot, str, str]:
    """Return the snapshot of a machine of the suite, all of it as text, and an excerpt; taken once for all tests."""
    with tempfile.TemporaryDirectory(prefix="fabricd-machine-", dir=FAST) as folder:
        snapshot, root = snapshot_of(load(name), Path(folder))
        return snapshot, golden_text(snapshot, root=str(root)), excerpt(snapshot, root=str(root))
