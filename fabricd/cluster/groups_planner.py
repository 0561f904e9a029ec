"""Measures between the hosts of a complete group, then plans."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fabricd.background import in_thread
from fabricd.cluster.measuring import Measurer, checked
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer_post import PeerPost
from fabricd.cluster.placement_files import PlacementFiles
from fabricd.errors import FabricError
from fabricd.localview import LocalView
from fabricd.model.measurement import Measurement, MeasureRequest
from fabricd.model.plan import GroupPlan
from fabricd.plan.group import plan_group
from fabricd.plan.group_survey import Pair, survey

_log = logging.getLogger("fabricd.groups")

#: For all measurements of one group. One takes up to about a second; a network that drops packets takes two.
MEASURE_SECONDS = 8.0


class MeasuringPlanner:
    """Plans groups; across hosts it measures first.

    Args:
        nodes: what is known of the members' hosts.
        measurer: measures from this node.
        post: asks other nodes' daemons to measure.
        files: what this daemon is told of where nodes stand.
        max_age_seconds: gives the age up to which a measurement made before will do.
    """

    def __init__(
        self,
        nodes: NodeMap,
        measurer: Measurer,
        post: PeerPost,
        files: PlacementFiles,
        *,
        max_age_seconds: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._measurer = measurer
        self._post = post
        self._files = files
        self._max_age_seconds = max_age_seconds

    async def plan(self, engine: str, views: Mapping[int, LocalView]) -> GroupPlan:
        """Return the plan of a group.

        Raises:
            FabricError: there is none; says why.
        """
        cursor = self._nodes.history.cursor
        known_nodes = self._nodes.snapshots() if self._nodes.ready else {}
        nodes = await in_thread(lambda: dict(self._files.applied(known_nodes)), name="placement")
        known = await in_thread(lambda: survey(views, nodes), name="survey")
        measurements, unmeasured = await self._measure(known.pairs)
        plan = await in_thread(lambda: plan_group(engine, views, nodes, measurements, unmeasured), name="plan")
        plan = replace(plan, map_cursor=cursor, check_calls=any(view.check_calls for view in views.values()))
        if not any(view.world for view in views.values()):
            return plan
        # Ranks cannot see one another's views, and whether an MPI that runs already is shared by all decides all.
        return replace(plan, ranks=tuple(replace(part, world=views[part.rank].world) for part in plan.ranks))

    async def _measure(self, pairs: Iterable[Pair]) -> tuple[list[Measurement], dict[str, str]]:
        """Return what was measured in time, and why the rest was not, by network."""
        found: list[Measurement] = []
        unmeasured: dict[str, str] = {}
        # A node takes part in one measurement at a time: two would measure each other.
        busy: dict[str, asyncio.Lock] = {}

        async def one(pair: Pair) -> None:
            first, second = sorted((pair.src_node, pair.dst_node))
            async with busy.setdefault(first, asyncio.Lock()), busy.setdefault(second, asyncio.Lock()):
                try:
                    found.append(await self._measure_pair(pair))
                except FabricError as error:
                    _log.warning("not measured", extra={"facts": {"network": pair.network, "reason": str(error)}})
                    unmeasured[pair.network] = f"not measured: {error.message}"

        tasks = {asyncio.create_task(one(pair)): pair for pair in pairs}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=MEASURE_SECONDS)
            for task in late:
                task.cancel()
                unmeasured[tasks[task].network] = f"not measured within {MEASURE_SECONDS:g} s"
            for task in tasks.keys() - late:
                task.result()
        return found, unmeasured

    async def _measure_pair(self, pair: Pair) -> Measurement:
        """Return a measurement of a pair, by whichever of the two nodes can make it.

        Raises:
            FabricError: neither can.
        """
        age = self._max_age_seconds()
        known = self._measurer.find(pair.src_address, pair.dst_address, age)
        if known is not None:
            return known
        forth = MeasureRequest(
            dst_node=pair.dst_node,
            src_address=pair.src_address,
            dst_address=pair.dst_address,
            network=pair.network,
            max_age_seconds=age,
        )
        back = MeasureRequest(
            dst_node=pair.src_node,
            src_address=pair.dst_address,
            dst_address=pair.src_address,
            network=pair.network,
            max_age_seconds=age,
        )
        here = self._nodes.local.node.node_id
        order = [(pair.src_node, forth), (pair.dst_node, back)]
        order.sort(key=lambda item: item[0] != here)  # this daemon itself, if it can
        reasons: list[FabricError] = []
        for node_id, request in order:
            try:
                if node_id == here:
                    return await self._measurer.measure(request)
                url = self._nodes.url_of(node_id)
                measured = await self._post(url, "/v1/measure", request, Measurement, seconds=MEASURE_SECONDS)
                return self._measurer.remember(checked(measured, node_id, request))
            except FabricError as error:
                reasons.append(error)
        raise reasons[0]
