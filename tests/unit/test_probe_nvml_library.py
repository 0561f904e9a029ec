"""The NVML library as a whole: not there, refused, crashing or hanging, in the process that it is asked by."""

import ctypes.util
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeAbsent, ProbeContext, ProbeDenied, ProbeFailed, ProbeUnsupported, Roots
from fabricd.probe.nvml import NvmlProbe
from fabricd.probe.runner import Runner
from tests.support import machine_files
from tests.support.machine import Machine
from tests.support.machine_nvml import Scenario, write_scenario
from tests.support.machine_run import nvml_probe
from tests.support.nvml_library import environment
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Tree


def refused(box: Machine, tmp_path: Path, changed: Scenario, context: ProbeContext, **options: float) -> str:
    """Return why the probe failed."""
    with pytest.raises(ProbeFailed) as failed:
        nvml_probe(box, tmp_path, changed, **options).run(context)
    return failed.value.reason


def test_crash_is_a_failure_with_the_signal(box: Machine, roots: Roots, tmp_path: Path, answers: Scenario) -> None:
    answers["gpu1.fault.nvmlDeviceGetNvLinkVersion"] = "crash"
    answers["newest_field"] = "150"
    reason = refused(box, tmp_path, answers, ProbeContext(roots=roots))
    assert reason == "NVML crashed its process (SIGSEGV)"


def test_exit_within_the_library(box: Machine, roots: Roots, tmp_path: Path, answers: Scenario) -> None:
    reason = refused(box, tmp_path, answers | {"fault.nvmlInitWithFlags": "exit"}, ProbeContext(roots=roots))
    assert reason == "the NVML process ended with status 3 without an answer"


def test_hang_ends_at_the_deadline_and_leaves_no_process(
    box: Machine, roots: Roots, tmp_path: Path, answers: Scenario
) -> None:
    answers["gpu0.fault.nvmlDeviceGetMemoryInfo"] = "hang"
    begun = time.monotonic()
    reason = refused(box, tmp_path, answers, ProbeContext(roots=roots), answer_seconds=1.0)
    assert reason == "NVML did not answer within 1 s; its process was killed"
    assert 1.0 <= time.monotonic() - begun < 3.0
    assert not _children()


