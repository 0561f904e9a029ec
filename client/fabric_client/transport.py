"""HTTP/1.1 with one daemon, over connections that are kept: by TCP, TLS, or the Unix socket of this host.

Standard library only: every rank loads this, and what can do more takes longer to load than a group to form.
"""

import http.client
import math
import select
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Self, cast
from urllib.parse import quote, urlsplit

from fabric_client import tls_errors
from fabric_client.http_response import Response
from fabric_client.locate import DaemonAddress
from fabricd.errors import ParseError, UnreachableError

#: A daemon on this host or in this cluster accepts within this time, or is not there.
CONNECT_SECONDS = 5.0
#: No answer is longer; a map of ten thousand nodes takes a quarter.
_MAX_BYTES = 1 << 30
#: A body comes within this time, or a line of one, however fast single bytes do.
_WHOLE_SECONDS = 120.0
#: Characters of a fault.
_SHOWN = 200
#: Connections kept for the next request.
_KEPT = 4
#: What can be wrong with a connection. UnicodeError: a host's name that no name service takes.
_FAULTS = (OSError, http.client.HTTPException, UnicodeError)
#: And with a body: chunks of less than no bytes, or of more than can be counted.
_BROKEN = (*_FAULTS, ValueError, OverflowError)


class TransientError(UnreachableError):
    """Nothing answered this time; the same question may be asked again.

    Attributes:
        connected: there was somebody: a connection came about, or even an answer that says "not now".
    """

    connected = False


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("fabricd", timeout=CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CONNECT_SECONDS)
        self.sock.connect(self._path)


