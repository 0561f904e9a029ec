"""Keeps this node's record in etcd, under a lease, and takes it away at the end."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fabricd.background import in_thread
from fabricd.cluster.etcd import Etcd
from fabricd.cluster.etcd_health import LEASE, StoreHealth
from fabricd.cluster.etcd_messages import LeaseLostError
from fabricd.cluster.etcd_record import Record, seal
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer_client import pause
from fabricd.errors import FabricError, InputError

_log = logging.getLogger("fabricd.etcd")

#: A burst of changes is written at once; a node that keeps changing (a link that flaps) is written so much seldomer.
_BURST, _REFILL_SECONDS = 4, 5.0
_LONGEST_PAUSE_SECONDS = 3.0
#: For the farewell; the daemon has a second to end.
_LEAVE_SECONDS = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What the backend is told by the configuration."""

    prefix: str  #: of all keys, "/fabricd/"
    lease_seconds: int  #: after so long without a sign of life a daemon's record goes
    slot: str  #: tells this daemon's key from that of another one that claims the same identity
    url: Callable[[], str]  #: where other daemons ask this one, at the moment; "" nowhere
    gone_seconds: Callable[[], float]  #: silence after which a node is gone
    token: Callable[[], str | None]  #: of the cluster, at the moment

    @property
    def nodes_prefix(self) -> bytes:
        """Prefix of all daemons' keys."""
        return f"{self.prefix}nodes/".encode()

    def key(self, node_id: str) -> bytes:
        """Return the key of this daemon. Two that claim one identity have two, so that both are seen."""
        return self.nodes_prefix + f"{node_id}@{self.slot}".encode()


class Publisher:
    """Keeps a lease alive, and under it this node's record: written when its facts change, and not otherwise.

    Args:
        etcd: where.
        nodes: gives this node's snapshot.
        settings: how.
        health: is told how it fares.
        lost: called when the lease has ended although it was renewed in time: etcd may have forgotten more than that.
    """

    def __init__(
        self, etcd: Etcd, nodes: NodeMap, settings: StoreSettings, health: StoreHealth, *, lost: Callable[[], None]
    ) -> None:
        self._etcd = etcd
        self._nodes = nodes
        self._settings = settings
        self._health = health
        self._lost = lost
        self._lease = 0
        self._key = b""
        self._url = ""
        self._written: tuple[str | None, ...] | None = None  # content_hash, token and URL of what etcd has
        self._allowance = float(_BURST)
        self._allowed_at = 0.0

    async def run(self) -> None:
        """Keep it, for ever."""
        failures = 0
        while True:
            version = self._nodes.local_version.number
            try:
                await self._hold()
                await self._write()
            except FabricError as error:
                failures += 1
                self._health.failed(LEASE, error.message)
                if isinstance(error, LeaseLostError):
                    self._lose()
                await asyncio.sleep(min(pause(failures), _LONGEST_PAUSE_SECONDS))
                continue
            failures = 0
            self._health.ok(LEASE)
            await self._nodes.local_version.wait_for_change(version, self._settings.lease_seconds / 3)
            await self._be_allowed()

    async def leave(self) -> None:
        """Say farewell and end the lease, if etcd answers; without it the lease ends by itself."""
        if not self._lease:
            return
        with suppress(FabricError, TimeoutError):
            async with asyncio.timeout(_LEAVE_SECONDS):
                if self._written:
                    await self._put(Record(instance=self._nodes.instance, leaving=True))
                await self._etcd.revoke(self._lease)
                return
        _log.warning("etcd did not take the farewell; the lease ends by itself")

    async def _hold(self) -> None:
        """Renew the lease, or begin one."""
        if self._lease and self._nodes.ready and self._key not in (b"", self._own_key()):
            await self._etcd.revoke(self._lease)  # this machine's identity has changed: the old one has left
            self._lease = 0
        if self._lease:
            await self._etcd.keep_alive(self._lease)
        else:
            lease = secrets.randbits(62) + 1
            await self._etcd.grant(lease, self._settings.lease_seconds)
            self._lease, self._written, self._key = lease, None, b""

    async def _write(self) -> None:
        """Write this node's record unless etcd has it."""
        if not self._nodes.ready:
            return
        # Names are looked up for it; one that is not found now is taken for what it was.
        self._url = await in_thread(self._settings.url, name="own address") or self._url
        local, url = self._nodes.local, self._url
        wanted = (local.content_hash, self._settings.token(), url)
        if wanted == self._written:
            return
        self._key = self._own_key()
        try:
            await self._put(Record(instance=local.instance, url=url, snapshot=local))
        except InputError as error:  # nothing that asking etcd again would mend
            self._nodes.set_faults("etcd record", (error.message,))
        else:
            self._nodes.set_faults("etcd record", ())
        self._written = wanted

    def _own_key(self) -> bytes:
        return self._settings.key(self._nodes.local.node.node_id)

    async def _put(self, record: Record) -> None:
        await self._etcd.put(self._key, seal(record, self._key, self._settings.token()), self._lease)

    def _lose(self) -> None:
        _log.warning("the lease in etcd was lost")
        self._lease, self._written = 0, None
        self._lost()

    async def _be_allowed(self) -> None:
        """Wait until another change may be written; never so long that the lease would suffer."""
        now = asyncio.get_running_loop().time()
        earned = (now - self._allowed_at) / _REFILL_SECONDS
        self._allowance, self._allowed_at = min(_BURST, self._allowance + earned), now
        if self._allowance < 1:
            await asyncio.sleep(min(_REFILL_SECONDS * (1 - self._allowance), self._settings.lease_seconds / 3))
        if self._nodes.ready and self._written and self._written[0] != self._nodes.local.content_hash:
            self._allowance = max(0.0, self._allowance - 1)
