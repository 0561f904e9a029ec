"""GPU events through the real nvidia-ml-py, from the simulated library."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fabricd.cluster.nodes import NodeMap
from fabricd.daemon.probing import Prober
from fabricd.model.observation import Outcome
from fabricd.probe.base import ProbeContext, ProbeFailed, Roots
from fabricd.probe.nvml import NvmlProbe
from fabricd.probe.nvml_events import GpuEvent, gpu_events
from fabricd.probe.runner import Runner
from tests.support import machine_files
from tests.support.machine import load
from tests.support.machine_nvml import Scenario, scenario, write_scenario
from tests.support.nvml_library import environment

XID, ECC, CLOCK = 0x8, 0x2, 0x10


@pytest.fixture
def answers() -> Scenario:
    return scenario(load("rtx3090-bridge")) | {f"gpu{index}.event_types": str(XID | ECC | CLOCK) for index in (0, 1)}


def collect(path: Path, count: int, **options: object) -> list[GpuEvent]:
    async def run() -> list[GpuEvent]:
        events: list[GpuEvent] = []
        async with asyncio.timeout(20):
            async for event in gpu_events(environment(path, **options)):
                events.append(event)
                if len(events) == count:
                    return events
        return events

    return asyncio.run(run())


def test_events_come_with_gpu_kind_and_number(answers: Scenario, tmp_path: Path) -> None:
    answers |= {"event0": f"0.1 1 {XID} 79", "event1": f"0.2 0 {CLOCK} 0", "event2": f"0.3 0 {ECC} 0"}
    path = write_scenario(answers, tmp_path / "s.txt")
    assert collect(path, 2) == [GpuEvent(gpu=1, kind="xid", data=79), GpuEvent(gpu=0, kind="ecc-uncorrected")]


def test_a_lost_gpu_does_not_silence_the_others(answers: Scenario, tmp_path: Path) -> None:
    answers |= {"gpu0.fault": "GPU_IS_LOST", "event0": f"0.1 0 {XID} 1", "event1": f"0.2 1 {XID} 31"}
    assert collect(write_scenario(answers, tmp_path / "s.txt"), 1) == [GpuEvent(gpu=1, kind="xid", data=31)]


def test_storm_costs_ten_events_a_second(answers: Scenario, tmp_path: Path) -> None:
    answers |= {f"event{number}": f"0.0 0 {XID} {number}" for number in range(50)}
    begun = time.monotonic()
    events = collect(write_scenario(answers, tmp_path / "s.txt"), 6)
    assert [event.data for event in events] == list(range(6))
    assert time.monotonic() - begun >= 0.5


@pytest.mark.parametrize(("change", "words"), [
    ({"fault.nvmlInitWithFlags": "DRIVER_NOT_LOADED"}, "Driver Not Loaded"),
    ({"fault.nvmlEventSetCreate": "NOT_SUPPORTED"}, "Not Supported"),
    ({"fault.nvmlEventSetWait_v2": "GPU_IS_LOST"}, "GPU is lost"),
    ({"fault.nvmlEventSetWait_v2": "crash"}, r"ended \(status -11\)"),
    ({"noise": "not ours", "fault.nvmlEventSetWait_v2": "UNKNOWN"}, "Unknown Error"),
])  # fmt: skip
def test_refusals_and_crashes_end_the_iteration(
    answers: Scenario, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    with pytest.raises(ProbeFailed, match=words):
        collect(write_scenario(answers | change, tmp_path / "s.txt"), 1)


def test_process_ends_with_the_iteration_even_while_it_hangs(answers: Scenario, tmp_path: Path) -> None:
    path = write_scenario(answers | {"fault.nvmlEventSetWait_v2": "hang"}, tmp_path / "s.txt")
    begun = time.monotonic()

    async def run() -> None:
        async with asyncio.timeout(0.5):
            async for _ in gpu_events(environment(path)):
                pytest.fail("an event")

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert time.monotonic() - begun < 3
    assert not [
        entry
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if b"nvml_events_child" in _content(entry) and str(path).encode() in _content(entry.parent / "environ")
    ]


def test_lost_gpu_is_in_the_map_within_a_second_of_its_event(answers: Scenario, tmp_path: Path) -> None:
    machine = load("rtx3090-bridge")
    root = machine_files.render(machine).write(tmp_path / "root")
    path = write_scenario(answers, tmp_path / "s.txt")
    watched = write_scenario(answers | {"event0": f"1.0 1 {XID} 79"}, tmp_path / "events.txt")
    probe = NvmlProbe(environment=environment(path))
    runner = Runner(ProbeContext(roots=Roots.under(root)), probes=[probe], node_id="n")

    async def scenario() -> None:
        nodes = NodeMap()
        prober = Prober(runner, nodes, lambda: 60.0)
        tasks = [asyncio.create_task(prober.run()), asyncio.create_task(prober.follow_gpu_events(environment(watched)))]
        await _until(lambda: nodes.ready)
        assert [gpu.outcome for gpu in nodes.local.gpus] == [Outcome.OK, Outcome.OK]
        known = nodes.local_version.number
        write_scenario(answers | {"gpu1.fault": "GPU_IS_LOST"}, path)
        await nodes.local_version.wait_for_change(known, 3.0)
        assert nodes.local.gpus[1].outcome is Outcome.FAILED
        assert nodes.local.gpus[1].uuid
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(scenario())


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - of a map that threads fill
            await asyncio.sleep(0.01)


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
