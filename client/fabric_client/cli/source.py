"""What ``--from`` names: a daemon, a snapshot of one node or of a cluster, or a topology file in NCCL's XML."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Annotated, cast
from urllib.parse import quote

import typer

from fabric_client.cli.closing import at_end
from fabric_client.connection import Connection
from fabric_client.locate import find_daemon, find_token, with_scheme
from fabricd.errors import InputError, UnknownNameError
from fabricd.graph.nccl_xml_read import read
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.loading import no_collecting
from fabricd.model.capture import read_snapshot
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.cluster_file import is_cluster, read_cluster
from fabricd.model.snapshot import Snapshot

_MAX_BYTES = 64 * 1024 * 1024
#: Names of nodes in an error at most.
_SHOWN = 100

FromOption = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL|FILE",
        help="A daemon (http://HOST:7470, unix:/path), a snapshot (`fabricd probe --json`), a captured machine "
        "(`fabricd capture`), a cluster (`fabricctl capture-cluster`, `simulate`), or an NCCL topology XML; - reads "
        "standard input. By default the daemon of this host.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class DaemonNodes(Mapping[str, Snapshot]):
    """The nodes that a daemon knows, this one first. Each is asked for when it is looked at.

    Args:
        connection: to the daemon.
        names: of each node, by node_id.
        change: what is done with each that is looked at.
    """

    def __init__(
        self, connection: Connection, names: Mapping[str, str], change: Callable[[Snapshot], Snapshot] = lambda one: one
    ) -> None:
        self.names = names
        self._connection = connection
        self._change = change
        self._fetched: dict[str, Snapshot] = {}

    def changed(self, change: Callable[[Snapshot], Snapshot]) -> "DaemonNodes":
        """Return the same nodes, each changed when it is looked at."""
        return DaemonNodes(self._connection, self.names, change)

    def __getitem__(self, node_id: str) -> Snapshot:
        """Return a node.

        Raises:
            KeyError: the daemon does not know it, or not any more.
            FabricError: the daemon does not answer.
        """
        if node_id not in self.names:
            raise KeyError(node_id)
        if node_id not in self._fetched:
            status = fetch_node(self._connection, node_id)
            if status.snapshot is None:
                raise KeyError(node_id)
            self._fetched[node_id] = self._change(status.snapshot)
        return self._fetched[node_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One of ``connection``, ``topology``, or ``nodes`` alone."""

    name: str
    #: By node_id, the local one first. A daemon's are fetched one by one: look only at those that are needed.
    nodes: Mapping[str, Snapshot] = field(default_factory=dict)
    topology: NcclTopology | None = None
    connection: Connection | None = None

    def names(self) -> Mapping[str, str]:
        """Return the display name of each node, by node_id."""
        if isinstance(self.nodes, DaemonNodes):
            return self.nodes.names
        return {node_id: snapshot.node.name for node_id, snapshot in self.nodes.items()}

    def node(self, name: str = "") -> Snapshot:
        """Return a node by display name or node_id, by default the first.

        Raises:
            UnknownNameError: no such node; lists those there are.
            FabricError: the daemon does not answer.
        """
        names = self.names()
        for node_id, shown in names.items():
            if name in ("", node_id, shown):
                return self.nodes[node_id]
        raise UnknownNameError("node", name, list(names.values())[:_SHOWN])

    def nodes_around(self, name: str) -> dict[str, Snapshot]:
        """Return the node that a device's name belongs to: ``NODE/eth0`` and ``NODE`` that node, others the first.

        Raises:
            UnknownNameError: as ``node``.
            FabricError: the daemon does not answer.
        """
        node, slash, _ = name.partition("/")
        names = self.names()
        snapshot = self.node(node if slash or node in names or node in names.values() else "")
        return {snapshot.node.node_id: snapshot}


