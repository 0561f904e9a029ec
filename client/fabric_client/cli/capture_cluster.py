"""``fabricctl capture-cluster``: all nodes that a daemon knows, in one file."""

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fabric_client.cli.cluster_file import write_cluster
from fabric_client.cli.source import fetch_node, open_daemon
from fabric_client.connection import Connection
from fabricd.errors import InputError, UnknownNameError
from fabricd.locations import read_secret_file
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.cluster_file import Head
from fabricd.model.codec import content_hash
from fabricd.redact import redact
from fabricd.units import format_count

FileArgument = Annotated[
    Path, typer.Argument(help="Takes the cluster; must not exist; compressed when it ends in .gz.")
]
UrlOption = Annotated[
    str | None, typer.Option("--from", metavar="URL", help="The daemon to ask; by default the one of this host.")
]
RawOption = Annotated[bool, typer.Option("--raw", help="Keep names, addresses and ids as they are.")]
KeyOption = Annotated[
    Path | None,
    typer.Option("--key", help="File with a secret: captures made with the same one have the same replacements."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capture-cluster")(capture_cluster)


def capture_cluster(
    file: FileArgument, *, origin: UrlOption = None, raw: RawOption = False, key: KeyOption = None
) -> None:
    """Write what a daemon knows of all nodes into a file, without what identifies them.

    It can be looked at elsewhere: by --from of every command, and by fabricd serve --replay.
    """
    if raw and key is not None:
        raise InputError("--raw and --key exclude each other")
    drawn = secrets.token_bytes(32) if key is None else read_secret_file(key, "--key").encode()
    secret = None if raw else drawn
    connection = open_daemon(origin)
    cluster = connection.get("/v1/cluster", ClusterStatus, params={"summary": "1"})
    about = replace(cluster, nodes=())
    if secret is not None:  # sentences with names and addresses in them
        about = replace(about, conflicts=(), faults=(), store=replace(about.store, reason=""))
    head = Head(
        nodes=len(cluster.nodes),
        redacted=not raw,
        source=str(connection.address) if raw else "a daemon",
        cluster=about,
    )
    write_cluster(file, head, _nodes(connection, cluster.nodes, secret))
    kept = "as they are" if raw else "replaced; look through it before you pass it on"
    typer.echo(f"{file}: {format_count(len(cluster.nodes), 'node')}; names, addresses and ids are {kept}")


def _nodes(connection: Connection, known: Sequence[NodeStatus], secret: bytes | None) -> Iterator[NodeStatus]:
    """Yield each node as the file has it. They are asked for one after another, so they may differ by that time."""
    for summary in known:
        status = summary
        if summary.was_seen:
            try:
                status = fetch_node(connection, summary.node_id)
            except UnknownNameError as error:  # it left meanwhile, or bears the node_id of another one
                status = replace(summary, reason=str(error.message))
        yield _kept(status, secret)


def _kept(status: NodeStatus, secret: bytes | None) -> NodeStatus:
    snapshot = status.snapshot
    kept = replace(status, this_node=False, url="", note="", generation=0)
    if snapshot is None:
        return kept if secret is None else replace(kept, node_id="", name="", reason="", content_hash="", schema=0)
    snapshot = replace(snapshot, this_host=False)
    if secret is None:
        snapshot = replace(snapshot, content_hash=content_hash(snapshot))
        return replace(kept, content_hash=snapshot.content_hash, snapshot=snapshot)
    snapshot = redact(snapshot, key=secret)
    return replace(
        kept,
        node_id=snapshot.node.node_id,
        name=snapshot.node.name,
        reason="",
        content_hash=snapshot.content_hash,
        snapshot=snapshot,
    )
