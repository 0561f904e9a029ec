"""The node map: this node's snapshot and what the others said of themselves.

Lives in the server's event loop: no method may be called from another thread. What a change costs depends on what has
changed, not on how many nodes there are.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice

from fabricd.cluster.changes import node_events, snapshot_events
from fabricd.cluster.history import History
from fabricd.cluster.node_status import local_status, peer_status, state_of
from fabricd.cluster.peer import Peer
from fabricd.cluster.roster import Claim, Roster
from fabricd.cluster.version import Version
from fabricd.errors import BusyError, UnknownNameError
from fabricd.model.cluster import ClusterStatus, NodeState, NodeStatus, StoreStatus
from fabricd.model.event import Event, EventKind
from fabricd.model.snapshot import Snapshot

_HERE = ""  #: key of this node's own claim
_UNUSABLE = frozenset({NodeState.GONE, NodeState.UNKNOWN})
#: Names listed in an error at most.
_SHOWN = 100


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
        self.history = History(self.instance, clock=clock)
        self._clock = clock
        self._local: Snapshot | None = None
        self._local_at = clock()
        self._peers: dict[str, Peer] = {}
        self._roster = Roster()
        self._usable: dict[str, Snapshot] = {}  # the peers that paths may use
        self._shared: Mapping[str, Snapshot] | None = None  # what was last handed out; nobody changes it
        self._store = StoreStatus()
        self._store_heard_at: float | None = None
        self._faults: dict[str, tuple[str, ...]] = {}

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
    def local_age_seconds(self) -> float:
        """Time since this node was last looked at."""
        return self._clock() - self._local_at

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
        self._shared = None
        if changed:
            node = self._local.node
            self._claim(_HERE, Claim(key=_HERE, node_id=node.node_id, name=node.name, where="this node"))
            joined = Event(kind=EventKind.NODE_JOINED, node_id=node.node_id, node=node.name)
            self.history.add(snapshot_events(before, self._local) if before else [joined])
            self.local_version.advance()
            self.map_version.advance()
        return changed

    def peer(self, key: str) -> Peer | None:
        """Return what is known of a peer."""
        return self._peers.get(key)

    def peers_of(self, name: str) -> list[Peer]:
        """Return the peers that bear a node_id or name and are not gone."""
        keys = self._roster.by_id(name) or self._roster.by_name(name)
        return [self._peers[key] for key in keys if key != _HERE]

    def set_peer(self, peer: Peer, *, instead_of: str | None = None) -> None:
        """Take what is known of a peer, by its key.

        Args:
            peer: what is known.
            instead_of: key of an entry that this one continues.
        """
        before = self._peers.get(peer.key) if instead_of is None else self._peers.pop(instead_of, None)
        self._peers[peer.key] = peer
        if before is None or _told(before) != _told(peer):
            self._changed(before, peer)

    def replay(self, nodes: Iterable[NodeStatus]) -> None:
        """Take the nodes of a captured or simulated cluster; nothing will ever be heard of them."""
        for node in nodes:
            if node.node_id:
                key = f"replay:{node.node_id}"
                self.set_peer(Peer(key=key, state=node.state, reason=node.reason, snapshot=node.snapshot))

    def drop_peer(self, key: str) -> None:
        """Forget a peer that is no member any more."""
        before = self._peers.pop(key, None)
        if before is not None:
            self._changed(before, None)

    def set_store(self, store: StoreStatus, heard_at: float | None) -> None:
        """Take how the store is from which nodes are known; while it is stale, so are they.

        Args:
            store: how it is; its age does not count.
            heard_at: when it last answered, on the monotonic clock.
        """
        before = self._store
        self._store, self._store_heard_at = store, heard_at
        if (before.state, before.reason) == (store.state, store.reason):
            return
        if before.state is NodeState.OK and store.state is NodeState.STALE:
            self.history.add([Event(kind=EventKind.STORE_LOST, subject=store.backend, detail=store.reason)])
        elif before.state is NodeState.STALE and store.state is NodeState.OK:
            self.history.add([Event(kind=EventKind.STORE_BACK, subject=store.backend)])
        self.map_version.advance()

    def set_faults(self, source: str, faults: tuple[str, ...]) -> None:
        """Take what is wrong with one source of members; nothing when it is fine."""
        if self._faults.get(source, ()) != faults:
            self._faults[source] = faults
            self.map_version.advance()

    def snapshots(self) -> Mapping[str, Snapshot]:
        """Return the nodes that paths may use, by node_id, this node first: those neither gone nor in conflict.

        The same object until something changes; it may be read in other threads.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        local = self.local
        if self._shared is None:
            here = {local.node.node_id: local}
            self._shared = here | self._usable | here  # this node first, and whatever another one claims
        return self._shared

    def url_of(self, node_id: str) -> str:
        """Return the URL of a peer's daemon.

        Raises:
            UnknownNameError: no peer of that id, two, or one that nobody can ask.
        """
        claims = [peer for peer in self.peers_of(node_id) if peer.node_id == node_id and peer.instance != self.instance]
        url = next((peer.url for peer in claims if peer.url), "")
        if len({peer.instance for peer in claims}) != 1 or not url:
            raise UnknownNameError("single peer" if claims else "peer", node_id, list(islice(self._usable, _SHOWN)))
        return url

    def status(self, *, summary: bool = False) -> ClusterStatus:
        """Return all nodes, this one first, then the others in order of name.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        return replace(self.head(), nodes=tuple(self.listing(summary=summary)))

    def listing(self, *, summary: bool = False) -> Iterator[NodeStatus]:
        """Return the nodes as they are now, in that order; each is made up when it is taken.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        here = self._local_status(summary)
        others = [peer for peer in self._peers.values() if peer.instance != self.instance]
        others.sort(key=lambda peer: (peer.name, peer.url))
        return chain([here], (self._peer_status(peer, summary) for peer in others))

    def head(self) -> ClusterStatus:
        """Return the status without any node."""
        heard = self._store_heard_at
        return ClusterStatus(
            instance=self.instance,
            generation=self.map_version.number,
            nodes=(),
            conflicts=self._roster.conflicts,
            event_cursor=self.history.cursor,
            store=replace(self._store, age_seconds=None if heard is None else self._clock() - heard),
            faults=tuple(fault for source in sorted(self._faults) for fault in self._faults[source]),
        )

    @property
    def conflicts(self) -> tuple[str, ...]:
        """Nodes that cannot be told apart, one sentence each."""
        return self._roster.conflicts

    def count(self) -> dict[NodeState, int]:
        """Return how many peers are in each state."""
        states = [state_of(peer, self._store) for peer in self._peers.values() if peer.instance != self.instance]
        return {state: states.count(state) for state in NodeState}

    def find(self, name: str, *, summary: bool = False) -> NodeStatus:
        """Return the node of that node_id or name. Of several of one name, those that are gone do not count.

        Raises:
            UnknownNameError: there is none, or the name fits several.
            BusyError: this node has no snapshot yet.
        """
        here = self._local_status(summary)
        keys = self._roster.by_id(name) or self._roster.by_name(name)
        found = [here if key == _HERE else self._peer_status(self._peers[key], summary) for key in keys]
        if not found and name:  # one that is gone bears no name any more, but can be asked for
            gone = [peer for peer in self._peers.values() if name in (peer.node_id, peer.name)]
            found = [self._peer_status(peer, summary) for peer in gone]
        if len(found) > 1:
            ids = ["" if node.node_id == name else f"{node.node_id} at " for node in found]
            where = [told + (node.url or "here") for told, node in zip(ids, found, strict=True)]
            raise UnknownNameError("single node", name, where)
        if not found:
            known = [here.name, *(peer.name or peer.url for peer in islice(self._peers.values(), _SHOWN))]
            raise UnknownNameError("node", name, known)
        return found[0]

    def _local_status(self, summary: bool) -> NodeStatus:
        return local_status(self.local, self.local_age_seconds, summary=summary)

    def _peer_status(self, peer: Peer, summary: bool) -> NodeStatus:
        return peer_status(peer, self._store, self._store_heard_at, self._clock(), summary=summary)

    def _changed(self, before: Peer | None, after: Peer | None) -> None:
        """Keep in step what is derived from the peers, and tell what happened."""
        self.map_version.advance()
        # One list of peers may serve every node of a cluster, this one too; then it is not another node.
        before, after = (one if one and one.instance != self.instance else None for one in (before, after))
        peer = after or before
        if peer is None:
            return
        if before and before.key != peer.key:
            self._claim(before.key, None)
        again = self._is_told_elsewhere(peer, leaves=after is None)
        self._claim(peer.key, _claim_of(after))
        for node_id in {one.node_id for one in (before, after) if one and one.node_id}:
            self._judge(node_id)
        if not again:
            self.history.add(node_events(before, after))

    def _is_told_elsewhere(self, peer: Peer, *, leaves: bool) -> bool:
        """Whether the same daemon has another place in the map, whose events are the ones to tell."""
        others = [one for one in self._roster.by_id(peer.node_id) if one not in (_HERE, peer.key)]
        places = [one for one in others if self._peers[one].instance == peer.instance]
        return bool(places) and (leaves or peer.key not in self._roster.by_id(peer.node_id)[:1])

    def _claim(self, key: str, claim: Claim | None) -> None:
        begun, over = self._roster.put(key, claim)
        self.history.add(Event(kind=EventKind.CONFLICT, detail=sentence) for sentence in begun)
        self.history.add(Event(kind=EventKind.CONFLICT_OVER, detail=sentence) for sentence in over)

    def _judge(self, node_id: str) -> None:
        """Decide anew whether paths may use a node."""
        claims = [peer for peer in self.peers_of(node_id) if peer.node_id == node_id]
        usable = [peer.snapshot for peer in claims if peer.snapshot and peer.state not in _UNUSABLE]
        self._shared = None
        if usable and len({snapshot.instance for snapshot in usable}) == 1:
            self._usable[node_id] = usable[0]
        else:
            self._usable.pop(node_id, None)  # of several claims nobody can say which is meant


def _claim_of(peer: Peer | None) -> Claim | None:
    if peer is None or peer.snapshot is None or peer.state is NodeState.GONE:
        return None
    return Claim(key=peer.key, node_id=peer.node_id, name=peer.name, where=peer.url or "at no address")


def _told(peer: Peer) -> tuple[object, ...]:
    """Return what readers of the map are woken for: state and facts, not the time of the last answer."""
    facts = (peer.snapshot.instance, peer.snapshot.generation, peer.snapshot.content_hash) if peer.snapshot else ()
    return (peer.url, peer.state, peer.reason, facts)