def load(origin: str | None) -> Source:
    """Return what is there.

    Raises:
        UnreachableError: no daemon answers there.
        InputError: a file that cannot be read.
        ParseError: a file that is none of these.
    """
    connection = _daemon(origin)
    if connection is not None:
        cluster = connection.get("/v1/cluster", ClusterStatus, params={"summary": "1"})
        names = {status.node_id: status.name for status in cluster.nodes if status.was_seen}
        return Source(name=str(connection.address), nodes=DaemonNodes(connection, names), connection=connection)
    with opened(origin or "-", or_address=True) as (stream, name):
        if is_cluster(stream.peek(4096)):
            with no_collecting():
                cluster = read_cluster(stream, what=name)
            known = {status.node_id: status.snapshot for status in cluster.nodes if status.snapshot is not None}
            return Source(name=name, nodes=known)
        data = _read_all(stream, name)
    if data.lstrip()[:1] == b"<":
        return Source(name=name, topology=read(data, source=name))
    snapshot = read_snapshot(data, what=name)
    return Source(name=name, nodes={snapshot.node.node_id: snapshot})


def load_cluster(origin: str | None, *, whole: bool) -> ClusterStatus:
    """Return the cluster that a daemon knows, or that is in a file.

    Args:
        origin: as ``--from`` names it.
        whole: with the snapshots; else a daemon is asked for the places of nodes, and a file's are not worked out.

    Raises:
        UnreachableError: no daemon answers there.
        InputError: a file that cannot be read, or that is one machine's.
        ParseError: a file that is none.
    """
    connection = _daemon(origin)
    if connection is not None:
        asked = {} if whole else {"summary": "1", "networks": "1"}
        return connection.get("/v1/cluster", ClusterStatus, params=asked)
    with opened(origin or "-", or_address=True) as (stream, name):
        if not is_cluster(stream.peek(4096)):
            raise InputError(
                f"{name} is no cluster",
                hint="`fabricctl capture-cluster` and `simulate` write one; `fabricctl topo --from` shows one machine",
            )
        with no_collecting():
            return read_cluster(stream, what=name)


def fetch_node(connection: Connection, node_id: str) -> NodeStatus:
    """Return one node of those that a daemon knows.

    Raises:
        UnknownNameError: it does not know that one.
        FabricError: it does not answer.
    """
    return connection.get(f"/v1/nodes/{quote(node_id, safe='')}", NodeStatus)


def read_input(origin: str) -> bytes:
    """Return the content of a file, or of standard input for ``-``.

    Raises:
        InputError: it cannot be read, is empty or too large.
    """
    with opened(origin) as (stream, name):
        return _read_all(stream, name)


def open_daemon(origin: str | None) -> Connection:
    """Return a connection to a daemon, by default this host's, which ends with the command.

    Raises:
        InputError: an address that is none.
    """
    connection = Connection(find_daemon(origin), token=find_token())
    at_end.callback(connection.close)
    return connection


def _daemon(origin: str | None) -> Connection | None:
    return open_daemon(origin) if origin is None or origin.startswith(("http://", "https://", "unix:")) else None


@contextmanager
def opened(origin: str, *, or_address: bool = False) -> Iterator[tuple[BufferedReader, str]]:
    """Open a file, or standard input for ``-``, with its name for people.

    Args:
        origin: of a file.
        or_address: for errors: it could have been a daemon's, too.

    Raises:
        InputError: it cannot be read.
    """
    name = "standard input" if origin == "-" else origin
    try:
        if origin == "-":
            yield cast(BufferedReader, sys.stdin.buffer), name
        else:
            with Path(origin).open("rb") as file:
                yield file, name
    except OSError as error:
        expected = (
            "a file, or an address: http://HOST:7470, unix:/path" if or_address else "a file, or - (standard input)"
        )
        meant = with_scheme(origin) if or_address and ":" in origin else ""
        raise InputError(f"cannot read {origin}: {error.strerror}{meant}", hint=expected) from error


def _read_all(stream: BufferedReader, name: str) -> bytes:
    """Return the rest of a stream.

    Raises:
        InputError: it is empty or too large.
    """
    data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise InputError(f"{name} is larger than {_MAX_BYTES} bytes", hint="is it a snapshot or a topology file?")
    if not data.strip():
        raise InputError(f"{name} is empty")
    return data
