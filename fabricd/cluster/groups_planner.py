"""Measures between the hosts of a complete group, then plans."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from fabricd.background import in_thread
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.pairs import PairMeasurer
from fabricd.cluster.placement_files import PlacementFiles
from fabricd.localview import LocalView
from fabricd.model.plan import GroupPlan
from fabricd.plan.group import plan_group
from fabricd.plan.group_survey import survey

_log = logging.getLogger("fabricd.groups")

#: For all measurements of one group.
MEASURE_SECONDS = 8.0


class MeasuringPlanner:
    """Plans groups; across hosts it measures first.

    Args:
        nodes: what is known of the members' hosts.
        pairs: measures between them.
        files: what this daemon is told of where nodes stand.
        max_age_seconds: gives the age up to which a measurement made before will do.
    """

    def __init__(
        self,
        nodes: NodeMap,
        pairs: PairMeasurer,
        files: PlacementFiles,
        *,
        max_age_seconds: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._pairs = pairs
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
        measurements, left = await self._pairs.measure(
            known.pairs, max_age_seconds=self._max_age_seconds(), seconds=MEASURE_SECONDS
        )
        unmeasured = {pair.network: why for pair, why in left.items()}
        for network, why in unmeasured.items():
            _log.warning("%s", why, extra={"facts": {"network": network}})
        plan = await in_thread(lambda: plan_group(engine, views, nodes, measurements, unmeasured), name="plan")
        plan = replace(plan, map_cursor=cursor, check_calls=any(view.check_calls for view in views.values()))
        if not any(view.world for view in views.values()):
            return plan
        # Ranks cannot see one another's views, and whether an MPI that runs already is shared by all decides all.
        return replace(plan, ranks=tuple(replace(part, world=views[part.rank].world) for part in plan.ranks))
