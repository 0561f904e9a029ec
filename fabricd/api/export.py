"""The map in forms that other programs read."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from fabricd.api.message import answers
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ
from fabricd.api.services import UsesServices
from fabricd.background import in_thread
from fabricd.errors import UnknownNameError
from fabricd.graph.placement import placement
from fabricd.paths.ends import MAX_NAME
from fabricd.plan.export import CLUSTER_FORMATS, NODE_FORMATS, Exported, export_cluster, export_node
from fabricd.plan.order.from_map import node_names

router = APIRouter(dependencies=[READ])

NodeName = Annotated[str, Query(max_length=MAX_NAME, description="of a form for one node: which, by default this one")]


_TEXT = {"description": "the text", "content": {"text/plain": {}, "application/xml": {}}}


@router.get("/v1/export/{form}", responses={**answers(), 200: _TEXT})
async def get_export(request: Request, services: UsesServices, form: str, node: NodeName = "") -> Response:
    """Return a node (nccl-topo, dot, matrix) or the cluster (slurm-topology, hostfile, rankfile) as text.

    An agent answers for its own node, and passes the rest on.
    """
    form = form.removesuffix(".xml").removesuffix(".txt")
    if form not in (*NODE_FORMATS, *CLUSTER_FORMATS):
        raise UnknownNameError("format", form[:40], (*NODE_FORMATS, *CLUSTER_FORMATS))
    known = services.nodes.snapshots()
    own = next(iter(known))
    if form in CLUSTER_FORMATS:
        if must_pass_on(request, services):
            return PassedOn(request, services)

        def cluster() -> Exported:
            names = node_names(known)
            places = placement(services.placement_files.applied(known)) if form == "slurm-topology" else {}
            nodes = {name: known[node_id] for node_id, name in names.items()}
            return export_cluster(form, nodes, places={names[node_id]: place for node_id, place in places.items()})

        async with services.searches:
            found = await in_thread(cluster, name="export")
    else:
        ids = {snapshot.node.name: node_id for node_id, snapshot in known.items()}
        wanted = known.get(ids.get(node, node) or own)
        if wanted is None:
            if must_pass_on(request, services):
                return PassedOn(request, services)
            raise UnknownNameError("node", node, sorted(ids))
        snapshot = wanted
        async with services.searches:
            found = await in_thread(lambda: export_node(form, snapshot), name="export")
    return Response(found.text, media_type=found.media_type, headers={"Cache-Control": "no-cache"})