def test_child_ends_with_its_parent_even_while_the_driver_hangs(tmp_path: Path, answers: Scenario) -> None:
    path = write_scenario(answers | {"fault.nvmlInitWithFlags": "hang"}, tmp_path / "hang.txt")
    program = (
        "import os, subprocess, sys\n"
        "command = [sys.executable, '-m', 'fabricd.probe.nvml_child', str(os.getpid())]\n"
        "print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, flush=True)\n"
        "input()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment(path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    time.sleep(0.3)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


def test_the_map_is_served_while_nvml_hangs(box: Machine, tmp_path: Path, answers: Scenario) -> None:
    """Once NVML hangs, its facts stay as stale ones, and other probes refresh on their own."""
    root = machine_files.render(box).write(tmp_path / "root")
    probe = nvml_probe(box, tmp_path, answers, answer_seconds=1.0)
    runner = Runner(ProbeContext(roots=Roots.under(root)), probes=[probe])
    before = runner.refresh()
    write_scenario(answers | {"fault.nvmlDeviceGetCount_v2": "hang"}, tmp_path / "scenario.txt")
    after = runner.refresh()
    assert after.probes[0].outcome is Outcome.STALE
    assert "did not answer within 1 s" in after.probes[0].reason
    assert after.gpus == before.gpus


def test_a_child_stuck_in_the_driver_is_not_joined_by_others(
    box: Machine, roots: Roots, tmp_path: Path, answers: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process in an uninterruptible call survives SIGKILL; here the kill itself is taken away to the same effect."""
    probe = nvml_probe(box, tmp_path, answers | {"fault.nvmlInitWithFlags": "hang"}, answer_seconds=0.5)
    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "kill", lambda self: None)
        with pytest.raises(ProbeFailed, match="did not answer"):
            probe.run(ProbeContext(roots=roots))
        with pytest.raises(ProbeFailed, match=r"earlier NVML process \(\d+\) is still stuck") as stuck:
            probe.run(ProbeContext(roots=roots))
    pid = int(stuck.value.reason.partition("(")[2].partition(")")[0])
    os.kill(pid, 9)
    write_scenario(answers, tmp_path / "scenario.txt")
    deadline = time.monotonic() + 10
    while _alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    probe.answer_seconds = 30.0  # that it takes its time on a busy machine is another matter
    assert len(probe.run(ProbeContext(roots=roots)).facts["gpus"]) == 2


def test_library_not_found_is_absent(roots: Roots, tmp_path: Path) -> None:
    if ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has the library")
    bare = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    with pytest.raises(ProbeAbsent, match=r"libnvidia-ml\.so\.1 is not found, 2 NVIDIA GPUs are on the PCI bus"):
        NvmlProbe(environment=bare).run(ProbeContext(roots=roots))


def test_binding_not_installed_is_unsupported(roots: Roots, tmp_path: Path) -> None:
    hiding = tmp_path / "hiding"
    hiding.mkdir()
    (hiding / "pynvml.py").write_text("raise ImportError('no module of that name')\n")
    without = {**os.environ, "PYTHONPATH": str(hiding)}
    with pytest.raises(ProbeUnsupported, match=r"nvidia-ml-py is not installed \(.*pip install .*\[daemon\]'\)"):
        NvmlProbe(environment=without).run(ProbeContext(roots=roots))


def test_no_gpu_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(ProbeAbsent, match="no NVIDIA device on the PCI bus"):
        NvmlProbe().run(ProbeContext(roots=Roots.under(tmp_path)))


@pytest.mark.parametrize(("code", "loaded", "kind", "words"), [
    ("DRIVER_NOT_LOADED", False, ProbeFailed, "kernel driver is not loaded, 2 NVIDIA GPUs"),
    ("DRIVER_NOT_LOADED", True, ProbeDenied, "this container was given no GPU"),
    ("LIB_RM_VERSION_MISMATCH", True, ProbeFailed, "differ in version"),
    ("NO_PERMISSION", False, ProbeDenied, "Insufficient Permissions"),
    ("OPERATING_SYSTEM", False, ProbeFailed, "operating system has blocked"),
    ("UNKNOWN", True, ProbeDenied, "nvidiactl is not there"),
])  # fmt: skip
def test_ways_in_which_the_library_refuses(
    box: Machine, tmp_path: Path, answers: Scenario, code: str, loaded: bool, kind: type[Exception], words: str
) -> None:
    tree = machine_files.render(box)
    del tree.entries["dev/nvidiactl"]
    if not loaded:
        del tree.entries["proc/driver/nvidia/version"]
    context = ProbeContext(roots=Roots.under(tree.write(tmp_path / "refusing")))
    with pytest.raises(kind, match=words):
        nvml_probe(box, tmp_path, answers | {"fault.nvmlInitWithFlags": code}).run(context)


def test_device_node_that_may_not_be_opened_is_denied(box: Machine, tmp_path: Path, answers: Scenario) -> None:
    probe = nvml_probe(box, tmp_path, answers | {"fault.nvmlInitWithFlags": "UNKNOWN"})
    with open_folder() as folder:
        root = machine_files.render(box).write(folder / "denied")
        (root / "dev/nvidiactl").chmod(0)
        with pytest.raises(ProbeDenied, match=r"may not open .*nvidiactl"):
            as_nobody(lambda: probe.run(ProbeContext(roots=Roots.under(root))))


def test_no_driver_and_no_gpu_is_absent(box: Machine, tmp_path: Path, answers: Scenario) -> None:
    tree = Tree()
    tree["dev/dxg"] = ""  # worth asking, but nothing is there
    probe = nvml_probe(box, tmp_path, answers | {"fault.nvmlInitWithFlags": "DRIVER_NOT_LOADED"})
    with pytest.raises(ProbeAbsent, match="driver is not loaded, no NVIDIA GPU is on the PCI bus"):
        probe.run(ProbeContext(roots=Roots.under(tree.write(tmp_path / "none"))))


def _children() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            if int(status.rpartition(")")[2].split()[1]) == os.getpid() and "nvml_child" in _command(entry):
                found.append(_command(entry))
    return found


def _command(entry: Path) -> str:
    try:
        return (entry / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
