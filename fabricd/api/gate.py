"""The one door: who asks, for whom the request is meant, how large it is, how many run; and no error without an answer.

An ASGI middleware around the whole application, so that nothing behind it can forget to ask.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fabricd.api.auth import CALLER_STATE, Caller, identify
from fabricd.api.foreign import check_host, check_origin
from fabricd.api.problem import PayloadTooLargeError, TooSlowError, problem_response
from fabricd.api.services import Services
from fabricd.errors import FabricError, TokenError
from fabricd.shortage import Resource, ShortageError, shortage_of

_log = logging.getLogger("fabricd.http")

#: What supervisors ask before they hold any token. They tell nothing of the machine.
OPEN_PATHS = frozenset({"/livez", "/readyz"})
#: In the state of a connection for which there was room only to ask those.
LAST_PLACE_STATE = "fabricd.last_place"
#: In the state of a request: when its head had come, seconds of the loop's clock.
ARRIVED_STATE = "fabricd.arrived"
#: A question that had to wait longer for its turn is refused, which takes a hundredth of the time that an answer may:
#: so that under more questions than can be answered the next one, such as a supervisor's, waits no longer than this.
QUEUE_SECONDS = 0.5
#: Not refused for that, for to hold them is as cheap: what a job rests on, and long polls, which all come at once when
#: a daemon has started again.
_GROUPS = "/v1/groups/"
#: Where a shortage is told.
_METRICS = "/metrics"
_POLLED = frozenset({"/v1/node", "/v1/cluster", "/v1/events"})
#: A request's body must have come within this time: a client that trickles holds no handler.
BODY_SECONDS = 30.0


#: What a browser is told with every answer: names of hosts and switches, which others chose, are no page and no script,
#: and no page of another site may put them into itself.
_WEB_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


class Gate:
    """Wraps the application.

    Args:
        app: what is behind the door.
        services: limits, token and counters; read anew for each request, for they may be reloaded.
    """

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services
        self._active = 0
        self._bodies = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it with a problem."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.monotonic()
        answer = _Answer(send, begun, last=LAST_PLACE_STATE in scope.get("state", {}))
        method = scope["method"]
        if method == "HEAD" and not _is_stream(scope):
            scope = {**scope, "method": "GET"}  # of whose answer the server leaves the body out
        self._active += 1
        try:
            waiting = self._waiting_for_body if self._admit(scope) else nullcontext
            body = _Body(receive, self._services.config.max_body_bytes, waiting)
            await self._app(scope, body, answer)
        except FabricError as error:
            await self._refuse(error, scope, receive, answer)
        except ClientDisconnect:
            _log.debug("a client left in the middle of its request")  # nobody is there to be answered
        except Exception as error:  # noqa: BLE001 - the last resort: whatever a handler did not foresee becomes a 500
            told = _unforeseen(error, scope, begun=answer.started is not None)
            await self._refuse(told, scope, receive, answer)
        finally:
            self._active -= 1
            took = None if answer.started is None else answer.started - begun
            self._services.metrics.count_request({**scope, "method": method}, answer.status, took)

    def _admit(self, scope: Scope) -> bool:
        """Decide who asks and whether that may be; return whether there is a body to wait for.

        Raises:
            FabricError: it may not.
        """
        services = self._services
        # A daemon that is busy is alive: a supervisor that heard otherwise would end it.
        if scope["path"] not in OPEN_PATHS:
            self._check_room(scope)
        headers = scope["headers"]
        length = next((value for name, value in headers if name == b"content-length"), b"0").lstrip(b"0")
        longest = services.config.max_body_bytes
        if len(length) > len(str(longest)) or int(length or b"0") > longest:
            raise PayloadTooLargeError(f"a body of more than {longest} bytes")
        try:
            asker = identify(scope, services.credentials.grants)
        except TokenError:
            if scope["path"] not in OPEN_PATHS:
                raise
            asker = Caller(kind="stranger")
        if asker.kind == "loopback":
            check_host(headers, services.config.allowed_hosts)
        check_origin(headers)
        scope.setdefault("state", {})[CALLER_STATE] = asker
        return bool(length)

    def _check_room(self, scope: Scope) -> None:
        """Refuse one more request when there are enough.

        Raises:
            ShortageError: of connections, requests or memory.
        """
        near = self._services.near_memory_limit()
        if near and not scope["path"].startswith((_GROUPS, _METRICS)):
            hint = "ask again later, or give it more: MemoryMax= of its unit, or its container's limit"
            raise ShortageError(Resource.MEMORY, f"this daemon has used its memory up: {near}", hint=hint)
        state, now = scope.get("state", {}), asyncio.get_running_loop().time()
        if LAST_PLACE_STATE in state:
            raise ShortageError(
                Resource.CONNECTIONS, "as many connections as there may be are open", hint="or raise max_connections"
            )
        if now - state.get(ARRIVED_STATE, now) > QUEUE_SECONDS and not _is_cheap(scope):
            raise ShortageError(Resource.REQUESTS, "more is asked than can be answered", retry_after_seconds=1)
        limit = self._services.config.max_requests
        if self._active - self._services.polls.open > limit:
            hint = "ask again later, or raise max_requests"
            raise ShortageError(
                Resource.REQUESTS, f"{limit} requests are in work already", hint=hint, retry_after_seconds=1
            )

    @contextmanager
    def _waiting_for_body(self) -> Iterator[None]:
        """Count a request apart while its body is on the way: slow bodies keep only each other out.

        Raises:
            ShortageError: there are too many of them.
        """
        limit = self._services.config.max_requests
        if self._bodies >= limit:
            raise ShortageError(Resource.REQUESTS, f"{limit} requests wait for their bodies already")
        self._active, self._bodies = self._active - 1, self._bodies + 1
        try:
            yield
        finally:
            self._active, self._bodies = self._active + 1, self._bodies - 1

    async def _refuse(self, error: FabricError, scope: Scope, receive: Receive, answer: "_Answer") -> None:
        if isinstance(error, ShortageError):
            self._services.shortages.note(error.resource, error.message)
        if answer.started is not None:
            # The status is out; only a broken connection can tell that the rest will not come.
            _log.warning("an answer broke off", extra={"facts": {"path": scope["path"], "error": error}})
            raise error
        await problem_response(error)(scope, receive, answer)


def _unforeseen(error: Exception, scope: Scope, *, begun: bool) -> FabricError:
    """Return what a client is told of an error that no handler foresaw, or whose answer has begun."""
    if begun and isinstance(error.__cause__, FabricError):
        return error.__cause__  # the framework would have told it, and says now that it cannot
    lacking = shortage_of(error)
    if lacking is not None:
        return ShortageError(lacking, f"this daemon runs short of {lacking}")
    _log.error("unforeseen error at %s %s", scope["method"], scope["path"], exc_info=error)
    return FabricError(f"unforeseen error: {type(error).__name__}", hint="the daemon's log tells more")


class _Answer:
    """Passes the answer on, with how long it took to begin, and remembers status and time of its beginning.

    Args:
        send: takes it.
        begun: when its request came, monotonic seconds.
        last: nothing more can be asked over its connection.
    """

    def __init__(self, send: Send, begun: float, *, last: bool) -> None:
        self._send = send
        self._begun = begun
        self._last = last
        self.status = 0
        self.started: float | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.started = time.monotonic()
            timing = f"total;dur={(self.started - self._begun) * 1e3:.2f}".encode()
            headers = [*message.get("headers", ())]
            own = {name for name, _ in headers}  # a page has a policy of its own
            headers += [(name, value) for name, value in _WEB_HEADERS if name not in own]
            headers += [(b"server-timing", timing), *([(b"connection", b"close")] if self._last else [])]
            message = {**message, "headers": headers}
        await self._send(message)


class _Body:
    """Passes the request's body on, bounded in size and time."""

    def __init__(self, receive: Receive, limit: int, waiting: Callable[[], AbstractContextManager[None]]) -> None:
        self._receive = receive
        self._waiting = waiting
        self._limit = limit
        self._got = 0
        self._complete = False
        self._deadline = asyncio.get_running_loop().time() + BODY_SECONDS

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()  # waits for the client to go away, as long as that takes
        try:
            with self._waiting():
                async with asyncio.timeout_at(self._deadline):
                    message = await self._receive()
        except TimeoutError as error:
            raise TooSlowError(f"the body did not come within {BODY_SECONDS:g} s") from error
        self._got += len(message.get("body", b""))
        self._complete = not message.get("more_body", False)
        if self._got > self._limit:
            raise PayloadTooLargeError(f"a body of more than {self._limit} bytes")
        return message


def _is_cheap(scope: Scope) -> bool:
    """Whether an answer costs no more than a refusal."""
    path = scope["path"]
    polls = path in _POLLED and (b"wait=" in scope["query_string"] or _is_stream(scope))
    return polls or path.startswith(_GROUPS)


def _is_stream(scope: Scope) -> bool:
    """Whether an answer would have no end, and opening it would mean something."""
    accepts = (value for name, value in scope["headers"] if name == b"accept")
    return scope["path"].endswith("/watch") or any(b"text/event-stream" in value for value in accepts)
