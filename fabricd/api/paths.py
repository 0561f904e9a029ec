"""Which paths lead from a to b, which is best, and why not another."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from fabricd.api.message import answers, json_response
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ
from fabricd.api.services import UsesServices
from fabricd.background import in_thread
from fabricd.errors import UnknownNameError
from fabricd.model.path import DEFAULT_BYTES, PathAnswer, Policy
from fabricd.paths.ends import MAX_NAME
from fabricd.paths.estimate import MAX_BYTES, MAX_FLOWS, Comparison
from fabricd.paths.query import find_paths
from fabricd.paths.search import MAX_CANDIDATES

router = APIRouter(dependencies=[READ])

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
    request: Request,
    services: UsesServices,
    src: End,
    dst: End,
    explain: Annotated[bool, Query(description="add why each better class of transport is no candidate")] = False,
    candidates: Annotated[int, Query(ge=1, le=MAX_CANDIDATES, description="at most so many paths")] = 4,
    capacity: Annotated[bool, Query(description="add what all paths carry at once")] = False,
    policy: Annotated[Policy, Query(description="the least estimated time, or strictly by class of transport")] = (
        Policy.FASTEST
    ),
    size: Annotated[int, Query(alias="bytes", ge=1, le=MAX_BYTES, description="that times are estimated for")] = (
        DEFAULT_BYTES
    ),
    flows: Annotated[int, Query(ge=1, le=MAX_FLOWS, description="that share the path evenly")] = 1,
    local: Annotated[str, Query(max_length=MAX_NAME, description="node_id of the node that bare names belong to")] = "",
) -> Response:
    """Return the paths between two ends, best first. An agent answers for its own node, and passes the rest on."""
    nodes = services.nodes.snapshots()
    own = next(iter(nodes))
    if services.maps is not None:
        nodes = {own: nodes[own]}
    measured, files = services.measurer.known(), services.placement_files

    def search() -> PathAnswer:
        return find_paths(
            nodes,
            src,
            dst,
            measurements=measured,
            explain=explain,
            candidates=candidates,
            with_capacity=capacity,
            local=local,
            comparison=Comparison(policy=policy, bytes=size, flows=flows),
            ends=services.ends,
            imports=files.imports(),
        )

    try:
        # Another thread would hold the interpreter for as long, and both would wait to be woken.
        if not (capacity or measured or files.files) and services.ends.are_near_at_hand(nodes, (src, dst), local):
            answer = search()
        else:
            async with services.searches:
                answer = await in_thread(search, name="paths")
    except UnknownNameError:
        if not must_pass_on(request, services):
            raise
        return PassedOn(request, services, local=own)
    return json_response(answer, headers={"Cache-Control": "no-cache"})
