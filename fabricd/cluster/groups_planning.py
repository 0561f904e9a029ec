"""A complete group gets its plan; whatever goes wrong with that becomes the group's failure."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol

from fabricd.cluster import groups_events as ev
from fabricd.cluster.groups_state import GroupState
from fabricd.errors import FabricError
from fabricd.localview import LocalView
from fabricd.model.plan import GroupPlan

_log = logging.getLogger("fabricd.groups")

#: A plan takes some seconds where networks are measured; one that takes longer will not come.
_PLAN_SECONDS = 30.0


class Planner(Protocol):
    """Makes a plan of what the ranks of a complete group see."""

    async def plan(self, engine: str, views: Mapping[int, LocalView]) -> GroupPlan:
        """Return the plan; raises FabricError when there is none."""


async def planned(planner: Planner, state: GroupState) -> ev.Planned | ev.PlanFailed:
    """Make a group's plan, and return what came of it."""
    views = {rank: member.view for rank, member in state.members.items() if member.view is not None}
    try:
        async with asyncio.timeout(_PLAN_SECONDS):
            return ev.Planned(plan=await planner.plan(state.engine, views))
    except FabricError as error:
        return ev.PlanFailed(error=error)
    except TimeoutError:
        return ev.PlanFailed(error=FabricError(f"planning did not end within {_PLAN_SECONDS:g} s"))
    except Exception as error:  # noqa: BLE001 - a fault of the planner must reach the ranks that wait for it
        _log.exception("planning group %r", state.name)
        return ev.PlanFailed(error=FabricError(f"unforeseen error while planning: {type(error).__name__}"))
