"""A member of a cluster in etcd, in this process."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fabricd.cluster.etcd_publish import StoreSettings
from fabricd.cluster.etcd_store import EtcdStore
from fabricd.cluster.nodes import NodeMap
from fabricd.model.cluster import NodeStatus
from fabricd.model.codec import content_hash
from tests.support.etcd import EtcdServer
from tests.support.nodes import node

LEASE_SECONDS = 5  # the least that a daemon may have


def facts(name: str, kernel: str = "", node_id: str = "") -> Any:
    made = node(name)
    made = replace(made, node=replace(made.node, kernel=kernel, node_id=node_id or f"id-{name}"))
    return replace(made, content_hash=content_hash(made))


class Member:
    """What a daemon is to etcd."""

    def __init__(
        self, server: EtcdServer, name: str, *, node_id: str = "", token: str = "t", slot: str = "", **how: Any
    ):
        self.nodes = NodeMap()
        self.nodes.set_local(facts(name, node_id=node_id))
        settings = StoreSettings(
            prefix="/fabricd/",
            lease_seconds=LEASE_SECONDS,
            slot=slot or name,
            url=lambda: f"http://{name}:7470",
            gone_seconds=lambda: 1.5,
            token=lambda: token,
        )
        self.store = EtcdStore(how.pop("endpoints", [server.url]), self.nodes, settings, follow=how.pop("follow", True))
        self._task = asyncio.create_task(self.store.run())

    async def end(self) -> None:
        """Leave in peace."""
        await self._stop()
        await self.store.close()

    async def die(self) -> None:
        """Fall silent, as a process does that is killed."""
        await self._stop()
        await self.store._etcd.close()

    async def _stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def states(self) -> dict[str, str]:
        return {one.name: one.state.value for one in self.others()}

    def others(self) -> list[NodeStatus]:
        return list(self.nodes.status().nodes[1:])

    def kernels(self) -> dict[str, str]:
        return {one.name: one.snapshot.node.kernel for one in self.others() if one.snapshot}

    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.nodes.history.since(None).events]


async def until(condition: Callable[[], object], seconds: float = 10.0) -> float:
    begun = time.monotonic()
    while not condition():
        assert time.monotonic() - begun < seconds, "did not come true"
        await asyncio.sleep(0.02)
    return time.monotonic() - begun
