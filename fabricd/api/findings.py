"""What is wrong with nodes, and with a set of them that is to work together."""

from collections.abc import Collection, Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from fabricd.api.message import answers, json_response
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ
from fabricd.api.services import KeptFindings, Services, UsesServices
from fabricd.background import in_thread
from fabricd.errors import UnknownNameError
from fabricd.findings.cluster import cluster_findings
from fabricd.findings.find import find
from fabricd.model.finding import MAX_HOSTLIST, Findings
from fabricd.model.snapshot import Snapshot
from fabricd.placement.hostlist import expand
from fabricd.plan.order.from_map import node_names

router = APIRouter(dependencies=[READ])

#: An agent waits so much longer: it takes seconds for thousands of nodes.
_SECONDS = 60.0


@router.get("/v1/findings", responses=answers(Findings))
async def get_findings(
    request: Request,
    services: UsesServices,
    nodes: Annotated[
        str, Query(max_length=MAX_HOSTLIST, description='which, as a hostlist of names or node_ids: "gpu[001-016]"')
    ] = "",
) -> Response:
    """Return what is wrong with some nodes, by default all that are known, and between them; the worst first.

    An agent answers for its own node, and passes the rest on.
    """
    known = services.nodes.snapshots()
    own = services.nodes.local.node
    wanted = expand(nodes) if nodes else None
    if not (wanted and set(wanted) <= {own.name, own.node_id}) and must_pass_on(request, services):
        return PassedOn(request, services, wait=_SECONDS)
    ids = None if wanted is None else dict.fromkeys(_id_of(services, known, name) for name in wanted)
    found = await _found(services, known, ids)
    return json_response(found, headers={"Cache-Control": "no-cache"})


async def recent_findings(services: Services) -> Findings:
    """Return what is wrong with all nodes, as of some seconds ago at most: for who asks again and again.

    What took long is kept for ten times as long.
    """
    async with services.finding:
        kept = services.kept_findings
        if kept is not None and services.clock() < kept.until:
            return kept.findings
        begun = services.clock()
        found = await _found(services, services.nodes.snapshots(), None)
        ended = services.clock()
        services.kept_findings = KeptFindings(found, ended + 10 * (ended - begun))
        return found


async def _found(services: Services, known: Mapping[str, Snapshot], ids: Collection[str] | None) -> Findings:
    """Return what is wrong with some of the nodes that are known, by node_id; None for all."""
    chosen = known if ids is None else {node_id: known[node_id] for node_id in ids if node_id in known}
    names = node_names(known)
    more = tuple(cluster_findings(services.nodes.head(), services.nodes.listing(summary=True), ids))
    measured = services.measurer.known()
    services.findings.keep_to(known)
    async with services.searches:
        return await in_thread(
            lambda: find(chosen, names, measurements=measured, more=more, known=services.findings), name="findings"
        )


def _id_of(services: Services, known: Mapping[str, Snapshot], name: str) -> str:
    """Return the node_id of a name; nodes that do not answer any more can be asked for.

    Raises:
        UnknownNameError: nobody bears it, or several do.
    """
    if name in known:
        return name
    try:
        return services.nodes.find(name, summary=True).node_id
    except UnknownNameError:
        short = [node_id for node_id, one in known.items() if one.node.name.partition(".")[0] == name.partition(".")[0]]
        if len(short) != 1:
            raise
        return short[0]
