"""The daemon's looking: lanes, pokes, and what it puts into the node map while a probe hangs."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fabricd.cluster.nodes import NodeMap
from fabricd.daemon import probing
from fabricd.daemon.probing import Prober
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import ProbeContext, ProbeFailed, ProbeResult, Roots
from fabricd.probe.glance import glance, port_states
from fabricd.probe.rdma_sysfs import RdmaProbe
from fabricd.probe.runner import Runner
from tests.support.tree import Tree


@dataclass
class Told:
    """A probe that answers when it is let."""

    name: str
    may_answer: threading.Event
    deadline_seconds: float = 30.0
    runs: int = 0
    fails: bool = False

    def run(self, ctx: ProbeContext) -> ProbeResult:
        self.runs += 1
        if not self.may_answer.wait(10):
            raise ProbeFailed("never let")
        if self.fails:
            raise ProbeFailed("told to")
        return ProbeResult(notes=(f"run {self.runs}",))


@dataclass
class Bench:
    """A prober of two probes, a quick and a slow one."""

    quick: Told
    slow: Told
    nodes: NodeMap
    source: Runner
    interval: float
    prober: Prober = field(init=False)

    def __post_init__(self) -> None:
        self.prober = Prober(self.source, self.nodes, lambda: self.interval)

    def outcome(self, name: str) -> Outcome:
        return next(report.outcome for report in self.nodes.local.probes if report.name == name)

    async def until(self, condition: Callable[[], bool], seconds: float = 5.0) -> float:
        """Wait for a condition and return how long it took."""
        begun = time.monotonic()
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - of a probe in a thread, too
                await asyncio.sleep(0.005)
        return time.monotonic() - begun


@pytest.fixture
def run(tmp_path) -> Callable[..., None]:
    """Run a scenario beside a prober that looks once a minute, or as often as is asked for."""

    async def scenario_beside(scenario: Callable[[Bench], Awaitable[None]], interval: float) -> None:
        quick, slow = Told("host", threading.Event()), Told("nvml", threading.Event())
        quick.may_answer.set()
        runner = Runner(ProbeContext(roots=Roots.under(tmp_path)), probes=[quick, slow], node_id="n")
        bench = Bench(quick, slow, NodeMap(), runner, interval)
        looking = asyncio.create_task(bench.prober.run())
        try:
            await scenario(bench)
        finally:
            slow.may_answer.set()
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    return lambda scenario, interval=60.0: asyncio.run(scenario_beside(scenario, interval))


def test_first_map_is_whole_when_all_answer(run: Callable) -> None:
    async def scenario(bench: Bench) -> None:
        bench.slow.may_answer.set()
        await bench.until(lambda: bench.nodes.ready)
        assert [bench.outcome(name) for name in ("host", "nvml")] == [Outcome.OK, Outcome.OK]

    run(scenario)


def test_map_is_served_while_the_slow_probe_hangs(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_FIRST_PATIENCE_SECONDS", 0.2)

    async def scenario(bench: Bench) -> None:
        took = await bench.until(lambda: bench.nodes.ready)
        assert took >= 0.15
        assert [bench.outcome(name) for name in ("host", "nvml")] == [Outcome.OK, Outcome.NOT_RUN]
        bench.slow.may_answer.set()
        await bench.until(lambda: bench.outcome("nvml") is Outcome.OK)

    run(scenario)


def test_quick_probes_run_at_once_while_the_slow_one_hangs(run: Callable) -> None:
    async def scenario(bench: Bench) -> None:
        bench.slow.may_answer.set()
        await bench.until(lambda: bench.nodes.ready)
        bench.slow.may_answer.clear()
        bench.prober.poke({"nvml"})
        await bench.until(lambda: bench.slow.runs == 2)
        before = bench.nodes.local_version.number
        bench.prober.poke({"host"})
        took = await bench.until(lambda: bench.nodes.local_version.number > before)
        assert took < 1.0
        assert bench.quick.runs == 2
        assert bench.outcome("nvml") is Outcome.OK, "what it told before"

    run(scenario)


def test_poke_during_a_look_is_another_look(run: Callable) -> None:
    async def scenario(bench: Bench) -> None:
        await bench.until(lambda: bench.slow.runs == 1)
        bench.prober.poke({"nvml"})
        bench.slow.may_answer.set()
        await bench.until(lambda: bench.slow.runs == 2)

    run(scenario)


def test_what_hardly_changes_is_looked_at_rarely_unless_it_failed(run: Callable) -> None:
    async def scenario(bench: Bench) -> None:
        bench.slow.may_answer.set()
        await bench.until(lambda: bench.slow.runs >= 25)
        assert bench.slow.runs / 13 <= bench.quick.runs <= bench.slow.runs / 5
        bench.quick.fails = True
        await bench.until(lambda: bench.outcome("host") is Outcome.FAILED)
        before = bench.quick.runs
        await bench.until(lambda: bench.quick.runs >= before + 3, seconds=0.5)
        bench.quick.fails = False
        await bench.until(lambda: bench.outcome("host") is Outcome.OK)

    run(scenario, interval=0.02)


def test_a_glance_that_differs_has_its_probes_look_again(run: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "GLANCE_SECONDS", 0.01)

    async def scenario(bench: Bench) -> None:
        bench.slow.may_answer.set()
        await bench.until(lambda: bench.nodes.ready)
        seen = {("nvml", "absent"): 1, ("other",): 1}
        glances = 0

        def glance() -> dict[tuple[str, ...], object]:
            nonlocal glances
            glances += 1
            return dict(seen)

        glancing = asyncio.create_task(bench.prober.glance_around(glance))
        await bench.until(lambda: glances >= 3)
        assert (bench.quick.runs, bench.slow.runs) == (1, 1)
        seen["nvml", "absent"] = 2
        await bench.until(lambda: bench.slow.runs == 2)
        assert bench.quick.runs == 1
        glancing.cancel()

    run(scenario)


def test_a_glance_sees_ports_and_devices(tmp_path: Path) -> None:
    tree = Tree({"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    tree.pci("pci0000:16/0000:17:00.0", class_code=0x030200)
    roots = Roots.under(tree.write(tmp_path))
    before = glance(roots)
    assert glance(roots) == before
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/state"
    port.write_text("1: DOWN\n")
    assert {names for names, state in glance(roots).items() if state != before[names]} == {("rdma", "verbs")}
    port.write_text("4: ACTIVE\n")
    (tmp_path / "sys/bus/pci/devices/0000:17:00.0").unlink()
    assert {names for names, state in glance(roots).items() if state != before[names]} == {("pci", "nvml")}


def test_an_infiniband_port_without_an_interface_is_in_the_map_within_a_second(tmp_path: Path) -> None:
    """No event tells of it: its state is read, and the look that follows publishes it."""
    port = tmp_path / "sys/class/infiniband/mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "state").write_text("4: ACTIVE\n")

    async def scenario() -> None:
        roots = Roots.under(tmp_path)
        source = Runner(ProbeContext(roots=roots, this_host=False), probes=[RdmaProbe()], node_id="n")
        nodes = NodeMap()
        prober = Prober(source, nodes, lambda: 60.0)
        tasks = [asyncio.create_task(prober.run())]
        tasks.append(asyncio.create_task(prober.watch_ports(lambda ports: port_states(roots, ports))))
        bench = Bench(Told("a", threading.Event()), Told("b", threading.Event()), nodes, source, 60.0)
        await bench.until(lambda: nodes.ready)
        await asyncio.sleep(probing.PORTS_SECONDS + 0.1)  # it has been read once
        for text, state in (("1: DOWN\n", "down"), ("4: ACTIVE\n", "active")):
            (port / "state").write_text(text)
            took = await bench.until(lambda state=state: nodes.local.hcas[0].ports[0].state == state)
            assert took < 1.5, "0.8 s and a look, on a machine that others use"
        for task in tasks:
            task.cancel()

    asyncio.run(scenario())


def test_source_without_probes_is_served(tmp_path) -> None:
    class Still:
        names = ()

        def refresh(self, names: Collection[str] | None = None) -> Snapshot:
            return Runner(ProbeContext(roots=Roots.under(tmp_path), this_host=False), probes=[], node_id="r").snapshot()

    async def scenario() -> None:
        nodes = NodeMap()
        looking = asyncio.create_task(Prober(Still(), nodes, lambda: 60.0).run())
        assert await nodes.local_version.wait_for_change(0, 5.0)
        assert nodes.local.node.node_id == "r"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)

    asyncio.run(scenario())
