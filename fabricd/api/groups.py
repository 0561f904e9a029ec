"""Groups: the rendezvous of a job's ranks. The messages and their rules stand in ``fabricd.model.wire``."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fabricd.api.auth import Caller, caller
from fabricd.api.longpoll import Wait
from fabricd.api.message import answers, either, json_response, read_body, streams, takes
from fabricd.api.scope import JOIN
from fabricd.api.services import Services, UsesServices
from fabricd.cluster.groups_access import Credentials
from fabricd.cluster.groups_live import Ticket
from fabricd.cluster.groups_stream import WatchStream
from fabricd.errors import BusyError, InputError
from fabricd.model.codec import to_line
from fabricd.model.wire import (
    CLAIM,
    CLAIM_HEADER,
    EVENT_LINES,
    INCARNATION_HEADER,
    SECRET_HEADER,
    SECRET_MIN_LENGTH,
    FenceAnswer,
    FenceRequest,
    GroupStatus,
    JoinAnswer,
    JoinRequest,
    RollAnswer,
    WatchEvent,
)

router = APIRouter(prefix="/v1/groups/{group}", dependencies=[JOIN])

GroupName = Annotated[str, Path(max_length=200)]
Rank = Annotated[int, Path(ge=0, le=2**31)]
Round = Annotated[int, Path(ge=0, le=2**31)]
Reason = Annotated[str, Query(max_length=500, description="why, for the other ranks")]
Doing = Annotated[str, Query(max_length=200, description="the operation that the rank is in")]
Asker = Annotated[Caller, Depends(caller)]
_HEADERS = [
    {"name": name, "in": "header", "required": False, "description": description, "schema": schema}
    for name, description, schema in (
        (
            SECRET_HEADER,
            "the group's secret; without one only processes of one user over the Unix socket can form a group",
            {"type": "string", "minLength": SECRET_MIN_LENGTH},
        ),
        (CLAIM_HEADER, "of a member: what its join bore", {"type": "string", "pattern": f"^{CLAIM}$"}),
        (INCARNATION_HEADER, "which one is meant, by restart count", {"type": "integer", "minimum": 0}),
    )
]


@router.put(
    "/members/{rank}",
    responses=either(answers(JoinAnswer, _202=GroupStatus), streams(WatchEvent, EVENT_LINES)),
    openapi_extra=takes(JoinRequest),
)
async def join(
    group: GroupName, rank: Rank, request: Request, services: UsesServices, asker: Asker, wait: Wait = 0.0
) -> Response:
    """Claim a rank; the answer is there when all ranks are, and the plan.

    With ``Accept: application/x-ndjson`` the member's event stream follows it, one JSON object a line.
    """
    body = await read_body(request, JoinRequest)
    shown = credentials(request, asker)
    cost = len(await request.body())
    ticket = await services.groups.join(group, rank, body, shown, cost=cost)
    if request.headers.get("accept") != EVENT_LINES:
        return await _held(request, services, ticket, wait)
    stream = _WatchResponse(services, group, rank, shown, first=ticket)
    return await _held(request, services, ticket, wait, stream)


@router.post("/fence/{number}", responses=answers(FenceAnswer, _202=GroupStatus), openapi_extra=takes(FenceRequest))
async def fence(
    group: GroupName, number: Round, request: Request, services: UsesServices, asker: Asker, wait: Wait = 0.0
) -> Response:
    """Bring new keys; the answer is there when every rank's are."""
    body = await read_body(request, FenceRequest)
    cost = len(await request.body())
    ticket = services.groups.fence(group, number, body, credentials(request, asker), cost=cost)
    return await _held(request, services, ticket, wait)


@router.get("/members/{rank}/watch", responses=answers() | streams(WatchEvent, EVENT_LINES))
async def watch(group: GroupName, rank: Rank, request: Request, services: UsesServices, asker: Asker) -> Response:
    """Follow what happens to the group, one JSON object a line, for as long as this rank lives."""
    return _WatchResponse(services, group, rank, credentials(request, asker))


@router.post("/members/{rank}/roll", responses=answers(RollAnswer))
async def roll(group: GroupName, rank: Rank, request: Request, services: UsesServices, asker: Asker) -> Response:
    """Ask all members what they are doing, for one that waits in vain; the answer comes within 2 s."""
    async with services.polls.slot():
        found = await services.groups.call_roll(group, rank, credentials(request, asker))
    return json_response(found)


