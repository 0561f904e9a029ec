"""The nvml probe: the real nvidia-ml-py in its own process, on the simulated library."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fabricd.model.codec import to_json
from fabricd.model.device import Gpu
from fabricd.model.observation import Evidence, Outcome
from fabricd.probe.base import ProbeContext, ProbeFailed, ProbeNotRun, Roots
from fabricd.probe.nvml import RECORDED, NvmlProbe
from tests.support import machine_files, machine_nvml
from tests.support.machine import Machine, load
from tests.support.machine_nvml import Scenario, write_scenario
from tests.support.machine_run import nvml_probe
from tests.support.nvml_library import environment

Ask = Callable[[Scenario], tuple[Gpu, ...]]


@pytest.fixture
def ask(box: Machine, roots: Roots, tmp_path: Path) -> Ask:
    """Return the GPUs that the probe finds in a scenario."""

    def run(changed: Scenario) -> tuple[Gpu, ...]:
        result = nvml_probe(box, tmp_path, changed).run(ProbeContext(roots=roots))
        gpus: tuple[Gpu, ...] = result.facts["gpus"]
        return gpus

    return run


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