class Answer:
    """An answer of which status and headers have come, and the body has not. Read it, or close it.

    Args:
        transport: whose connection it takes.
        connection: it comes over this one.
        response: it.

    Attributes:
        status: HTTP status.
        media_type: of the body, without parameters.
    """

    def __init__(self, transport: "Transport", connection: http.client.HTTPConnection, response: Response) -> None:
        self.status = response.status
        self.media_type = (response.getheader("Content-Type") or "").partition(";")[0].strip()
        self._transport = transport
        self._connection = connection
        self._response = response

    @property
    def socket(self) -> socket.socket | None:
        """What it comes over, until it is closed."""
        return self._connection.sock

    def read(self) -> bytes:
        """Return the body.

        Raises:
            TransientError: it broke off.
            ParseError: it is longer than any answer.
        """
        # Of a status without a body the length is 0, and it may say all the same that it comes in chunks of any size.
        length = None if self._response.chunked else self._response.length
        if length is not None and length > _MAX_BYTES:
            self.close()
            raise ParseError(f"an answer of {length} bytes from {self._transport.address}")
        self._response.reader.until = time.monotonic() + _WHOLE_SECONDS
        try:
            content = self._response.read() if length is not None else self._response.read(_MAX_BYTES + 1)
        except _BROKEN as error:
            self.close()
            raise self._transport.not_reached(error) from None
        except BaseException:
            self.close()
            raise
        if len(content) > _MAX_BYTES:
            self.close()
            raise ParseError(f"an answer of more than {_MAX_BYTES} bytes from {self._transport.address}")
        self._transport.take_back(self._connection, keep=not self._response.will_close)
        return content

    def line(self, *, longest: int, seconds: float) -> bytes:
        """Return the next line of the body; ``b""`` when it has ended, or broke off between two chunks.

        Args:
            longest: bytes.
            seconds: without a byte, after which it counts as broken.

        Raises:
            TransientError: nothing came in time, or the connection broke.
            ParseError: a longer line.
        """
        try:
            if self._connection.sock is not None:
                self._connection.sock.settimeout(seconds)
            self._response.reader.until = time.monotonic() + _WHOLE_SECONDS
            line = self._response.readline(longest + 1)
        except _BROKEN as error:
            raise self._transport.not_reached(error) from None
        if len(line) > longest:
            raise ParseError(f"a line longer than {longest} bytes from {self._transport.address}")
        return line if line.endswith(b"\n") else b""

    def has_more(self) -> bool:
        """Return whether part of a further line has come already; does not wait."""
        connected, buffered = self._connection.sock, self._response.fp
        if connected is None or buffered is None:
            return False
        connected.settimeout(0)
        self._response.reader.until = math.inf
        try:
            return bool(buffered.peek(1).strip(b"\r\n"))  # the end of a chunk is read with the next
        except _BROKEN:  # by TLS also: nothing yet. What is broken says so when it is read
            return False

    def wait(self, seconds: float) -> None:
        """Return when more has come, or the end, and leave it where it is.

        Raises:
            TransientError: nothing came in time.
        """
        connected = self._connection.sock
        if connected is None:
            return
        if not has_come(connected, seconds):
            raise self._transport.not_reached(TimeoutError("timed out"))

    def close(self) -> None:
        """Give it up, and its connection."""
        self._response.close()
        self._transport.take_back(self._connection, keep=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Transport:
    """Connections to one daemon. May be used by several threads.

    Args:
        address: where it listens.
        headers: sent with every request.
        tls: how an ``https://`` daemon is checked.
    """

    def __init__(self, address: DaemonAddress, headers: Mapping[str, str], tls: ssl.SSLContext | None) -> None:
        self.address = address
        parts = urlsplit(address.url)
        self._host, self._port = parts.hostname or "", parts.port
        self._base = quote(parts.path.rstrip("/"), safe="/%:@+=-._~")
        self._headers = dict(headers)
        self._tls = tls
        # Taken from and added to by single operations, which no other thread can come between.
        self._idle: list[http.client.HTTPConnection] = []
        self._busy: set[http.client.HTTPConnection] = set()
        self._closed = False

    def ask(
        self, method: str, target: str, *, body: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> Answer:
        """Ask once, and return the answer when its headers are there.

        Args:
            method: HTTP method.
            target: path and query.
            body: of the request.
            headers: of this request alone.
            seconds: without a byte, after which the daemon counts as gone.

        Raises:
            TransientError: not reached, or not now.
            UnreachableError: its certificate is not to be trusted.
        """
        connection = self._take()
        connected = False
        try:
            if self._closed:
                raise ConnectionError("it was closed here")
            if connection.sock is None:
                connection.connect()
            connected = True
            connection.sock.settimeout(seconds)
            connection.request(method, self._base + target, body=body, headers={**self._headers, **headers})
            response = cast(Response, connection.getresponse())
            if response.length is None and not response.chunked:  # its end could not be told from a break
                response.close()
                raise http.client.HTTPException("an answer without a length")
            return Answer(self, connection, response)
        except _FAULTS as error:
            self.take_back(connection, keep=False)
            raise self.not_reached(error, connected=connected) from None
        except BaseException:
            self.take_back(connection, keep=False)
            raise

    def take_back(self, connection: http.client.HTTPConnection, *, keep: bool) -> None:
        """Keep a connection for the next request, or close it."""
        self._busy.discard(connection)
        if keep and not self._closed and len(self._idle) < _KEPT:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close every connection; what is under way in other threads ends with an error."""
        self._closed = True
        for connection in list(self._busy):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)  # its own thread closes it
        while self._idle:
            self._idle.pop().close()

    def not_reached(self, error: Exception, *, connected: bool = True) -> UnreachableError:
        """Return what a fault of the connection means. It says all that the fault did: raise it ``from None``."""
        told = getattr(error, "strerror", None) or str(error)  # which may quote what is no HTTP
        reason = " ".join(told.split())[:_SHOWN] or type(error).__name__
        what = f"no answer from the daemon at {self.address}: {reason}"
        if isinstance(error, ssl.SSLError) and (hint := tls_errors.hint_of(error)):  # asking again would not help
            return UnreachableError(
                f"no TLS with the daemon at {self.address}: {tls_errors.words_of(error)}", hint=hint
            )
        broken = isinstance(error, http.client.HTTPException | ConnectionResetError)
        tls = "; if it speaks TLS, its address begins with https://" if broken and not self._tls else ""
        failed = TransientError(what, hint=f"{self.address.advice}{tls}")
        failed.connected = connected
        return failed

    def _take(self) -> http.client.HTTPConnection:
        """Return a connection that was kept and that the daemon has not closed meanwhile, else a new one."""
        found = None
        while self._idle and found is None:
            with suppress(IndexError):  # another thread was quicker
                found = self._idle.pop()
                if has_come(found.sock):  # between two requests that can only be its end
                    found.close()
                    found = None
        if found is None:
            found = self._make()
            found.response_class = Response
        self._busy.add(found)
        return found

    def _make(self) -> http.client.HTTPConnection:
        if self.address.socket is not None:
            return _UnixConnection(self.address.socket)
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_SECONDS, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECONDS)


def has_come(connection: socket.socket, seconds: float = 0.0) -> bool:
    """Wait so long until a socket has something to read, or its end; tell whether it has. It is left there."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(seconds * 1000))
