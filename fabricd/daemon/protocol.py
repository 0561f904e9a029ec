"""One connection: who is at its other end, and how long it may take to say something."""

import asyncio
import logging
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import h11
from starlette.responses import Response
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from fabricd.api.auth import CERTIFICATE_STATE, PEER_STATE, unix_peer
from fabricd.api.gate import ARRIVED_STATE, LAST_PLACE_STATE
from fabricd.api.problem import problem_response
from fabricd.daemon.listeners import peer_credentials
from fabricd.daemon.room import Place, Room
from fabricd.errors import FabricError, ParseError
from fabricd.scopes import names_in_certificate
from fabricd.shortage import Resource, ShortageError

_log = logging.getLogger("fabricd.http")

#: A request's head must have come within this time after the connection or the first byte of the request.
HEAD_SECONDS = 10.0
#: How long a connection without a request is kept.
IDLE_SECONDS = 30
#: Request line and headers together.
HEAD_MAX_BYTES = 16 * 1024
#: How long a client may leave its answer unread.
STALL_SECONDS = 30.0
#: An answer is written no further while so much of it waits here for its client to read.
_UNREAD_BYTES = 16 * 1024


class LengthRequiredError(ParseError):
    """The request's body comes in chunks.

    No client of this daemon sends so, and each chunk, be it of one byte, takes as long to read as a whole body.
    """

    code = "length-required"
    http_status = 411


class HeadTooLargeError(ParseError):
    """Request line and headers are longer than this daemon reads."""

    code = "head-too-large"
    http_status = 431


class _Connection(h11.Connection):
    """h11's, which refuses a body in chunks before it reads any, and a head that came whole but is too long."""

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and _head_bytes(event) > HEAD_MAX_BYTES:
            raise h11.RemoteProtocolError("a head that is too long", error_status_hint=431)
        if isinstance(event, h11.Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            raise h11.RemoteProtocolError("a body without Content-Length", error_status_hint=411)
        return event


class Protocol(H11Protocol):
    """uvicorn's HTTP/1.1, which knows its peer and does not wait for ever.

    Args:
        room: how many connections there may be, and which of them wait for a request.
    """

    def __init__(self, *args: Any, room: Room, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._room = room
        self._waiting = room.waiting
        self.conn = _Connection(h11.SERVER, HEAD_MAX_BYTES)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._begun = self._lost = False
        self._early = b""  # came with the end of TLS's handshake

    def pause_writing(self) -> None:
        """Give the client some time to read what it asked for; then its request must not hold others up."""
        super().pause_writing()
        self._room.unread[self] = self.loop.time()
        self._stall_timer = self.loop.call_later(STALL_SECONDS, self.abort)

    def resume_writing(self) -> None:
        """Go on: the client reads."""
        super().resume_writing()
        self._stop_stall_timer()

    def _stop_stall_timer(self) -> None:
        self._room.unread.pop(self, None)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        """Take a connection, or refuse it when there are too many."""
        super().connection_made(transport)
        self._begun = True
        transport.set_write_buffer_limits(_UNREAD_BYTES)
        connection = transport.get_extra_info("socket")
        if connection.family == socket.AF_UNIX:
            try:
                peer = unix_peer(*peer_credentials(connection))
            except OSError:  # gone already
                transport.abort()
                return
            self.app_state = {**self.app_state, PEER_STATE: peer}
            self._waiting = self._room.waiting_here
        certificate = transport.get_extra_info("peercert")  # only of one that was verified
        if certificate:
            self.app_state = {**self.app_state, CERTIFICATE_STATE: names_in_certificate(certificate)}
        match self._room.place():
            case Place.NONE:
                self._answer(ShortageError(Resource.CONNECTIONS, "there is no room for another connection"))
                return
            case Place.LAST:
                self.app_state = {**self.app_state, LAST_PLACE_STATE: True}
        self._expect_head()

    def secured(self, transport: asyncio.Transport) -> None:
        """Take a connection that has got its TLS, and what it said since."""
        if self._lost:
            return
        self.connection_made(transport)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._lost = True
        self._waiting.pop(self, None)
        if not self._begun:  # TLS had just been agreed on
            return
        self._stop_head_timer()
        self._stop_stall_timer()
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:  # uvicorn lets it run when the client resets the connection
            self.timeout_keep_alive_task.cancel()

    def data_received(self, data: bytes) -> None:
        """Take bytes; begin to count time when they begin a request, stop when its head is complete."""
        if not self._begun:
            self._early += data
            return
        if self.transport.is_closing():
            return
        if self._in_request() and not self.cycle.more_body:
            # Another request before this one's answer. While it waited nobody would notice that the client is gone; so
            # it is left to the client to ask again, on another connection.
            self.cycle.keep_alive = False
            return
        self.app_state[ARRIVED_STATE] = self.loop.time()
        super().data_received(data)
        if self._in_request():
            self._waiting.pop(self, None)
            self._stop_head_timer()
        elif self._head_timer is None and not self.transport.is_closing():
            self._expect_head()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as a problem."""
        cause = sys.exception()  # uvicorn calls this from its handler of h11's error
        hint = cause.error_status_hint if isinstance(cause, h11.RemoteProtocolError) else 400
        if hint == 431:
            self._answer(HeadTooLargeError(f"request line and headers of more than {HEAD_MAX_BYTES} bytes"))
        elif hint == 411:
            self._answer(LengthRequiredError("a body must come with its Content-Length, not in chunks"))
        else:
            self._answer(ParseError("this is no valid HTTP/1.1 request"))

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._waiting[self] = None
        super().on_response_complete()
        if self._in_request():  # it had come already
            self._waiting.pop(self, None)

    def shutdown(self) -> None:
        """Go when the answer under way is out; at once when there is none."""
        if not self.transport.is_closing():
            super().shutdown()

    def abort(self) -> None:
        """End the connection at once."""
        with suppress(
            AttributeError
        ):  # TLS of Python 3.11 forgets a connection that is closed twice: it ends by itself
            self.transport.abort()

    def _in_request(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _expect_head(self) -> None:
        self._waiting.setdefault(self)
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._in_request() and not self.transport.is_closing():
            self.transport.close()

    def _answer(self, error: FabricError) -> None:
        """Answer outside the application, and close."""
        if self._in_request() or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # in the middle of another answer
            return
        response: Response = problem_response(error)
        head = h11.Response(
            status_code=response.status_code,
            headers=[*response.raw_headers, (b"connection", b"close")],
            reason=HTTPStatus(error.http_status).phrase.encode(),
        )
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _head_bytes(request: h11.Request) -> int:
    """Return about how long a request's head was: h11 itself bounds only those that come in pieces."""
    return (
        len(request.method) + len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
    )
