"""Which paths lead from a to b, which is best, and why not another."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from fabricd.api.message import answers, json_response
from fabricd.api.services import UsesServices
from fabricd.background import in_thread
from fabricd.model.path import PathAnswer
from fabricd.paths.ends import MAX_NAME
from fabricd.paths.query import find_paths
from fabricd.paths.search import MAX_CANDIDATES

router = APIRouter()

End = Annotated[
    str,
    Query(
        min_length=1,
        max_length=MAX_NAME,
        description='"eth0", "mlx5_0:1", "numa0", "gpu0", a PCI address; of another node "NODE/eth0"',
    ),
]


@router.get("/v1/paths", responses=answers(PathAnswer))
async def get_paths(
    services: UsesServices,
    src: End,
    dst: End,
    explain: Annotated[bool, Query(description="add why each better class of transport is no candidate")] = False,
    candidates: Annotated[int, Query(ge=1, le=MAX_CANDIDATES, description="at most so many paths")] = 4,
    capacity: Annotated[bool, Query(description="add what all paths carry at once")] = False,
) -> Response:
    """Return the paths between two ends, best first."""
    nodes = services.nodes.snapshots()
    measured = services.measurer.known()
    async with services.searches:
        answer = await in_thread(
            lambda: find_paths(
                nodes,
                src,
                dst,
                measurements=measured,
                explain=explain,
                candidates=candidates,
                with_capacity=capacity,
            ),
            name="paths",
        )
    return json_response(answer, headers={"Cache-Control": "no-cache"})
