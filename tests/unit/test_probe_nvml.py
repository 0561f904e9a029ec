"""The nvml probe: the real nvidia-ml-py in its own process, on the simulated library."""

import ctypes.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.codec import to_json
from fabricd.model.device import Gpu
from fabricd.model.observation import Evidence, Outcome
from fabricd.probe.base import (
    ProbeAbsent,
    ProbeContext,
    ProbeDenied,
    ProbeFailed,
    ProbeNotRun,
    ProbeUnsupported,
    Roots,
)
from fabricd.probe.nvml import RECORDED, NvmlProbe
from fabricd.probe.runner import Runner
from tests.support import machine_files, machine_nvml
from tests.support.machine import Machine, load
from tests.support.machine_nvml import Scenario, scenario, write_scenario
from tests.support.machine_run import nvml_probe
from tests.support.nvml_library import environment
from tests.support.rights import as_nobody, open_folder
from tests.support.tree import Tree

SMALL = "rtx3090-bridge"  # two GPUs with NVLinks: quick
Ask = Callable[[Scenario], tuple[Gpu, ...]]


@pytest.fixture
def box() -> Machine:
    return load(SMALL)


@pytest.fixture
def answers(box: Machine) -> Scenario:
    return scenario(box)


@pytest.fixture
def roots(box: Machine, tmp_path: Path) -> Roots:
    return Roots.under(machine_files.render(box).write(tmp_path / "root"))


@pytest.fixture
def ask(box: Machine, roots: Roots, tmp_path: Path) -> Ask:
    """Return the GPUs that the probe finds in a scenario."""

    def run(changed: Scenario) -> tuple[Gpu, ...]:
        result = nvml_probe(box, tmp_path, changed).run(ProbeContext(roots=roots))
        gpus: tuple[Gpu, ...] = result.facts["gpus"]
        return gpus

    return run


def refused(box: Machine, tmp_path: Path, changed: Scenario, context: ProbeContext, **options: float) -> str:
    """Return why the probe failed."""
    with pytest.raises(ProbeFailed) as failed:
        nvml_probe(box, tmp_path, changed, **options).run(context)
    return failed.value.reason


# --- what a GPU does not tell is a note of that GPU


def test_refusals_are_notes_of_their_field(ask: Ask, answers: Scenario) -> None:
    answers["gpu0.bar1_bytes"] = "NO_PERMISSION"
    answers["gpu0.fault.nvmlDeviceGetName"] = "UNKNOWN"
    first, second = ask(answers)
    assert (first.outcome, first.bar1_bytes, first.name) == (Outcome.OK, None, "")
    assert "bar1_bytes: Insufficient Permissions" in first.notes
    assert "name: Unknown Error" in first.notes
    assert second.bar1_bytes == 268435456
    assert not any("bar1" in note for note in second.notes)


def test_one_note_names_all_links_of_a_kind(ask: Ask, answers: Scenario) -> None:
    answers["gpu0.fault.nvmlDeviceGetNvLinkRemotePciInfo_v2"] = "NO_PERMISSION"
    assert "links.remote_pci_address 0-3: Insufficient Permissions" in ask(answers)[0].notes


def test_symbols_that_an_older_driver_lacks(box: Machine, roots: Roots, answers: Scenario, tmp_path: Path) -> None:
    path = write_scenario(answers, tmp_path / "old.txt")
    lacking = ["nvmlDeviceGetNumaNodeId", "nvmlDeviceGetMigMode", "nvmlDeviceGetFieldValues", "nvmlDeviceGetP2PStatus"]
    probe = NvmlProbe(environment=environment(path, hidden=lacking))
    gpu = probe.run(ProbeContext(roots=roots)).facts["gpus"][0]
    assert [link.active for link in gpu.links] == [True] * 4, "counted one by one"
    assert {(link.version, link.speed_bytes_per_second, link.speed_evidence) for link in gpu.links} == {
        (3, 25_000_000_000, Evidence.ASSUMED)
    }
    assert dict(gpu.links[0].errors).keys() == {"replay", "recovery", "crc_flit", "crc_data"}
    assert gpu.peers[0].topology == "hostbridge"
    assert gpu.peers[0].read == ""
    lacked = [note for note in gpu.notes if note.endswith("not in this driver's NVML")]
    assert any(note.startswith("memory_numa_node, mig_mode") for note in lacked)
    assert any(note.startswith("peers.read, peers.write") for note in lacked)


def test_version_is_a_generation_not_nvmls_number(ask: Ask, answers: Scenario) -> None:
    for number, generation in {1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 5, 8: 6}.items():
        answers[f"gpu0.link{number % 4}.version"] = str(number)
        assert ask(answers)[0].links[number % 4].version == generation
    answers["gpu0.link0.version"] = "99"
    assert ask(answers)[0].links[0].version is None


