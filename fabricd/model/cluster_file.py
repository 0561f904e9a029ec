"""A whole cluster in one file: a JSON object a line, gzip over it or not.

The first line says what the file is, each other one is a node, as ``GET /v1/nodes/{node}`` has it::

    {"format": "fabricd-cluster", "version": 1, "nodes": 2, "redacted": true, "cluster": {...}}
    {"node_id": "...", "name": "n0", "state": "ok", "snapshot": {...}}
    {"node_id": "...", "name": "n1", "state": "ok", "snapshot": {...}}

So it is written and read a node at a time, whatever its size. ``cluster`` is what ``GET /v1/cluster`` tells beside its
nodes. A saved answer of ``GET /v1/cluster`` is read, too. What comes out of a file is never this host.

Bounds, against files of others that would fill the memory: ``MAX_NODES`` nodes, ``MAX_LINE_BYTES`` for each, and
``MAX_BYTES`` in all, after decompression.
"""

import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BufferedReader, RawIOBase
from typing import BinaryIO, cast

from fabricd.errors import ParseError
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.codec import check_snapshot, content_hash, from_json, to_line
from fabricd.model.shared import SharedParts

FORMAT = "fabricd-cluster"
VERSION = 1
MAX_NODES = 65_536
MAX_LINE_BYTES = 32 << 20
MAX_BYTES = 4 << 30
#: With blank ones.
_MAX_LINES = 2 * MAX_NODES
#: Of a saved answer, which is decoded at once.
MAX_ANSWER_BYTES = 64 << 20
_LOOK_BYTES = 4096
_GZIP = b"\x1f\x8b"
_EMPTY = ClusterStatus(instance="", generation=0, nodes=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The first line."""

    format: str = ""
    version: int = VERSION
    nodes: int = 0  #: lines that follow: fewer are a file that was cut off
    redacted: bool = False  #: names, addresses and ids are replaced
    source: str = ""  #: for people: which daemon was asked, or how it was simulated
    cluster: ClusterStatus = _EMPTY  #: without nodes


def lines_of(head: Head, nodes: Iterable[NodeStatus]) -> Iterator[bytes]:
    """Yield the lines of a file, each with its end.

    Args:
        head: its format, version and number of nodes are set here or by the caller: as many as ``nodes`` yields.
        nodes: the nodes.
    """
    yield to_line(replace(head, format=FORMAT, version=VERSION))
    for node in nodes:
        yield to_line(node)


def is_cluster(beginning: bytes) -> bool:
    """Tell a cluster's file from other JSON by its first bytes, some hundred or more of them."""
    start = _unpacked(beginning).lstrip()
    nodes, node = start.find(b'"nodes"'), start.find(b'"node"')
    saved_answer = b'"instance"' in start and nodes >= 0 and not 0 <= node < nodes
    return start[:1] == b"{" and (_has_format(start) or saved_answer)


def _has_format(start: bytes) -> bool:
    return f'"{FORMAT}"'.encode() in start[:256]


def _unpacked(beginning: bytes) -> bytes:
    if beginning[:2] != _GZIP:
        return beginning[:_LOOK_BYTES]
    try:
        return zlib.decompressobj(wbits=31).decompress(beginning, _LOOK_BYTES)
    except zlib.error:
        return b""


def read_cluster(stream: BufferedReader, *, what: str) -> ClusterStatus:
    """Return the cluster in a file.

    Args:
        stream: at its beginning.
        what: for errors.

    Raises:
        ParseError: it is none, is cut off, or is beyond the bounds; says in which line.
        OSError: it cannot be read.
    """
    beginning = stream.peek(_LOOK_BYTES)
    lines = _Lines(stream, what, compressed=beginning[:2] == _GZIP)
    if not _has_format(_unpacked(beginning)):
        cluster = from_json(lines.rest(), ClusterStatus, what=what)
        nodes = [_replayed(node, f"{what}, node {node.name[:80]!r}") for node in cluster.nodes]
        return replace(cluster, nodes=tuple(_told_apart(nodes)))
    head = from_json(lines.next(), Head, what=f"{what}, line 1")
    if head.version != VERSION:
        raise ParseError(f"{what} has version {head.version} of its format", hint=f"this program reads {VERSION}")
    return replace(head.cluster, nodes=tuple(_nodes(lines, head, what)))


def _nodes(lines: "_Lines", head: Head, what: str) -> Iterator[NodeStatus]:
    parts = SharedParts()
    seen: set[str] = set()
    count = 0
    while line := lines.next():
        where = f"{what}, line {lines.number}"
        count += 1
        if count > MAX_NODES:
            raise ParseError(f"{what} has more than {MAX_NODES} nodes")
        node = _replayed(parts.decode(line, NodeStatus, what=where), where)
        if node.snapshot is not None:
            if node.node_id in seen:
                raise ParseError(f"{where}: node_id {node.node_id[:80]!r} stands there twice")
            seen.add(node.node_id)
        yield node
    if count != head.nodes:
        raise ParseError(f"{what} is cut off, or was put together by hand: it has {count} of {head.nodes} nodes")


def _replayed(node: NodeStatus, where: str) -> NodeStatus:
    """Return a node that does not pass for one that was just heard of.

    Raises:
        ParseError: it is not clear whose snapshot that is.
    """
    snapshot = node.snapshot
    if snapshot is not None:
        try:
            check_snapshot(snapshot)
        except ParseError as error:
            raise ParseError(f"{where}: {error.message}") from error
        if snapshot.node.node_id != node.node_id:
            raise ParseError(f"{where}: node_id {node.node_id[:80]!r} has the snapshot of another node")
        if snapshot.this_host:
            snapshot = replace(snapshot, this_host=False)
            snapshot = replace(snapshot, content_hash=content_hash(snapshot))
    return replace(node, this_node=False, url="", age_seconds=None, snapshot=snapshot)


def _told_apart(nodes: Sequence[NodeStatus]) -> Iterator[NodeStatus]:
    """Yield the nodes of a daemon's answer; of several that claim one node_id, nobody can say which is meant."""
    claims = Counter(node.node_id for node in nodes if node.snapshot is not None)
    for node in nodes:
        count = claims[node.node_id]
        unclear = replace(node, snapshot=None, reason=f"{count} nodes claim this node_id")
        yield unclear if count > 1 else node


class _Lines:
    """Lines of a stream, within the bounds."""

    def __init__(self, stream: BufferedReader, what: str, *, compressed: bool) -> None:
        self.number = 0
        self._what = what
        self._left = MAX_BYTES
        self._stream: BinaryIO = stream
        if compressed:  # in large steps: gzip's own are of 8 KiB
            self._stream = BufferedReader(cast(RawIOBase, gzip.GzipFile(fileobj=stream)), 1 << 20)

    def next(self) -> bytes:
        """Return the next line that is not blank, b"" at the end.

        Raises:
            ParseError: too long, too much, or not what gzip wrote.
        """
        while True:
            line = self._read(self._stream.readline, min(MAX_LINE_BYTES, self._left))
            self.number += 1
            self._left -= len(line)
            if not line or line.strip():
                return line.strip()
            if self.number > _MAX_LINES:  # gzip makes a few kilobytes of a billion blank ones
                raise ParseError(f"{self._what} has more than {_MAX_LINES} lines")

    def rest(self) -> bytes:
        """Return everything that follows.

        Raises:
            ParseError: as for a line.
        """
        return self._read(self._stream.read, MAX_ANSWER_BYTES)

    def _read(self, read: Callable[[int], bytes], limit: int) -> bytes:
        try:
            data = read(limit + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ParseError(f"{self._what} is cut off or damaged: {error}") from error
        if len(data) > limit:
            where = f", after line {self.number}" if self.number else ""
            raise ParseError(f"{self._what} is too large{where}: more than {limit} bytes at once or in all")
        return data
