"""Questions about the cluster, passed on by a daemon that holds no map to one that does."""

from urllib.parse import quote, urlencode

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from fabricd.api.auth import identify
from fabricd.api.longpoll import first_of, until_gone
from fabricd.api.services import Services
from fabricd.cluster.map_client import PASSED_ON_HEADER, NoMapError
from fabricd.errors import BusyError, UnreachableError

#: Says which map node an answer comes from.
ANSWERED_BY_HEADER = "X-Fabricd-Answered-By"
_ASKED = ("accept", "if-none-match", "last-event-id")
_ANSWERED = (
    "content-type", "etag", "cache-control", "retry-after", "x-accel-buffering", "x-fabricd-generation",
    "x-fabricd-instance", "content-security-policy",
)  # fmt: skip
#: For an answer to come, beyond what the question itself lets it wait; a stream beats more often than that.
_ANSWER_SECONDS = 8.0


def must_pass_on(request: Request, services: Services) -> bool:
    """Whether another daemon has to answer what is asked of the cluster.

    Raises:
        NoMapError: the question was passed on already.
    """
    if services.maps is None:
        return False
    if PASSED_ON_HEADER in request.headers:
        raise NoMapError("this daemon is an agent, and holds no map to answer from", hint="it is no map node of others")
    return True


class PassedOn(Response):
    """A map node's answer, passed through as it comes, for as long as the client stays.

    Args:
        request: the question; its path and query are asked again.
        services: the map nodes, and the bounds.
        wait: how long the question lets the answer wait, seconds.
        content: JSON of a question that is posted.
        more: added to the query.
    """

    def __init__(
        self, request: Request, services: Services, *, wait: float = 0.0, content: bytes | None = None, **more: str
    ) -> None:
        super().__init__()
        # Not request.url, which is made with the Host header: the map node is asked with this daemon's token, not the
        # caller's, so it must be asked for the route that the caller was let into.
        asked = request.scope["query_string"].decode("latin-1").replace("#", "%23")
        query = "&".join(part for part in (asked, urlencode(more)) if part)
        self._path = quote(request.scope["path"]) + (f"?{query}" if query else "")
        self._asked = {name: request.headers[name] for name in _ASKED if name in request.headers}
        self._content = content
        self._services = services
        self._seconds = wait + _ANSWER_SECONDS
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask, and pass the answer through.

        Raises:
            FabricError: no map node answers, or too many questions are open.
        """
        polls = self._services.polls
        async with polls.slot():
            await first_of(self._pass_through(scope, send), until_gone(receive), polls.stopping.wait())
        if polls.stopping.is_set() and not self._begun:
            raise BusyError("the daemon is stopping", retry_after_seconds=2)

    async def _pass_through(self, scope: Scope, send: Send) -> None:
        if self._services.maps is None:
            raise UnreachableError("there are no map nodes")
        maps = self._services.maps
        async with maps.ask(self._path, seconds=self._seconds, headers=self._asked, content=self._content) as (
            url,
            answer,
        ):
            kept = {name: answer.headers[name] for name in _ANSWERED if name in answer.headers}
            headers = [(name.encode(), value.encode("latin-1")) for name, value in kept.items()]
            headers.append((ANSWERED_BY_HEADER.lower().encode(), url.encode()))
            self._begun = True
            await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
            async for chunk in answer.aiter_raw():
                identify(scope, self._services.credentials.grants)  # of a stream, the token may have been taken back
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