def test_reported_speed_is_each_direction(ask: Ask, answers: Scenario) -> None:
    link = ask(answers)[0].links[0]
    assert (link.speed_bytes_per_second, link.speed_evidence) == (14_062_000_000, Evidence.REPORTED)


@pytest.mark.parametrize(("mask", "uuid", "domain"), [
    (3, "00000000-0000-0000-0000-000000000000", ""),
    (3, "3f0c8d1e-58a2-4f66-9b0d-6d1e0a9c7b52", "3f0c8d1e-58a2-4f66-9b0d-6d1e0a9c7b52"),
])  # fmt: skip
def test_all_zero_cluster_is_no_domain(ask: Ask, answers: Scenario, mask: int, uuid: str, domain: str) -> None:
    answers |= {"gpu0.fabric.cluster": uuid, "gpu0.fabric.clique": "7", "gpu0.fabric.state": str(mask)}
    fabric = ask(answers)[0].fabric
    assert fabric is not None
    assert (fabric.cluster_uuid, fabric.state, fabric.status) == (domain, "completed", "success")
    assert fabric.clique_id == (7 if domain else None)


@pytest.mark.parametrize("newest", ["3", "2", "1"])
def test_fabric_in_every_version_of_the_answer(ask: Ask, answers: Scenario, newest: str) -> None:
    answers |= {"fabric_version": newest, "gpu0.fabric.cluster": "3f0c8d1e-58a2-4f66-9b0d-6d1e0a9c7b52"}
    answers |= {"gpu0.fabric.clique": "5", "gpu0.fabric.state": "2", "gpu0.fabric.status": "999"}
    answers |= {"gpu0.fabric.health_mask": "2730", "gpu0.fabric.health_summary": "2"}
    fabric = ask(answers)[0].fabric
    assert fabric is not None
    assert (fabric.clique_id, fabric.state, fabric.status) == (5, "in-progress", "Unknown Error")
    assert fabric.health_mask == (None if newest == "1" else 2730)
    assert fabric.health == ("unhealthy" if newest == "3" else "")


def test_c2c_counts_active_links_only(ask: Ask, answers: Scenario) -> None:
    answers |= {"gpu0.c2c.links": "3"}
    for link, state in enumerate((1, 0, 1)):
        answers |= {f"gpu0.c2c.link{link}.state": str(state), f"gpu0.c2c.link{link}.max_mbps": "44712"}
    gpu = ask(answers)[0]
    assert (gpu.c2c_links, gpu.c2c_bytes_per_second) == (2, 2 * 44_712_000_000)


def test_links_that_sleep_carry_data_and_those_with_traffic_disabled_do_not(ask: Ask, answers: Scenario) -> None:
    answers |= {f"gpu0.link{link}.state": str(state) for link, state in enumerate((1, 2, 3, 7))}
    assert [link.active for link in ask(answers)[0].links] == [True, True, False, None]


def test_addresses_are_in_the_kernels_form(ask: Ask, answers: Scenario) -> None:
    for said, kernel in {"12:3d:1": "0012:3d:01.0", "10000:1:0": "10000:01:00.0", "0:3d:0.4": "0000:3d:00.4"}.items():
        answers["gpu0.link0.remote_pci"] = said
        assert ask(answers)[0].links[0].remote_pci_address == kernel
    answers["gpu0.link0.remote_pci"] = "ffffffff:ff:1f"
    assert ask(answers)[0].links[0].remote_pci_address == ""


def test_imex_channels_are_those_of_the_device_folder(box: Machine, tmp_path: Path, answers: Scenario) -> None:
    tree = machine_files.render(box)
    tree.update("dev/nvidia-caps-imex-channels", {"channel2": "", "channel0": "", "other": ""})
    context = ProbeContext(roots=Roots.under(tree.write(tmp_path / "with-imex")))
    assert nvml_probe(box, tmp_path, answers).run(context).facts["gpu_driver"].imex_channels == (0, 2)


def test_a_library_that_prints_does_not_garble_the_answer(ask: Ask, answers: Scenario) -> None:
    assert len(ask(answers | {"noise": '{"gpus": []}'})) == 2


# --- GPUs that are lost


def test_lost_gpu_keeps_its_last_known_facts(box: Machine, roots: Roots, tmp_path: Path, answers: Scenario) -> None:
    probe = nvml_probe(box, tmp_path, answers)
    before = probe.run(ProbeContext(roots=roots)).facts["gpus"]
    write_scenario(answers | {"gpu1.fault": "GPU_IS_LOST"}, tmp_path / "scenario.txt")
    after = probe.run(ProbeContext(roots=roots)).facts["gpus"]
    assert after[1].outcome is Outcome.FAILED
    assert after[1].reason == "GPU is lost"
    assert replace(after[1], outcome=Outcome.OK, reason="", notes=before[1].notes) == before[1]
    assert after[0].outcome is Outcome.OK
    assert after[0].links == before[0].links
    assert after[0].peers == (), "nothing can be asked of a lost peer"
    write_scenario(answers, tmp_path / "scenario.txt")
    assert probe.run(ProbeContext(roots=roots)).facts["gpus"] == before, "back after a reset"


