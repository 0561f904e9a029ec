"""The runner: what a probe meets stays with that probe."""

import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fabricd.model.codec import from_json, to_json
from fabricd.model.device import NumaNode
from fabricd.model.identity import NodeIdentity
from fabricd.model.observation import Outcome
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import (
    Probe,
    ProbeAbsent,
    ProbeContext,
    ProbeDenied,
    ProbeNotRun,
    ProbeResult,
    ProbeUnsupported,
    Roots,
)
from fabricd.probe.registry import PROBES
from fabricd.probe.runner import Runner, take_snapshot


@dataclass
class Scripted:
    """A probe that does what a function says."""

    name: str
    act: Any
    deadline_seconds: float = 5.0
    runs: int = 0

    def run(self, ctx: ProbeContext) -> ProbeResult:
        self.runs += 1
        return self.act(self.runs)


def found(count: int = 1) -> ProbeResult:
    return ProbeResult(facts={"numa": tuple(NumaNode(index=index) for index in range(count))})


def raising(error: BaseException) -> Any:
    def act(_: int) -> ProbeResult:
        raise error

    return act


def outcomes(snapshot: Snapshot) -> dict[str, Outcome]:
    return {report.name: report.outcome for report in snapshot.probes}


@pytest.fixture
def empty(tmp_path: Path) -> ProbeContext:
    return ProbeContext(roots=Roots.under(tmp_path), this_host=False)


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (ProbeAbsent("no device"), Outcome.ABSENT, "no device"),
        (ProbeDenied("needs root"), Outcome.DENIED, "needs root"),
        (ProbeUnsupported("old driver"), Outcome.UNSUPPORTED, "old driver"),
        (ProbeNotRun("a replay"), Outcome.NOT_RUN, "a replay"),
        (
            OSError(5, "Input/output error"),
            Outcome.FAILED,
            "OSError: [Errno 5] Input/output error (in test_probe_runner",
        ),
        (SystemExit(3), Outcome.FAILED, "SystemExit: 3"),
        (RecursionError("deep"), Outcome.FAILED, "RecursionError: deep"),
    ],
)
def test_each_end_of_a_probe_has_its_word(
    empty: ProbeContext, error: BaseException, outcome: Outcome, reason: str
) -> None:
    snapshot = take_snapshot(empty, probes=(Scripted("bad", raising(error)), Scripted("good", lambda _: found(2))))
    report = snapshot.probes[0]
    assert (report.name, report.outcome) == ("bad", outcome)
    assert report.reason.startswith(reason)
    assert snapshot.probes[1].outcome is Outcome.OK
    assert len(snapshot.numa) == 2


def test_a_hanging_probe_is_abandoned_at_its_deadline_and_says_where(empty: ProbeContext) -> None:
    release = threading.Event()

    def hang_in_driver(_: int) -> ProbeResult:
        release.wait()
        return found()

    hanging = Scripted("hangs", hang_in_driver, deadline_seconds=0.3)
    runner = Runner(empty, probes=(hanging, Scripted("good", lambda _: found())))
    begun = time.monotonic()
    first = runner.refresh()
    assert time.monotonic() - begun < 2
    assert outcomes(first) == {"hangs": Outcome.FAILED, "good": Outcome.OK}
    assert "deadline of 0.3 s passed" in first.probes[0].reason
    assert "hang_in_driver" in first.probes[0].reason

    # While it hangs it is neither waited for nor started again.
    begun = time.monotonic()
    second = runner.refresh()
    assert time.monotonic() - begun < 0.25
    assert "still hangs" in second.probes[0].reason
    assert hanging.runs == 1

    release.set()
    assert wait_until(lambda: runner.refresh(["hangs"]).probes[0].outcome is Outcome.OK)
    assert hanging.runs == 2


def test_hanging_probes_leave_no_pile_of_threads(empty: ProbeContext) -> None:
    release = threading.Event()
    runner = Runner(empty, probes=(Scripted("hangs", lambda _: release.wait() and found(), deadline_seconds=0.05),))
    before = threading.active_count()
    for _ in range(20):
        runner.refresh()
    assert threading.active_count() <= before + 1
    release.set()


def test_probes_run_at_the_same_time(empty: ProbeContext) -> None:
    barrier = threading.Barrier(3, timeout=5)

    def meet(_: int) -> ProbeResult:
        barrier.wait()
        return ProbeResult()

    snapshot = take_snapshot(empty, probes=[Scripted(name, meet) for name in "abc"])
    assert set(outcomes(snapshot).values()) == {Outcome.OK}


def test_facts_of_an_earlier_run_stay_and_are_called_stale(empty: ProbeContext) -> None:
    def once(run: int) -> ProbeResult:
        if run == 1:
            return found(3)
        raise OSError("bus error")

    runner = Runner(empty, probes=(Scripted("numa", once),))
    assert len(runner.refresh().numa) == 3
    later = runner.refresh()
    assert len(later.numa) == 3
    assert later.probes[0].outcome is Outcome.STALE
    assert "bus error" in later.probes[0].reason


def test_facts_go_when_the_device_does(empty: ProbeContext) -> None:
    def once(run: int) -> ProbeResult:
        if run == 1:
            return found()
        raise ProbeAbsent("unplugged")

    runner = Runner(empty, probes=(Scripted("numa", once),))
    runner.refresh()
    assert runner.refresh().numa == ()


