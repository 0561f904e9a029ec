"""What a daemon's map says of itself: nodes that do not answer, nodes that cannot be told apart, and its store."""

from collections.abc import Collection, Iterable, Iterator

from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.finding import Finding, Severity

_SEVERITY = {NodeState.STALE: Severity.WARNING, NodeState.GONE: Severity.ERROR, NodeState.UNKNOWN: Severity.ERROR}
_WHAT = {
    NodeState.STALE: "did not answer lately: what is known of it is of an earlier look",
    NodeState.GONE: "has not answered for long, and is no way for anything",
    NodeState.UNKNOWN: "never answered since this daemon started",
}


def cluster_findings(
    head: ClusterStatus, nodes: Iterable[NodeStatus], wanted: Collection[str] | None = None
) -> Iterator[Finding]:
    """Yield what is wrong with the map.

    Args:
        head: all but the nodes.
        nodes: that the daemon knows.
        wanted: only of these nodes, by node_id; None for all, and for what belongs to no node.
    """
    for one in nodes:
        if one.state in _SEVERITY and (wanted is None or one.node_id in wanted):
            name = one.name or one.url or one.node_id
            age = "" if one.age_seconds is None else f"the last answer was {one.age_seconds:.0f} s ago"
            yield Finding(
                code=f"node-{one.state.value}",
                severity=_SEVERITY[one.state],
                node=name,
                what=f"{name} {_WHAT[one.state]}",
                evidence=tuple(filter(None, (one.reason, age))),
                fix="on the node: systemctl status fabricd; then the way to it, and its tokens and certificates",
            )
    if wanted is not None:
        return
    for told in head.conflicts:
        fix = "node_id in the configuration of one of them; or give the machine that was imaged its own machine-id"
        yield Finding(code="node-conflict", severity=Severity.WARNING, what=told, fix=fix)
    for told in head.faults:
        fix = "see the list of peers in the daemon's configuration: fabricd check-config"
        yield Finding(code="membership-fault", severity=Severity.WARNING, what=told, fix=fix)
    if head.store.state is not NodeState.OK:
        yield Finding(
            code="store-lost",
            severity=Severity.ERROR,
            subject=head.store.backend,
            what=f"{head.store.backend}, where nodes tell of themselves, is {head.store.state}",
            evidence=(head.store.reason,) if head.store.reason else (),
            fix="the map is the last one known, and goes on when it answers again",
        )