@router.put("/members/{rank}/doing", status_code=204, responses=answers())
async def doing(
    group: GroupName, rank: Rank, request: Request, services: UsesServices, asker: Asker, what: Doing = ""
) -> Response:
    """Answer a roll call."""
    if not what.isprintable():
        raise InputError("what holds characters that cannot be printed")
    services.groups.here(group, rank, what, credentials(request, asker))
    return Response(status_code=204)


@router.delete("/members/{rank}", status_code=204, responses=answers())
async def leave(group: GroupName, rank: Rank, request: Request, services: UsesServices, asker: Asker) -> Response:
    """Go in peace."""
    services.groups.leave(group, rank, credentials(request, asker))
    return Response(status_code=204)


@router.delete("", status_code=204, responses=answers())
async def abort(
    group: GroupName, request: Request, services: UsesServices, asker: Asker, reason: Reason = ""
) -> Response:
    """End the group for all its ranks."""
    if not reason.isprintable():
        raise InputError("the reason holds characters that cannot be printed")
    services.groups.abort(group, reason, credentials(request, asker))
    return Response(status_code=204)


@router.get("", responses=answers(GroupStatus))
async def status(group: GroupName, request: Request, services: UsesServices, asker: Asker) -> Response:
    """Return how the group is."""
    return json_response(services.groups.status(group, credentials(request, asker)))


def describe(told: dict[str, Any]) -> None:
    """Add to an API description what headers requests about groups bear."""
    for path, operations in told["paths"].items():
        if path.startswith(router.prefix):
            for operation in operations.values():
                operation.setdefault("parameters", []).extend(_HEADERS)


def credentials(request: Request, asker: Caller) -> Credentials:
    """Return what a request shows.

    Raises:
        InputError: the incarnation is no number.
    """
    headers = request.headers
    told = headers.get(INCARNATION_HEADER)
    if told is not None and not (told.isascii() and told.isdigit() and len(told) <= 16):
        raise InputError(f"{INCARNATION_HEADER} is no number", hint="0, 1, 2, ...")
    address = request.client.host if request.client else "this host"
    return Credentials(
        secret=headers.get(SECRET_HEADER),
        uid=asker.uid,
        claim=headers.get(CLAIM_HEADER),
        incarnation=int(told) if told is not None else None,
        caller=f"uid {asker.uid}" if asker.kind == "unix" else address,
    )


async def _held(
    request: Request, services: Services, ticket: Ticket, wait: float, stream: Response | None = None
) -> Response:
    """Hold the answer back until it is there; 202 says to ask again."""
    groups = services.groups
    with groups.asking(ticket):
        ready = await services.polls.hold(request, lambda seconds: groups.ready(ticket, seconds), wait)
        ticket.vanished = ready is None and not services.polls.stopping.is_set()
    if ready:
        return stream or Response(groups.answer(ticket), media_type="application/json")
    if services.polls.stopping.is_set():
        raise BusyError("the daemon is stopping", retry_after_seconds=2)
    return json_response(ticket.group.state.status(), status=202)


class _WatchResponse(Response):
    """A member's event stream. It begins and ends with the connection, whatever happens in between.

    Args:
        services: the daemon's.
        group: whose events.
        rank: the member's.
        shown: its right to them.
        first: of a join, whose answer comes before the first event.
    """

    def __init__(
        self, services: Services, group: str, rank: int, shown: Credentials, *, first: Ticket | None = None
    ) -> None:
        super().__init__(media_type=EVENT_LINES, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._services = services
        self._watched = (group, rank, shown)
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client goes, the member leaves, or the daemon stops."""
        async with self._services.polls.slot():
            with self._services.groups.watch(*self._watched) as stream:
                gone = asyncio.create_task(_until_gone(receive, stream))
                try:
                    answer = b"" if self._first is None else self._services.groups.answer(self._first)
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    if answer:
                        await send({"type": "http.response.body", "body": answer, "more_body": True})
                    del answer  # it is long
                    while events := await stream.next():
                        lines = b"".join(map(to_line, events))
                        await send({"type": "http.response.body", "body": lines, "more_body": True})
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                finally:
                    gone.cancel()


async def _until_gone(receive: Receive, stream: WatchStream) -> None:
    """End the stream when the client goes away."""
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.end()
