"""What could not be seen, and what two sources tell differently: without it, silence would look like health."""

from collections.abc import Iterator

from fabricd.graph.snapshot import graph_of
from fabricd.model.finding import Finding, Severity
from fabricd.model.observation import Outcome, ProbeReport
from fabricd.model.snapshot import Snapshot

_SEVERITY = {
    Outcome.FAILED: Severity.ERROR,
    Outcome.STALE: Severity.WARNING,
    Outcome.DENIED: Severity.NOTE,
    Outcome.NOT_RUN: Severity.NOTE,
}
_WHAT = {
    Outcome.FAILED: "failed: what it looks for is unknown",
    Outcome.STALE: "failed lately: what it found is of an earlier look",
    Outcome.DENIED: "was denied: what it looks for could not be checked",
    Outcome.NOT_RUN: "was not run: what it looks for could not be checked",
}
_FIX = {
    Outcome.FAILED: "the daemon's log has more; it tries again by itself",
    Outcome.STALE: "the daemon's log has more; it tries again by itself",
    Outcome.DENIED: "give the daemon the right that the reason names",
    Outcome.NOT_RUN: "switch it on in the daemon's configuration, where the reason says that it is off",
}
_SHOWN = 8


def probe_findings(snapshot: Snapshot) -> Iterator[Finding]:
    """Yield which probes of a node did not see what they look for, and where its facts contradict each other."""
    for report in snapshot.probes:
        if report.outcome in _SEVERITY:
            yield _of(report)
    for conflict in graph_of(snapshot).conflicts:
        yield Finding(
            code="facts-conflict",
            severity=Severity.NOTE,
            subject=conflict.where,
            what=f"sources do not agree about {conflict.where}: {conflict.problem}",
            evidence=(f"taken: {conflict.taken}",) if conflict.taken else (),
            fix="update the firmware; paths and plans use what was taken",
        )


def _of(report: ProbeReport) -> Finding:
    return Finding(
        code=f"probe-{report.outcome.value.replace('_', '-')}",
        severity=_SEVERITY[report.outcome],
        subject=report.name,
        what=f"the probe '{report.name}' {_WHAT[report.outcome]}",
        evidence=tuple(filter(None, (report.reason, *report.notes[:_SHOWN]))),
        fix=_FIX[report.outcome],
    )
