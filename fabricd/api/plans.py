"""How ranks on GPUs of the map should talk."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from fabricd.api.longpoll import first_of, until_gone
from fabricd.api.message import answers, json_response, read_body, takes
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.plan_process import SECONDS
from fabricd.api.scope import PLAN
from fabricd.api.services import UsesServices
from fabricd.background import in_thread
from fabricd.errors import InputError, UnknownNameError
from fabricd.model.codec import to_json
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.plan.job_plan import nodes_of, with_own_node

router = APIRouter(dependencies=[PLAN])


@router.post("/v1/plans", responses=answers(CollectivePlan), openapi_extra=takes(PlanRequest))
async def post_plan(request: Request, services: UsesServices) -> Response:
    """Return a plan: rings or trees, their ports, what is possible, the time it takes, and the engines' settings.

    Made in a process of its own. An agent plans for its own node, and passes the rest on.
    """
    asked = await read_body(request, PlanRequest)
    if told := asked.faults():
        raise InputError(f"the request asks for {told}")
    known = services.nodes.snapshots()
    own = next(iter(known))
    if services.maps is not None:
        known = {own: known[own]}
    try:
        nodes = nodes_of(asked, known)
    except UnknownNameError:
        if not must_pass_on(request, services):
            raise
        content = to_json(with_own_node(asked, own))
        return PassedOn(request, services, wait=SECONDS, content=content)
    placed = await in_thread(lambda: services.placement_files.applied(nodes), name="placement")
    plan = await first_of(services.plans.make(asked, placed), until_gone(request.receive))
    return Response(status_code=499) if plan is None else json_response(plan, headers={"Cache-Control": "no-store"})
