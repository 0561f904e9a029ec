"""What ``--from`` names: a daemon, a snapshot of one node or of a cluster, or a topology file in NCCL's XML."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from fabric_client.connection import Connection
from fabric_client.locate import find_daemon, find_token
from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.nccl_xml_read import read
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.model.capture import read_snapshot
from fabricd.model.cluster import ClusterStatus
from fabricd.model.codec import from_json
from fabricd.model.snapshot import Snapshot

_MAX_BYTES = 64 * 1024 * 1024

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL|FILE",
        help="A daemon (http://HOST:7470, unix:/path), a snapshot (`fabricd probe --json`), or an NCCL topology XML; "
        "- reads standard input. By default the daemon of this host.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One of ``connection``, ``topology``, or ``nodes`` alone."""

    name: str
    nodes: Mapping[str, Snapshot] = field(default_factory=dict)  #: by node_id, the local one first
    topology: NcclTopology | None = None
    connection: Connection | None = None

    def node(self, name: str = "") -> Snapshot:
        """Return a node by display name or node_id, by default the first.

        Raises:
            UnknownNameError: no such node; lists those there are.
        """
        for node_id, snapshot in self.nodes.items():
            if name in ("", node_id, snapshot.node.name):
                return snapshot
        raise UnknownNameError("node", name, [snapshot.node.name for snapshot in self.nodes.values()])


def load(origin: str | None) -> Source:
    """Return what is there.

    Raises:
        UnreachableError: no daemon answers there.
        InputError: a file that cannot be read.
        ParseError: a file that is none of these.
    """
    if origin is None or origin.startswith(("http://", "https://", "unix:")):
        connection = Connection(find_daemon(origin), token=find_token())
        return _from_cluster(connection.get("/v1/cluster", ClusterStatus), str(connection.address), connection)
    data = read_input(origin)
    name = "standard input" if origin == "-" else origin
    if data.lstrip()[:1] == b"<":
        return Source(name=name, topology=read(data, source=name))
    if b'"nodes"' in data[:4096] and b'"instance"' in data[:4096] and b'"node":' not in data[:256]:
        return _from_cluster(from_json(data, ClusterStatus, what=name), name)
    snapshot = read_snapshot(data, what=name)
    return Source(name=name, nodes={snapshot.node.node_id: snapshot})


def _from_cluster(cluster: ClusterStatus, name: str, connection: Connection | None = None) -> Source:
    known = {status.node_id: status.snapshot for status in cluster.nodes if status.snapshot is not None}
    return Source(name=name, nodes=known, connection=connection)


def read_input(origin: str) -> bytes:
    """Return the content of a file, or of standard input for ``-``.

    Raises:
        InputError: it cannot be read, is empty or too large.
    """
    try:
        if origin == "-":
            data = sys.stdin.buffer.read(_MAX_BYTES + 1)
        else:
            with Path(origin).open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read {origin}: {error.strerror}", hint="a URL or a file is expected") from error
    if len(data) > _MAX_BYTES:
        raise InputError(f"{origin} is larger than {_MAX_BYTES} bytes", hint="is it a snapshot or a topology file?")
    if not data.strip():
        raise InputError(f"{origin} is empty")
    return data
