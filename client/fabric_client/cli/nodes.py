"""``fabricctl nodes``: the nodes that a daemon knows, and how fresh its knowledge is."""

import typer

from fabric_client.cli.show import console, print_json, table, text
from fabric_client.cli.source import FromOption, JsonOption, load_cluster
from fabricd.model.cluster import NodeState, NodeStatus

_STYLES = {NodeState.OK: "green", NodeState.STALE: "yellow", NodeState.GONE: "red", NodeState.UNKNOWN: "red"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("nodes")(nodes)


def nodes(*, origin: FromOption = None, as_json: JsonOption = False) -> None:
    """List the nodes that a daemon knows, or that are in a cluster's file."""
    cluster = load_cluster(origin)
    if as_json:
        print_json(cluster)
        return
    out = console()
    columns = ("NODE", "STATE", ">AGE", ">GPUS", ">HCAS", ">PORTS", "SYSTEM", "ADDRESS", "REASON")
    out.print(table(columns, [_row(status) for status in cluster.nodes]))
    if cluster.store.state is not NodeState.OK:
        out.print(text(f"{cluster.store.backend} is {cluster.store.state}: {cluster.store.reason}", "yellow"))
    for kind, told in (("conflict", cluster.conflicts), ("fault", cluster.faults)):
        for sentence in told:
            out.print(text(f"{kind}: {sentence}", "yellow"))


def _row(status: NodeStatus) -> tuple[object, ...]:
    snapshot = status.snapshot
    counts: tuple[object, ...] = ("?", "?", "?", "")
    if snapshot is not None:
        counts = (
            len(snapshot.gpus),
            len(snapshot.hcas),
            sum(1 for interface in snapshot.interfaces if interface.pci_address),
            ", ".join(filter(None, (snapshot.node.os, snapshot.node.virtualization))),
        )
    name = (status.name or "?") + (" (this node)" if status.this_node else "")
    age = "never" if status.age_seconds is None else f"{status.age_seconds:.0f} s"
    state = text(status.state, _STYLES[status.state])
    return (name, state, age, *counts, status.url, status.reason or status.note)
