"""The node map: this node's snapshot and what the peers said of themselves.

Lives in the server's event loop: no method may be called from another thread.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from fabricd.errors import BusyError, UnknownNameError
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus
from fabricd.model.snapshot import Snapshot


class Version:
    """A number that only rises, and can be waited for."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = asyncio.Event()

    def advance(self) -> int:
        """Raise the number, wake those who wait, return the new number."""
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return self.number

    async def wait_for_change(self, known: int, seconds: float) -> int:
        """Return the number as soon as it is not ``known`` any more, or after so many seconds."""
        if self.number == known:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A static peer, as its poller knows it."""

    url: str
    state: NodeState = NodeState.UNKNOWN
    reason: str = ""
    snapshot: Snapshot | None = None
    heard_at: float | None = None  #: monotonic clock of this daemon


class NodeMap:
    """All nodes that this daemon knows.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.instance = secrets.token_hex(8)
        #: Counts changes of this node's facts; the generation of its snapshot.
        self.local_version = Version()
        #: Counts changes of anything in the map.
        self.map_version = Version()
        self._clock = clock
        self._local: Snapshot | None = None
        self._local_at = clock()
        self._peers: dict[str, Peer] = {}

    @property
    def local(self) -> Snapshot:
        """This node's latest snapshot.

        Raises:
            BusyError: the first probe of this machine has not ended.
        """
        if self._local is None:
            raise BusyError("the first probe of this machine has not ended", hint="ask again in a second")
        return self._local

    @property
    def ready(self) -> bool:
        """Whether there is a snapshot of this node."""
        return self._local is not None

    def set_local(self, snapshot: Snapshot) -> bool:
        """Take a new snapshot of this node. Return whether its facts changed (counters and times do not count)."""
        before = self._local
        changed = before is None or before.content_hash != snapshot.content_hash
        generation = self.local_version.number + changed
        self._local = replace(snapshot, generation=generation, instance=self.instance)
        self._local_at = self._clock()
        if changed:
            self.local_version.advance()
            self.map_version.advance()
        return changed

    def peer(self, url: str) -> Peer | None:
        """Return what is known of the peer at that URL."""
        return self._peers.get(url)

    def set_peer(self, peer: Peer) -> None:
        """Take what is known of a peer, by its URL."""
        before = self._peers.get(peer.url)
        self._peers[peer.url] = peer
        if before is None or _told(before) != _told(peer):
            self.map_version.advance()

    def drop_peer(self, url: str) -> None:
        """Forget a peer that is configured no more."""
        if self._peers.pop(url, None) is not None:
            self.map_version.advance()

    def snapshots(self) -> Mapping[str, Snapshot]:
        """Return the nodes that paths may use, by node_id, this node first: those neither gone nor in conflict.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        local = self.local
        usable = {local.node.node_id: local}
        ambiguous = set()
        for peer in self._others():
            if peer.snapshot is None or peer.state in (NodeState.GONE, NodeState.UNKNOWN):
                continue
            known = usable.setdefault(peer.snapshot.node.node_id, peer.snapshot)
            if known.instance != peer.snapshot.instance and known is not local:
                ambiguous.add(known.node.node_id)  # nobody can say which of the two is meant
        return {node_id: snapshot for node_id, snapshot in usable.items() if node_id not in ambiguous}

    def url_of(self, node_id: str) -> str:
        """Return the URL of a peer's daemon.

        Raises:
            UnknownNameError: no peer of that id, or two.
        """
        seen = {peer.url: peer.snapshot for peer in self._others() if peer.snapshot}
        claims = {url: snapshot for url, snapshot in seen.items() if snapshot.node.node_id == node_id}
        if len({snapshot.instance for snapshot in claims.values()}) != 1:
            kind = "single peer" if claims else "peer"
            raise UnknownNameError(kind, node_id, [snapshot.node.node_id for snapshot in seen.values()])
        return next(iter(claims))

    def status(self, *, summary: bool = False) -> ClusterStatus:
        """Return all nodes, this one first, then peers in order of name.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        local = self.local
        here = NodeStatus(
            node_id=local.node.node_id,
            name=local.node.name,
            state=NodeState.OK,
            this_node=True,
            age_seconds=self._clock() - self._local_at,
            generation=local.generation,
            content_hash=local.content_hash,
            snapshot=None if summary else local,
        )
        peers = sorted((self._peer_status(peer, summary) for peer in self._others()), key=_by_name)
        nodes = (here, *peers)
        return ClusterStatus(
            instance=self.instance, generation=self.map_version.number, nodes=nodes, conflicts=find_conflicts(nodes)
        )

    def find(self, name: str) -> NodeStatus:
        """Return the node of that node_id or name.

        Raises:
            UnknownNameError: there is none, or the name fits several.
            BusyError: this node has no snapshot yet.
        """
        nodes = self.status().nodes
        found = [node for node in nodes if node.node_id == name] or [node for node in nodes if node.name == name]
        known = [node.name or node.url for node in nodes]
        if len(found) > 1:
            raise UnknownNameError("single node", name, [f"{node.node_id} at {node.url or 'here'}" for node in found])
        if not found or not name:
            raise UnknownNameError("node", name, known)
        return found[0]

    def _others(self) -> list[Peer]:
        """Return the peers without this daemon itself: one list of peers may serve every node of a cluster."""
        return [peer for peer in self._peers.values() if not peer.snapshot or peer.snapshot.instance != self.instance]

    def _peer_status(self, peer: Peer, summary: bool) -> NodeStatus:
        snapshot = peer.snapshot
        return NodeStatus(
            node_id=snapshot.node.node_id if snapshot else "",
            name=snapshot.node.name if snapshot else "",
            state=peer.state,
            url=peer.url,
            age_seconds=None if peer.heard_at is None else self._clock() - peer.heard_at,
            reason=peer.reason,
            generation=snapshot.generation if snapshot else 0,
            content_hash=snapshot.content_hash if snapshot else "",
            snapshot=None if summary else snapshot,
        )


def find_conflicts(nodes: tuple[NodeStatus, ...]) -> tuple[str, ...]:
    """Return one sentence for each node_id that two daemons claim and each name that two nodes bear."""
    by_id: dict[str, list[NodeStatus]] = {}
    by_name: dict[str, dict[str, NodeStatus]] = {}
    for node in nodes:
        if node.node_id:
            by_id.setdefault(node.node_id, []).append(node)
            by_name.setdefault(node.name, {}).setdefault(node.node_id, node)
    twice = [
        f"node_id {node_id} is claimed by {_places(claims)}: the same daemon listed twice, or machines with one "
        "identity (set node_id on each)"
        for node_id, claims in by_id.items()
        if len(claims) > 1
    ]
    named = [
        f"the name {name} is borne by {_places(list(bearers.values()))} (set name on each)"
        for name, bearers in by_name.items()
        if len(bearers) > 1
    ]
    return tuple(twice + named)


def _places(nodes: list[NodeStatus]) -> str:
    return " and ".join(f"{node.name} ({node.url or 'this node'})" for node in nodes)


def _by_name(node: NodeStatus) -> tuple[str, str]:
    return (node.name, node.url)


def _told(peer: Peer) -> tuple[object, ...]:
    """Return what readers of the map are woken for: state and facts, not the time of the last answer."""
    facts = (peer.snapshot.instance, peer.snapshot.generation, peer.snapshot.content_hash) if peer.snapshot else ()
    return (peer.state, peer.reason, facts)
