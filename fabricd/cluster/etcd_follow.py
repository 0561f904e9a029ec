"""Keeps the node map in step with the records that daemons have in etcd."""

import asyncio
import gc
import random
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace

from fabricd.background import in_thread
from fabricd.cluster.etcd import Etcd
from fabricd.cluster.etcd_health import WATCH, StoreHealth
from fabricd.cluster.etcd_messages import Change, EtcdError, KeyValue, WatchAnswer
from fabricd.cluster.etcd_publish import StoreSettings
from fabricd.cluster.etcd_record import Record, unseal
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.cluster.peer_client import pause
from fabricd.errors import FabricError
from fabricd.model.cluster import NodeState
from fabricd.model.shared import SharedParts

_LONGEST_PAUSE_SECONDS = 3.0
#: A watch is begun anew after about so long: should one have died unnoticed, the map is wrong no longer than this.
_WATCH_SECONDS = 600.0
#: Whoever may write to etcd can make keys, without the token too.
_MAX_KEYS = 65_536
#: A node that is gone for so long is forgotten.
_FORGET_SECONDS = 3600.0
_ENDED = "its lease in etcd has ended: the daemon was killed, hangs, or cannot reach etcd"


@dataclass(frozen=True, slots=True)
class _Read:
    """What a change of a key means."""

    key: bytes
    revision: int
    record: Record | None = None  #: None: the key is gone, or holds no record
    fault: str = ""  #: why it holds none


