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
from fabricd.shortage import Resource, Shortages, shortage_of

_log = logging.getLogger("fabricd.groups")

#: A plan takes some seconds where networks are measured; one that takes longer will not come.
_PLAN_SECONDS = 30.0
#: After a shortage it is tried again so much later.
_AGAIN_SECONDS = 0.5


class Planner(Protocol):
    """Makes a plan of what the ranks of a complete group see."""

    async def plan(self, engine: str, views: Mapping[int, LocalView]) -> GroupPlan:
        """Return the plan; raises FabricError when there is none."""


async def planned(planner: Planner, state: GroupState, shortages: Shortages) -> ev.Planned | ev.PlanFailed:
    """Make a group's plan, and return what came of it. For want of threads or memory it is tried again for a while."""
    views = {rank: member.view for rank, member in state.members.items() if member.view is not None}
    lacking: Resource | None = None
    try:
        async with asyncio.timeout(_PLAN_SECONDS):
            while True:
                try:
                    return ev.Planned(plan=await planner.plan(state.engine, views))
                except Exception as error:
                    lacking = shortage_of(error)
                    if lacking is None:
                        raise
                    shortages.note(lacking, f"planning group {state.name!r}: {error}")
                await asyncio.sleep(_AGAIN_SECONDS)
    except FabricError as error:
        return ev.PlanFailed(error=error)
    except TimeoutError:
        if lacking is not None:
            told = f"the daemon has been short of {lacking} for {_PLAN_SECONDS:g} s, and could not plan"
            return ev.PlanFailed(error=FabricError(told, hint="start the job again when its /readyz says so no more"))
        return ev.PlanFailed(error=FabricError(f"planning did not end within {_PLAN_SECONDS:g} s"))
    except Exception as error:  # noqa: BLE001 - a fault of the planner must reach the ranks that wait for it
        _log.exception("planning group %r", state.name)
        return ev.PlanFailed(error=FabricError(f"unforeseen error while planning: {type(error).__name__}"))