def test_facts_of_another_gpu_are_not_lent(box: Machine, roots: Roots, tmp_path: Path, answers: Scenario) -> None:
    probe = nvml_probe(box, tmp_path, answers)
    first, _ = probe.run(ProbeContext(roots=roots)).facts["gpus"]
    # GPU 0 was taken out: NVML numbers the others anew, and what is now GPU 1 is lost.
    write_scenario(
        answers | {"gpu0.uuid": answers["gpu1.uuid"], "gpu1.fault": "GPU_IS_LOST"}, tmp_path / "scenario.txt"
    )
    after = probe.run(ProbeContext(roots=roots)).facts["gpus"]
    assert (after[1].uuid, after[1].pci_address, after[1].outcome) == ("", "", Outcome.FAILED)
    assert first.uuid not in {gpu.uuid for gpu in after}


def test_gpu_lost_half_way_keeps_what_it_told(ask: Ask, answers: Scenario) -> None:
    answers["gpu0.fault.nvmlDeviceGetNvLinkRemoteDeviceType"] = "GPU_IS_LOST"
    first, second = ask(answers)
    assert (first.outcome, first.uuid, first.links) == (Outcome.FAILED, answers["gpu0.uuid"], ())
    assert second.outcome is Outcome.OK


def test_denied_gpu_is_denied_alone(ask: Ask, answers: Scenario) -> None:
    answers["gpu0.fault.nvmlDeviceGetHandleByIndex_v2"] = "NO_PERMISSION"
    first, second = ask(answers)
    assert (first.outcome, first.reason) == (Outcome.DENIED, "Insufficient Permissions")
    assert second.outcome is Outcome.OK


# --- the library as a whole


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


def test_absurd_number_of_gpus(ask: Ask, answers: Scenario) -> None:
    assert len(ask(answers | {"count": "3000000000"})) == 64


# --- replay


def test_recorded_answer_gives_the_same_facts(box: Machine, roots: Roots, tmp_path: Path, answers: Scenario) -> None:
    probe = nvml_probe(box, tmp_path, answers)
    live = probe.run(ProbeContext(roots=roots))
    (tmp_path / RECORDED).write_bytes(probe.ask())
    replay = NvmlProbe().run(ProbeContext(roots=roots, this_host=False, answers=tmp_path))
    assert replay.facts == live.facts


def test_replay_without_answer_is_not_run(roots: Roots, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        with pytest.raises(ProbeNotRun):
            NvmlProbe().run(ProbeContext(roots=roots, this_host=False, answers=folder))


@pytest.mark.parametrize("text", ["", "[]", '{"gpus": [{"index": "x"}]}', '{"gpus"', "\x00" * 100, "[" * 100_000])
def test_recorded_nonsense_is_refused(roots: Roots, tmp_path: Path, text: str) -> None:
    (tmp_path / RECORDED).write_text(text)
    with pytest.raises(ProbeFailed, match="not a valid"):
        NvmlProbe().run(ProbeContext(roots=roots, this_host=False, answers=tmp_path))


def test_unknown_fields_of_a_newer_recording_are_ignored(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / RECORDED).write_text(json.dumps({"gpus": [{"index": 0, "colour": "green"}], "weather": 3}))
    facts = NvmlProbe().run(ProbeContext(roots=roots, this_host=False, answers=tmp_path)).facts
    assert to_json(facts["gpus"][0])


# --- cost


def test_calls_are_counted_and_few(tmp_path: Path) -> None:
    """Eight H100: some twenty calls a GPU, three a link, five a pair. A call too many is multiplied by 144 links."""
    box = load("hgx-h100")
    roots = Roots.under(machine_files.render(box).write(tmp_path / "root"))
    probe = nvml_probe(box, tmp_path)
    answer = json.loads(probe.ask())
    counted = [line.split() for line in (tmp_path / "calls.txt").read_text().splitlines()]
    assert sum(int(count) for _, count in counted) == answer["calls"] + 1, "and nvmlShutdown"
    assert answer["calls"] <= 8 * (25 + 3 * 18 + 5 * 7) + 5
    assert len(probe.run(ProbeContext(roots=roots)).facts["gpus"]) == 8


def test_scenario_of_every_machine_names_only_known_keys() -> None:
    """A key that is spelt wrong would answer NOT_SUPPORTED without a word."""
    sources = "".join(path.read_text() for path in (Path(__file__).parents[1] / "nvml").glob("*.c"))
    for name in ("gb200-nvl72-host0", "mig-a100", "dgx1-v100"):
        for key in machine_nvml.scenario(load(name)):
            word = key.rpartition(".")[2].rstrip("0123456789")
            assert word in sources or key.startswith("gpu0.fault."), key


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