class Follower:
    """Reads all records, then follows their changes.

    Args:
        etcd: where.
        nodes: takes them.
        settings: where in etcd.
        health: is told how it fares.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        etcd: Etcd,
        nodes: NodeMap,
        settings: StoreSettings,
        health: StoreHealth,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._etcd = etcd
        self._nodes = nodes
        self._settings = settings
        self._health = health
        self._clock = clock
        self._parts = SharedParts()
        self._revision = 0  # up to which everything is known; 0: nothing is
        self._cluster_id = 0
        self._known: dict[bytes, int] = {}  # revision of the last change of each key that exists
        self._leaving: set[bytes] = set()
        self._expired: dict[bytes, float] = {}  # keys whose lease ended, and when
        self._own_seen = False
        self._loaded = False
        self._following: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow, for ever."""
        while not self._nodes.ready:  # until then nobody can tell which key is this daemon's own
            await self._nodes.local_version.wait_for_change(0, 3600)
        failures = 0
        while True:
            before = self._revision
            self._following = asyncio.create_task(self._follow(), name="etcd watch")
            try:
                await asyncio.wait([self._following])
            finally:
                self._following.cancel()
            if self._following.cancelled():
                continue  # what was known is in doubt: begin anew
            error = self._following.exception()
            if error is None:
                continue
            if not isinstance(error, FabricError):
                raise error
            failures = 0 if self._revision > before else failures + 1
            self._health.failed(WATCH, error.message)
            await asyncio.sleep(min(pause(failures or 1), _LONGEST_PAUSE_SECONDS))

    def doubt(self) -> None:
        """Read everything anew: etcd may have lost what it knew."""
        self._forget()
        if self._following is not None:
            self._following.cancel()

    def age(self) -> None:
        """Let nodes whose lease has ended be gone after a while, and forgotten after a longer one."""
        now = self._clock()
        for key, since in list(self._expired.items()):
            peer = self._nodes.peer(_name(key))
            if peer is None or now - since > _FORGET_SECONDS:
                self._drop(key)
            elif peer.state is NodeState.STALE and now - since > self._settings.gone_seconds():
                self._nodes.set_peer(replace(peer, state=NodeState.GONE))

    async def _follow(self) -> None:
        """Follow one watch until it ends.

        Raises:
            EtcdError: no answer, or a refusal.
        """
        if not self._revision:
            await self._load()
        life = _WATCH_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311 - so that daemons do not ask all at once
        with suppress(TimeoutError):
            watch = self._etcd.watch(self._settings.nodes_prefix, self._revision + 1)
            async with asyncio.timeout(life), aclosing(watch) as answers:
                async for answer in answers:
                    await self._take(answer)

    async def _load(self) -> None:
        """Read what exists; only what is not known yet costs a transfer.

        Raises:
            EtcdError: no answer, or a refusal.
        """
        listing = await self._etcd.listing(self._settings.nodes_prefix)
        for key in [key for key in self._known if key not in listing.keys]:
            self._vanished(key)
        wanted = [key for key, revision in listing.keys.items() if self._known.get(key) != revision]
        async for found in self._etcd.fetch(wanted):
            await self._apply([Change(kv) for kv in found])
        self._cluster_id, self._revision = listing.header.cluster_id, listing.header.revision
        if not self._loaded:
            # A map of thousands of nodes is a million objects, and looking through them for garbage takes a second.
            # Once only: what is garbage by then is kept.
            gc.freeze()
        self._loaded = True

    async def _take(self, answer: WatchAnswer) -> None:
        """Take one message of a watch.

        Raises:
            EtcdError: the watch cannot go on.
        """
        header = answer.header
        if answer.canceled:
            self._revision = 0  # kept no more, or whatever it is: what is there now is what counts
            reason = "it was compacted" if answer.compact_revision else answer.cancel_reason or "it was cancelled"
            raise EtcdError(f"the watch ended: {reason}")
        if header.cluster_id != self._cluster_id:
            self._forget()
            raise EtcdError("etcd is another one than before")
        if header.revision < self._revision:  # a member that lags behind, or that has lost what it knew
            self._revision = 0
            raise EtcdError("etcd knows less than before")
        await self._apply(answer.events)
        if answer.events:
            self._revision = header.revision
        self._health.ok(WATCH)

    async def _apply(self, changes: Sequence[Change]) -> None:
        news = [one for one in changes if one.kv.mod_revision > self._known.get(one.kv.key, 0)]
        if not news:
            return
        token, parts = self._settings.token(), self._parts
        for read in await in_thread(lambda: [_read(change, token, parts) for change in news], name="etcd records"):
            self._put(read)

    def _put(self, read: _Read) -> None:
        """Take one key's news."""
        if read.key == self._settings.key(self._nodes.local.node.node_id):
            self._check_own(read)
            return
        if read.record is None and not read.fault:
            self._vanished(read.key)
            return
        if read.key not in self._known and len(self._known) >= _MAX_KEYS:
            self._nodes.set_faults("etcd keys", (f"more than {_MAX_KEYS} keys in etcd; the rest is left out",))
            return
        self._known[read.key] = read.revision
        if read.record is not None and read.record.leaving:
            self._leaving.add(read.key)
            return
        self._leaving.discard(read.key)
        self._expired.pop(read.key, None)
        before = self._nodes.peer(_name(read.key))
        if read.record is None or read.record.snapshot is None:
            self._nodes.set_peer(self._unreadable(before, read))
            return
        snapshot = read.record.snapshot
        peer = Peer(key=_name(read.key), url=read.record.url, state=NodeState.OK, snapshot=snapshot)
        self._nodes.set_peer(peer, instead_of=self._superseded(peer))

    def _superseded(self, peer: Peer) -> str | None:
        """Return the entry, whose lease has ended, that a new one continues: by its identity or, imaged anew, name."""
        ended = [one for key in self._expired if (one := self._nodes.peer(_name(key))) is not None]
        older = [one for one in ended if peer.node_id == one.node_id or peer.name == one.name]
        older.sort(key=lambda one: one.node_id != peer.node_id)
        for one in older[1:]:
            self._drop(_key(one))
        if not older or self._nodes.peer(peer.key) is not None:
            return None
        self._expired.pop(_key(older[0]), None)
        return older[0].key

    def _unreadable(self, before: Peer | None, read: _Read) -> Peer:
        fault = read.fault or "it holds no snapshot"
        reason = f"its record in etcd, {_name(read.key)!r}, cannot be read: {fault}"
        known = before.snapshot if before else None
        state = NodeState.STALE if known else NodeState.UNKNOWN
        heard = self._clock() if known else None
        return Peer(key=_name(read.key), state=state, reason=reason[:500], snapshot=known, heard_at=heard)

    def _check_own(self, read: _Read) -> None:
        """Notice another daemon that writes to this daemon's key."""
        mine = read.record is not None and read.record.instance == self._nodes.instance
        # Before this daemon has written, its key holds what an earlier process left.
        self._own_seen = self._own_seen or mine
        other = self._own_seen and read.record is not None and not mine
        told = f"another daemon writes to this one's key in etcd, {read.key.decode()}: set node_id on each"
        self._nodes.set_faults("etcd key", (told,) if other else ())

    def _vanished(self, key: bytes) -> None:
        """Take that a key exists no more."""
        self._known.pop(key, None)
        peer = self._nodes.peer(_name(key))
        if peer is None or key in self._expired:
            return
        moved = [one for one in self._nodes.peers_of(peer.node_id) if one.key != peer.key]
        if key in self._leaving or peer.snapshot is None or peer.instance in {one.instance for one in moved}:
            self._drop(key)
            return
        self._expired[key] = self._clock()
        self._nodes.set_peer(replace(peer, state=NodeState.STALE, reason=_ENDED, heard_at=self._clock()))

    def _drop(self, key: bytes) -> None:
        self._expired.pop(key, None)
        self._leaving.discard(key)
        self._known.pop(key, None)
        self._nodes.drop_peer(_name(key))

    def _forget(self) -> None:
        """Trust no revision any more; what the map holds stays until it is read anew."""
        self._revision = 0
        self._known = dict.fromkeys(self._known, 0)


def _read(change: Change, token: str | None, parts: SharedParts) -> _Read:
    kv: KeyValue = change.kv
    if change.type == "DELETE":
        return _Read(kv.key, kv.mod_revision)
    try:
        return _Read(kv.key, kv.mod_revision, unseal(kv.value, kv.key, token, parts))
    except FabricError as error:
        return _Read(kv.key, kv.mod_revision, fault=str(error))


def _name(key: bytes) -> str:
    return key.decode(errors="surrogateescape")


def _key(peer: Peer) -> bytes:
    return peer.key.encode(errors="surrogateescape")
