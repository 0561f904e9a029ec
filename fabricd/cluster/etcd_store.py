"""Membership through etcd: each daemon keeps its record there under a lease, and follows those of the others."""

import asyncio
from collections.abc import Callable, Sequence

from fabricd.cluster.etcd import Etcd
from fabricd.cluster.etcd_follow import Follower
from fabricd.cluster.etcd_health import LEASE, WATCH, StoreHealth
from fabricd.cluster.etcd_publish import Publisher, StoreSettings
from fabricd.cluster.nodes import NodeMap
from fabricd.credentials import PeerAccess

_AGE_SECONDS = 1.0


class EtcdStore:
    """The backend as one.

    Args:
        endpoints: URLs of etcd's client ports.
        nodes: this node's snapshot comes from there, the others' go there.
        settings: what the configuration says.
        follow: whether this daemon holds the cluster's map; else it only publishes its own node.
        access: what etcd is asked with at the moment.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        nodes: NodeMap,
        settings: StoreSettings,
        *,
        follow: bool,
        access: Callable[[], PeerAccess] = PeerAccess,
    ) -> None:
        self._etcd = Etcd(endpoints, access)
        health = StoreHealth(nodes, (LEASE, WATCH) if follow else (LEASE,))
        self._follower = Follower(self._etcd, nodes, settings, health) if follow else None
        self._publisher = Publisher(self._etcd, nodes, settings, health, lost=self._doubt)

    async def run(self) -> None:
        """Take part, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._publisher.run(), name="etcd lease")
            if self._follower is not None:
                group.create_task(self._follower.run(), name="etcd follower")
                group.create_task(self._age(self._follower), name="etcd ages")

    async def close(self) -> None:
        """Leave in peace; ``run`` must have been cancelled."""
        await self._publisher.leave()
        await self._etcd.close()

    def _doubt(self) -> None:
        if self._follower is not None:
            self._follower.doubt()

    async def _age(self, follower: Follower) -> None:
        while True:
            await asyncio.sleep(_AGE_SECONDS)
            follower.age()
