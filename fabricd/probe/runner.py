"""Runs probes, each in a thread of its own under its own deadline, and makes a snapshot of what they found.

Nothing that a probe meets can stop the others: a probe that hangs is abandoned and not started again before it has
ended; one that raises is reported. Facts of an earlier, good run are kept and marked stale.
"""

import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from fabricd.model.codec import content_hash
from fabricd.model.identity import NodeIdentity
from fabricd.model.observation import Outcome, ProbeReport
from fabricd.model.snapshot import Snapshot
from fabricd.probe.base import Probe, ProbeContext, ProbeResult, ProbeStopped
from fabricd.probe.host import fallback_identity
from fabricd.probe.merge import add_facts
from fabricd.probe.registry import PROBES
from fabricd.smallfile import reading_through

_NO_FACTS = {"schema", "generation", "instance", "content_hash", "taken_at", "this_host", "probes"}
_FACT_TYPES = {name: kind for name, kind in get_type_hints(Snapshot).items() if name not in _NO_FACTS}
_MAX_REASON = 500
_MAX_NOTES = 100


class _Job:
    """One run of one probe in a daemon thread. ``report`` and ``facts`` are valid once ``done`` is set."""

    def __init__(self, probe: Probe, ctx: ProbeContext) -> None:
        self.probe = probe
        self.begun = time.monotonic()
        self.done = threading.Event()
        self.abandoned = False
        self.facts: Mapping[str, Any] = {}
        self.report = ProbeReport(name=probe.name, outcome=Outcome.NOT_RUN)
        self._ctx = ctx
        self._thread = threading.Thread(target=self._run, name=f"probe-{probe.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the limit of processes is reached
            self.report = ProbeReport(name=probe.name, outcome=Outcome.FAILED, reason=str(error))
            self.done.set()

    def _run(self) -> None:
        outcome, reason = Outcome.OK, ""
        notes: tuple[str, ...] = ()
        try:
            ctx = self._ctx
            with reading_through(ctx.files if ctx.recording is None else ctx.recording.door):
                result = self.probe.run(ctx)
            notes = _bounded(result.notes)
            self.facts = _checked_facts(result)
        except ProbeStopped as stop:
            outcome, reason = stop.outcome, stop.reason
        except BaseException as error:  # noqa: BLE001 - foreign libraries raise anything, SystemExit included
            outcome, reason = Outcome.FAILED, f"{type(error).__name__}: {error} (in {_where(error.__traceback__)})"
        self.report = ProbeReport(
            name=self.probe.name,
            outcome=outcome,
            reason=reason[:_MAX_REASON],
            duration_seconds=time.monotonic() - self.begun,
            notes=notes,
        )
        self.done.set()

    def wait(self) -> tuple[ProbeReport, Mapping[str, Any]]:
        """Return report and facts, at the probe's deadline at the latest."""
        remaining = self.begun + self.probe.deadline_seconds - time.monotonic()
        if self.done.wait(max(0.0, remaining)):
            return self.report, self.facts
        self.abandoned = True
        frame = sys._current_frames().get(self._thread.ident or 0)
        names = []
        while frame is not None:
            names.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
            frame = frame.f_back
        reason = f"deadline of {self.probe.deadline_seconds:g} s passed in {' < '.join(names[:4]) or 'its thread'}"
        elapsed = time.monotonic() - self.begun
        return ProbeReport(
            name=self.probe.name, outcome=Outcome.FAILED, reason=reason[:_MAX_REASON], duration_seconds=elapsed
        ), {}


@dataclass(slots=True)
class _Kept:
    """The latest answer of a probe."""

    report: ProbeReport
    facts: Mapping[str, Any]
    begun: float  #: when the run began, monotonic: of two callers' answers, the later run's stays


class Runner:
    """Runs probes again and again, and remembers. Every method may be called from any thread, at the same time too.

    Args:
        ctx: what the probes are given.
        probes: which ones; names must differ.
        node_id: configured identity, instead of what the machine says.
        name: configured display name.
    """

    def __init__(
        self,
        ctx: ProbeContext,
        *,
        probes: Sequence[Probe] = PROBES,
        node_id: str | None = None,
        name: str | None = None,
    ) -> None:
        self._ctx = ctx
        self._probes = {probe.name: probe for probe in probes}
        if len(self._probes) != len(probes):
            raise ValueError("two probes bear one name")
        self._node_id = node_id
        self._name = name
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._kept: dict[str, _Kept] = {}
        self._id_source = "configured" if node_id else ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the probes, in order."""
        return tuple(self._probes)

    def refresh(self, names: Collection[str] | None = None) -> Snapshot:
        """Run the named probes, or all, and return the snapshot of everything known then.

        Returns within the longest deadline (twice that, when the same probe runs already).

        Raises:
            KeyError: no probe of that name.
        """
        chosen = [self._probes[name] for name in (self._probes if names is None else names)]
        jobs = {probe.name: self._start(probe) for probe in chosen}
        for probe in chosen:
            job = jobs[probe.name] or self._start_after_earlier(probe)
            if job is None:
                reason = "an earlier run passed its deadline and still hangs"
                report = ProbeReport(name=probe.name, outcome=Outcome.FAILED, reason=reason)
                self._keep(report, {}, time.monotonic())
            else:
                self._keep(*job.wait(), job.begun)
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        """Return what is known, without running anything."""
        with self._lock:
            kept = dict(self._kept)
        facts: dict[str, Any] = {}
        for name in self._probes:
            if name in kept:
                facts = add_facts(facts, kept[name].facts)
        facts["node"] = self._identity(facts.get("node"))
        reports = tuple(
            kept[name].report if name in kept else ProbeReport(name=name, outcome=Outcome.NOT_RUN, reason="not yet run")
            for name in self._probes
        )
        taken_at = time.time() if self._ctx.taken_at is None else self._ctx.taken_at
        snapshot = Snapshot(**facts, taken_at=taken_at, this_host=self._ctx.this_host, probes=reports)
        return replace(snapshot, content_hash=content_hash(snapshot))

    def _start(self, probe: Probe) -> _Job | None:
        """Start a run; None while an earlier one has not ended."""
        with self._lock:
            job = self._jobs.get(probe.name)
            if job is not None and not job.done.is_set():
                return None
            job = self._jobs[probe.name] = _Job(probe, self._ctx)
            return job

    def _start_after_earlier(self, probe: Probe) -> _Job | None:
        """Start a run when the present one ends: what it read may be older than the caller's reason to ask."""
        give_up = time.monotonic() + probe.deadline_seconds
        while True:
            with self._lock:
                earlier = self._jobs[probe.name]
            patience = 0.0 if earlier.abandoned else give_up - time.monotonic()
            if not earlier.done.wait(max(0.0, patience)):
                return None
            job = self._start(probe)
            if job is not None:
                return job

    def _keep(self, report: ProbeReport, facts: Mapping[str, Any], begun: float) -> None:
        with self._lock:
            earlier = self._kept.get(report.name)
            if earlier is not None and earlier.begun > begun:
                return
            if report.outcome is Outcome.FAILED and earlier is not None and earlier.facts:
                reason = f"earlier facts, because the latest try failed: {report.reason}"[:_MAX_REASON]
                report, facts = replace(report, outcome=Outcome.STALE, reason=reason), earlier.facts
            self._kept[report.name] = _Kept(report, facts, begun)

    def _identity(self, found: NodeIdentity | None) -> NodeIdentity:
        """Return who this node is; the id stays what it was first, whatever is plugged in or out later."""
        identity = found or fallback_identity(self._ctx)
        if self._node_id is None and found is not None:
            self._node_id, self._id_source = found.node_id, found.id_source
        if self._node_id is not None:
            identity = replace(identity, node_id=self._node_id, id_source=self._id_source)
        return replace(identity, name=self._name) if self._name else identity


def take_snapshot(
    ctx: ProbeContext, *, probes: Sequence[Probe] = PROBES, node_id: str | None = None, name: str | None = None
) -> Snapshot:
    """Run the probes once, all at the same time, and return what they found. Never raises for what a probe meets."""
    return Runner(ctx, probes=probes, node_id=node_id, name=name).refresh()


def _bounded(notes: Sequence[str]) -> tuple[str, ...]:
    shown = tuple(note[:_MAX_REASON] for note in notes[:_MAX_NOTES])
    return (*shown, f"and {len(notes) - _MAX_NOTES} more") if len(notes) > _MAX_NOTES else shown


def _checked_facts(result: ProbeResult) -> Mapping[str, Any]:
    """Return the facts, after a turn over JSON: what a probe made of an absurd file must not break the snapshot."""
    checked = {}
    for name, value in result.facts.items():
        if name not in _FACT_TYPES:
            raise TypeError(f"{name!r} is not a field of a snapshot that a probe fills")
        checked[name] = msgspec.json.decode(msgspec.json.encode(value), type=_FACT_TYPES[name])
    return checked


def _where(traceback: Any) -> str:
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    return f"{Path(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