def test_refresh_of_some_probes_leaves_the_others(empty: ProbeContext) -> None:
    first, second = Scripted("a", lambda _: found()), Scripted("b", lambda _: ProbeResult())
    runner = Runner(empty, probes=(first, second))
    assert outcomes(runner.snapshot()) == {"a": Outcome.NOT_RUN, "b": Outcome.NOT_RUN}
    runner.refresh(["a"])
    runner.refresh(["a"])
    assert (first.runs, second.runs) == (2, 0)
    assert outcomes(runner.snapshot()) == {"a": Outcome.OK, "b": Outcome.NOT_RUN}
    with pytest.raises(KeyError):
        runner.refresh(["c"])


def test_a_refresh_during_a_run_runs_again_afterwards(empty: ProbeContext) -> None:
    """What the run in progress read may be older than the event that asked for the refresh."""
    entered, go_on = threading.Event(), threading.Event()

    def act(run: int) -> ProbeResult:
        if run == 1:
            entered.set()
            go_on.wait(5)
        return found(run)

    runner = Runner(empty, probes=(Scripted("numa", act),))
    early = threading.Thread(target=runner.refresh)
    early.start()
    assert entered.wait(5)
    late = threading.Thread(target=runner.refresh)
    late.start()
    time.sleep(0.05)
    go_on.set()
    early.join(5)
    late.join(5)
    assert len(runner.snapshot().numa) == 2


@pytest.mark.parametrize(
    "facts",
    [
        {"gpu": ()},
        {"probes": ()},
        {"numa": (NumaNode(index="zero"),)},  # type: ignore[arg-type]
        {"numa": 5},
        {"node": NodeIdentity(node_id="a", name="\udcff")},
    ],
)
def test_facts_that_do_not_fit_the_model_fail_the_probe_alone(empty: ProbeContext, facts: dict[str, Any]) -> None:
    snapshot = take_snapshot(
        empty, probes=(Scripted("odd", lambda _: ProbeResult(facts=facts)), Scripted("good", lambda _: found()))
    )
    assert outcomes(snapshot) == {"odd": Outcome.FAILED, "good": Outcome.OK}
    assert from_json(to_json(snapshot), Snapshot) == snapshot


def test_notes_and_reasons_are_bounded(empty: ProbeContext) -> None:
    many = ProbeResult(notes=tuple("x" * 10_000 for _ in range(5000)))
    snapshot = take_snapshot(
        empty, probes=(Scripted("many", lambda _: many), Scripted("long", raising(OSError("y" * 10_000))))
    )
    assert len(to_json(snapshot)) < 100_000
    assert snapshot.probes[0].notes[-1] == "and 4900 more"


def test_two_probes_of_one_name_are_refused(empty: ProbeContext) -> None:
    with pytest.raises(ValueError, match="one name"):
        Runner(empty, probes=(Scripted("a", found), Scripted("a", found)))


def test_a_configured_identity_wins_and_a_found_one_stays(empty: ProbeContext) -> None:
    def changing(run: int) -> ProbeResult:
        return ProbeResult(facts={"node": NodeIdentity(node_id=f"id{run}", name="box", id_source="addresses")})

    named = take_snapshot(empty, probes=(Scripted("host", changing),), node_id="mine", name="A").node
    assert (named.node_id, named.name, named.id_source) == ("mine", "A", "configured")

    runner = Runner(empty, probes=(Scripted("host", changing),))
    assert runner.refresh().node.node_id == "id1"
    assert runner.refresh().node.node_id == "id1"


def test_without_a_host_probe_the_node_still_has_a_name(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/hostname").write_text("box\n")
    node = take_snapshot(ProbeContext(roots=Roots.under(tmp_path), this_host=False), probes=()).node
    assert (node.name, node.id_source) == ("box", "hostname")


@pytest.mark.parametrize("prepare", [lambda root: None, lambda root: (root / "sys").symlink_to("sys")])
def test_an_empty_root_is_a_snapshot_without_devices(tmp_path: Path, prepare: Any) -> None:
    prepare(tmp_path)
    snapshot = take_snapshot(ProbeContext(roots=Roots.under(tmp_path), this_host=False))
    assert not snapshot.this_host
    assert (snapshot.numa, snapshot.pci, snapshot.interfaces, snapshot.hcas) == ((), (), (), ())
    ends = outcomes(snapshot)
    assert ends.pop("host") is Outcome.OK
    assert Outcome.OK not in ends.values()
    assert all(report.reason for report in snapshot.probes if report.outcome is not Outcome.OK)


def test_this_machine() -> None:
    """Every probe comes to an end in time, and the snapshot survives the wire."""
    runner = Runner(ProbeContext())
    snapshot = runner.refresh()
    assert {report.name for report in snapshot.probes} == {probe.name for probe in PROBES}
    assert not [report for report in snapshot.probes if report.outcome in (Outcome.FAILED, Outcome.NOT_RUN)]
    assert snapshot.this_host
    assert snapshot.node.node_id
    assert any(nic.name == "lo" for nic in snapshot.interfaces)
    assert from_json(to_json(snapshot), Snapshot) == snapshot


def test_the_registry_has_sound_probes() -> None:
    names = [probe.name for probe in PROBES]
    assert len(set(names)) == len(names)
    for probe in PROBES:
        typed: Probe = probe
        assert 0 < typed.deadline_seconds <= 30


def wait_until(condition: Any, seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False
