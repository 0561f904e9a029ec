"""An agent's knowledge of other nodes: it holds no map, and fetches the few nodes that a plan or measurement needs."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote

import httpx

from fabricd.background import in_thread
from fabricd.cluster.groups_planner import MeasuringPlanner
from fabricd.cluster.map_client import MapClient
from fabricd.cluster.measuring import Measurer
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.cluster.peer_client import read_body
from fabricd.cluster.peer_post import PeerPost
from fabricd.errors import FabricError, UnreachableError
from fabricd.localview import LocalView
from fabricd.model.cluster import NodeStatus
from fabricd.model.codec import check_snapshot
from fabricd.model.measurement import Measurement, MeasureRequest
from fabricd.model.plan import GroupPlan
from fabricd.model.shared import SharedParts
from fabricd.settings import check_url

_log = logging.getLogger("fabricd.agent")

#: What was fetched serves for so long.
_FRESH_SECONDS = 30.0
_ASK_SECONDS, _FETCH_SECONDS = 3.0, 10.0
#: Questions at once; a plan for a large job needs many nodes.
_AT_ONCE = 16
_MAX_ANSWER_BYTES = 32 << 20


class Directory:
    """Fetches nodes into the node map of an agent, and lets them go again.

    Args:
        nodes: takes them.
        maps: where they come from.
        clock: monotonic seconds.
    """

    def __init__(self, nodes: NodeMap, maps: MapClient, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes = nodes
        self._maps = maps
        self._clock = clock
        self._fetched: dict[str, float] = {}
        self._parts = SharedParts()

    async def need(self, node_ids: Iterable[str]) -> None:
        """Have these nodes in the map, as fresh as the map nodes have them; those that they do not know are left out.

        Raises:
            FabricError: no map node answers.
        """
        now = self._clock()
        for node_id in [one for one, at in self._fetched.items() if now - at > _FRESH_SECONDS]:
            del self._fetched[node_id]
            self._nodes.drop_peer(node_id)
        here = self._nodes.local.node.node_id
        missing = sorted({one for one in node_ids if one and one != here and one not in self._fetched})
        turns = asyncio.Semaphore(_AT_ONCE)

        async def fetch(node_id: str) -> None:
            async with turns, asyncio.timeout(_FETCH_SECONDS):
                await self._fetch(node_id)

        for failure in await asyncio.gather(*map(fetch, missing), return_exceptions=True):
            if isinstance(failure, TimeoutError):
                raise UnreachableError(f"the map nodes did not answer within {_FETCH_SECONDS:g} s") from failure
            if failure is not None:
                raise failure

    async def _fetch(self, node_id: str) -> None:
        async with self._maps.ask(f"/v1/nodes/{quote(node_id, safe='')}", seconds=_ASK_SECONDS) as (url, response):
            if response.status_code == httpx.codes.NOT_FOUND:
                return
            if response.status_code != httpx.codes.OK:
                raise UnreachableError(f"{url} answered with status {response.status_code}")
            body = await read_body(response, _MAX_ANSWER_BYTES)
        status = await in_thread(
            lambda: self._parts.decode(body, NodeStatus, what=f"the answer of {url}"), name="a node's snapshot"
        )
        if status.snapshot is None or status.snapshot.node.node_id != node_id:
            return
        check_snapshot(status.snapshot)
        self._fetched[node_id] = self._clock()
        self._nodes.set_peer(
            Peer(
                key=node_id,
                url=url if status.this_node else check_url(status.url) if status.url else "",
                state=status.state,
                reason=status.reason,
                snapshot=status.snapshot,
                heard_at=self._clock() - (status.age_seconds or 0.0),
            )
        )


class AgentMeasurer(Measurer):
    """Measures from a node that holds no map."""

    def __init__(self, nodes: NodeMap, post: PeerPost, directory: Directory, *, clock: Callable[[], float]) -> None:
        super().__init__(nodes, post, clock=clock)
        self._directory = directory

    async def measure(self, request: MeasureRequest) -> Measurement:
        """Measure towards a node; see ``Measurer.measure``.

        Raises:
            FabricError: as there, and when no map node answers.
        """
        await self._directory.need([request.dst_node])
        return await super().measure(request)


class AgentPlanner:
    """Plans groups whose hosts are fetched first.

    Args:
        planner: plans.
        directory: fetches.
    """

    def __init__(self, planner: MeasuringPlanner, directory: Directory) -> None:
        self._planner = planner
        self._directory = directory

    async def plan(self, engine: str, views: Mapping[int, LocalView]) -> GroupPlan:
        """Return the plan of a group; without an answer of the map nodes, one that rests on less.

        Raises:
            FabricError: there is none; says why.
        """
        try:
            await self._directory.need(view.node_id for view in views.values())
        except FabricError as error:
            _log.warning("planning without the other nodes' facts: %s", error)
        return await self._planner.plan(engine, views)
