"""This node, and the nodes around it."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response, StreamingResponse

from fabricd.api.longpoll import Wait
from fabricd.api.message import UNCHANGED, answers, json_response
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ
from fabricd.api.services import Services, UsesServices
from fabricd.cluster.version import Version
from fabricd.errors import BusyError
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.codec import to_json, to_line
from fabricd.model.snapshot import Snapshot

router = APIRouter(dependencies=[READ])

GENERATION_HEADER = "X-Fabricd-Generation"
INSTANCE_HEADER = "X-Fabricd-Instance"
#: An agent waits so much longer for networks: working them out takes seconds for ten thousand nodes.
_NETWORKS_SECONDS = 60.0
_PIECE_BYTES = 64 * 1024

Generation = Annotated[
    int | None, Query(ge=0, le=2**53, description="generation already known: with wait, answer when it is another")
]
NodeName = Annotated[str, Path(min_length=1, max_length=255, description="node_id or name")]


@router.get("/v1/node", responses=answers(Snapshot) | UNCHANGED)
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


@router.get("/v1/cluster", responses=answers(ClusterStatus) | UNCHANGED)
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
        return PassedOn(request, services, wait=wait + (_NETWORKS_SECONDS if networks else 0.0))
    nodes, overview = services.nodes, services.overview

    def etag() -> str:
        form = ("-s" if summary else "") + (f"-n{overview.version}" if networks else "")
        return _etag(f"{nodes.instance}-{nodes.map_version.number}{form}")

    await _until_news(request, services, nodes.map_version, etag, wait, generation)
    known = _matches(request, etag()) and not (networks and not overview.version)
    found = await overview.find() if networks and not known else None
    headers = {GENERATION_HEADER: str(nodes.map_version.number), INSTANCE_HEADER: nodes.instance}
    headers = {"ETag": etag(), "Cache-Control": "no-cache", **headers}
    if known:
        return Response(status_code=304, headers=headers)
    lists: dict[str, Iterable[object]] = {"nodes": nodes.listing(summary=summary)}
    head = nodes.head()
    if found is not None:
        lists |= {"networks": found.networks, "no_network": found.rejected, "places": found.places}
        head = replace(head, networks=(), no_network=(), places=(), networks_age_seconds=overview.age_seconds(found))
    return await _in_pieces(head, lists, headers)


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


async def _in_pieces(
    head: ClusterStatus, lists: Mapping[str, Iterable[object]], headers: Mapping[str, str]
) -> Response:
    """Return a status whose lists are made up and written bit by bit: there may be a gigabyte, and others wait.

    Args:
        head: the status with these lists empty.
        lists: what goes into them, by field, in their order.
        headers: of the answer.
    """
    pieces = _pieces(head, lists)
    first = await anext(pieces)
    second = await anext(pieces, None)
    if second is None:
        return Response(first, headers=headers, media_type="application/json")

    async def whole() -> AsyncIterator[bytes]:
        yield first
        yield second
        async for piece in pieces:
            yield piece

    return StreamingResponse(whole(), headers=headers, media_type="application/json")


async def _pieces(head: ClusterStatus, lists: Mapping[str, Iterable[object]]) -> AsyncGenerator[bytes, None]:
    rest = to_line(head)
    written = bytearray()
    for name, items in lists.items():
        # The first such words are the field's: within a string the quotes would be escaped.
        before, rest = rest.split(f'"{name}":[]'.encode(), 1)
        written += before + f'"{name}":['.encode()
        for number, item in enumerate(items):
            written += (b"," if number else b"") + to_json(item)
            if len(written) >= _PIECE_BYTES:
                for at in range(0, len(written), _PIECE_BYTES):
                    yield bytes(written[at : at + _PIECE_BYTES])
                    await asyncio.sleep(0)  # writing need not wait for anybody, and then others would
                written.clear()
        written += b"]"
    yield bytes(written) + rest


def _etag(text: str) -> str:
    return f'W/"{text}"'  # weak: times and counters differ between answers of one version


def _matches(request: Request, etag: str) -> bool:
    known = [part.strip() for part in request.headers.get("if-none-match", "").split(",")]
    return "*" in known or etag in known or etag.removeprefix("W/") in known
