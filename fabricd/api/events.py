"""What changes in the cluster's map: as pages with long polls, or as a stream of server-sent events."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fabricd import scopes
from fabricd.api.longpoll import Wait, first_of, until_gone
from fabricd.api.message import answers, either, json_response, streams
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import READ, check_still
from fabricd.api.services import Services, UsesServices
from fabricd.errors import BusyError
from fabricd.model.codec import to_json
from fabricd.model.event import Event, EventPage

router = APIRouter(dependencies=[READ])

_STREAM = "text/event-stream"
#: A comment goes out after so long a silence, for proxies and clients that give up on silent connections.
BEAT_SECONDS = 15.0
#: Events that a stream writes at once, some 12 KB: thousands of streams that begin with all that is kept neither hold
#: the event loop up, nor fill memory with what nobody reads.
_AT_ONCE = 50

Since = Annotated[str | None, Query(max_length=64, description="cursor of an earlier answer; none: all that is kept")]
LastId = Annotated[str | None, Header(max_length=64, description="sent by browsers that come back to a stream")]


@router.get("/v1/events", responses=either(answers(EventPage), streams(Event, _STREAM)))
async def get_events(
    request: Request, services: UsesServices, since: Since = None, wait: Wait = 0.0, last_event_id: LastId = None
) -> Response:
    """Return what changed since a cursor, oldest first; with ``wait`` as soon as there is something.

    With ``Accept: text/event-stream`` the answer is a stream without end: ``id`` is a cursor, ``event`` the kind,
    ``data`` the event. Either way ``resync`` says that events are missing: read ``/v1/cluster`` and go on from its
    ``event_cursor``.
    """
    if must_pass_on(request, services):
        return PassedOn(request, services, wait=max(wait, BEAT_SECONDS))
    history = services.nodes.history
    if _STREAM in request.headers.get("accept", ""):
        cursor = last_event_id if last_event_id is not None else since
        history.since(cursor)  # a bad cursor is told while there is a status to tell it with
        return _EventStream(services, cursor)
    page = await services.polls.hold(request, lambda seconds: history.wait(since, seconds), wait)
    if page is None:
        raise BusyError("the daemon is stopping", retry_after_seconds=2)
    return json_response(page, headers={"Cache-Control": "no-cache"})


class _EventStream(Response):
    """Events for one client, for as long as it stays and may read them.

    One that is too slow misses events, and is told so.
    """

    def __init__(self, services: Services, cursor: str | None) -> None:
        super().__init__(media_type=_STREAM, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._services = services
        self._polls = services.polls
        self._history = services.nodes.history
        self._cursor = cursor

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the client goes or the daemon stops."""
        async with self._polls.slot():
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await first_of(self._send_all(scope, send), until_gone(receive), self._polls.stopping.wait())
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.body", "body": b": hello\n\n", "more_body": True})
        while True:
            page = await self._history.wait(self._cursor, BEAT_SECONDS, _AT_ONCE)
            check_still(scope, self._services.credentials.grants, scopes.Scope.READ)
            self._cursor = page.cursor
            told = b"".join(self._told(event) for event in page.events)
            if page.resync:
                told += _message(page.cursor, "resync", page)
            await send({"type": "http.response.body", "body": told or b": alive\n\n", "more_body": True})
            await asyncio.sleep(0)  # the others' turn: sending waits for a client only when it does not read

    def _told(self, event: Event) -> bytes:
        return _message(self._history.cursor_of(event), event.kind.value, event)


def _message(cursor: str, kind: str, data: object) -> bytes:
    return f"id: {cursor}\nevent: {kind}\ndata: ".encode() + to_json(data) + b"\n\n"
