"""This node, and the nodes around it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from fabricd.api.longpoll import Wait
from fabricd.api.message import answers, json_response
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ
from fabricd.api.services import Services, UsesServices
from fabricd.cluster.version import Version
from fabricd.errors import BusyError
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.codec import to_json
from fabricd.model.snapshot import Snapshot

router = APIRouter(dependencies=[READ])

GENERATION_HEADER = "X-Fabricd-Generation"
INSTANCE_HEADER = "X-Fabricd-Instance"

Generation = Annotated[
    int | None, Query(ge=0, le=2**53, description="generation already known: with wait, answer when it is another")
]
NodeName = Annotated[str, Path(min_length=1, max_length=255, description="node_id or name")]


@router.get("/v1/node", responses=answers(Snapshot))
async def get_node(
    request: Request, services: UsesServices, wait: Wait = 0.0, generation: Generation = None
) -> Response:
    """Return this node's snapshot.

    With ``wait`` the answer is held back until the facts change: from the ``generation`` that is known, else from the
    ETag in ``If-None-Match``. 304 when nothing changed.
    """
    nodes = services.nodes
    await _until_news(request, services, nodes.local_version, lambda: _etag(nodes.local.content_hash), wait, generation)
    snapshot = nodes.local
    headers = {
        "ETag": _etag(snapshot.content_hash),
        "Cache-Control": "no-cache",
        GENERATION_HEADER: str(snapshot.generation),
        INSTANCE_HEADER: snapshot.instance,
    }
    if _matches(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return json_response(snapshot, headers=headers)


@router.get("/v1/cluster", responses=answers(ClusterStatus))
async def get_cluster(
    request: Request,
    services: UsesServices,
    wait: Wait = 0.0,
    generation: Generation = None,
    summary: Annotated[bool, Query(description="without the snapshots")] = False,
    networks: Annotated[bool, Query(description="with the networks, and where nodes stand")] = False,
) -> Response:
    """Return all known nodes with state and age, this one first. ``wait`` and ``generation`` as for the node.

    An agent passes this on; then "this node" is the map node that answers.
    """
    if must_pass_on(request, services):
        return PassedOn(request, services, wait=wait)
    nodes = services.nodes

    def etag() -> str:
        form = ("-s" if summary else "") + (f"-n{services.overview.version}" if networks else "")
        return _etag(f"{nodes.instance}-{nodes.map_version.number}{form}")

    await _until_news(request, services, nodes.map_version, etag, wait, generation)
    headers = {GENERATION_HEADER: str(nodes.map_version.number), INSTANCE_HEADER: nodes.instance}
    headers = {"ETag": etag(), "Cache-Control": "no-cache", **headers}
    if _matches(request, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    found = await services.overview.find() if networks else None
    cluster = nodes.status(summary=summary)
    if found is not None:
        cluster = replace(cluster, networks=found.networks, no_network=found.rejected, places=found.places)
    return json_response(cluster, headers=headers) if summary else _WholeCluster(cluster, headers)


@router.get("/v1/nodes/{node}", responses=answers(NodeStatus))
async def get_one(node: NodeName, request: Request, services: UsesServices) -> Response:
    """Return one node, by node_id or name."""
    own = services.nodes.local.node
    if node not in (own.node_id, own.name) and must_pass_on(request, services):
        return PassedOn(request, services)
    return json_response(services.nodes.find(node), headers={"Cache-Control": "no-cache"})


async def _until_news(
    request: Request,
    services: Services,
    version: Version,
    etag: Callable[[], str],
    wait: float,
    generation: int | None,
) -> None:
    """Return when what is asked for differs from what the client knows, or after ``wait`` seconds.

    Raises:
        BusyError: this node has no snapshot and gets none in time, or the daemon stops.
    """
    if wait <= 0:
        return

    def news(seconds: float) -> Awaitable[int]:
        if not services.nodes.ready:
            return version.wait_for_change(0, seconds)
        if generation is not None:
            return version.wait_for_change(generation, seconds)
        known = version.number if _matches(request, etag()) else -1
        return version.wait_for_change(known, seconds)

    if await services.polls.hold(request, news, wait) is None and services.polls.stopping.is_set():
        raise BusyError("the daemon is stopping", retry_after_seconds=2)


class _WholeCluster(StreamingResponse):
    """All nodes with their snapshots, written one by one: there may be a gigabyte of them, and others wait."""

    def __init__(self, cluster: ClusterStatus, headers: dict[str, str]) -> None:
        super().__init__(self._pieces(cluster), headers=headers, media_type="application/json")

    async def _pieces(self, cluster: ClusterStatus) -> AsyncIterator[bytes]:
        # The first such words are the field's: within a string the quotes would be escaped.
        before, after = to_json(replace(cluster, nodes=())).split(b'"nodes":[]', 1)
        yield before + b'"nodes":['
        for number, node in enumerate(cluster.nodes):
            yield (b"," if number else b"") + to_json(node)
        yield b"]" + after


def _etag(text: str) -> str:
    return f'W/"{text}"'  # weak: times and counters differ between answers of one version


def _matches(request: Request, etag: str) -> bool:
    known = [part.strip() for part in request.headers.get("if-none-match", "").split(",")]
    return "*" in known or etag in known or etag.removeprefix("W/") in known
