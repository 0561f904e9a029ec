"""HTTP to other parts of this cluster, and how long to wait before trying again."""

import errno
import functools
import os
import random
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from fabricd.credentials import PeerAccess
from fabricd.errors import ParseError
from fabricd.sockets import KEEPALIVE

#: For connecting to another daemon, and for an answer to come.
ANSWER_SECONDS = 5.0
#: Between tries after failures: doubles from the first to the last, with jitter, so that peers that lost a switch
#: together do not ask together.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 10.0


def plain_client(
    headers: Mapping[str, str], *, seconds: float, tls: ssl.SSLContext | None = None, tls_name: str | None = None
) -> httpx.AsyncClient:
    """Return a client for parts of this cluster: no proxy of the environment, no redirects, keepalive on the wire.

    Args:
        headers: of every request.
        seconds: for connecting, and for each wait for data.
        tls: what certificates are checked with, and what is shown; None: this system's CAs, nothing.
        tls_name: that the other side's certificate must bear; None: the host of the URL.
    """
    transport = _Transport(
        tls_name, verify=tls or _trusted(), socket_options=KEEPALIVE, limits=httpx.Limits(max_connections=None)
    )
    return httpx.AsyncClient(
        transport=transport,
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx.Timeout(seconds),
        trust_env=False,
    )


def peer_client(access: PeerAccess) -> httpx.AsyncClient:
    """Return a client for other daemons, which shows them this cluster's token and this daemon's certificate."""
    headers = {} if access.token is None else {"Authorization": f"Bearer {access.token}"}
    return plain_client(headers, seconds=ANSWER_SECONDS, tls=access.tls, tls_name=access.name)


async def read_body(response: httpx.Response, longest: int) -> bytes:
    """Return the body of an answer that is streamed.

    Raises:
        ParseError: it is longer than so many bytes; the rest is not read.
    """
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > longest:
            raise ParseError(f"the answer of {response.url.copy_with(query=None)} is longer than {longest} bytes")
    return bytes(body)


#: Who refuses a certificate after the handshake, as TLS 1.3 does, may close before its word of it has been read.
_CUT_OFF = frozenset({errno.ECONNRESET, errno.EPIPE})
_REFUSED = ", by TLS: the other end wants a certificate, or refuses the one that it is shown"


def _is_tls(error: Exception) -> bool:
    try:
        return isinstance(error, httpx.RequestError) and error.request.url.scheme == "https"
    except RuntimeError:  # of httpx, where none was made yet
        return False


def reason_of(error: Exception) -> str:
    """Return why there was no answer, in words for who must mend it.

    What was refused, has no route or got nothing back are three different faults, which httpx's own text, "All
    connection attempts failed", does not tell apart; the system's error stands at the end of the chain.
    """
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time: its host is down, or something between drops packets"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):  # whose errno is none of the system's
        if isinstance(cause, BaseExceptionGroup):  # one for each address of a name
            cause = cause.exceptions[0]
        if isinstance(cause, OSError) and cause.errno is not None and cause.errno > 0:
            return os.strerror(cause.errno) + (_REFUSED if cause.errno in _CUT_OFF and _is_tls(error) else "")
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


class _Transport(httpx.AsyncHTTPTransport):
    """httpx's, with two differences.

    It can expect one name in all certificates, for addresses of pods and nodes come and go. And TLS that fails after
    the handshake is an error of httpx's like any other: with TLS 1.3 a certificate is refused then, and whoever is on
    the wire can spoil a record at any time.
    """

    def __init__(self, tls_name: str | None, **options: Any) -> None:
        super().__init__(**options)
        self._tls_name = tls_name

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._tls_name is not None:
            request.extensions = {**request.extensions, "sni_hostname": self._tls_name}
        with _tls_errors():
            response = await super().handle_async_request(request)
        if isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Body(response.stream)
        return response


class _Body(httpx.AsyncByteStream):
    """What is read of an answer, with errors of TLS as httpx's."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _tls_errors():
            async for part in self._stream:
                yield part

    async def aclose(self) -> None:
        with _tls_errors():
            await self._stream.aclose()


@contextmanager
def _tls_errors() -> Iterator[None]:
    try:
        yield
    except ssl.SSLError as error:
        told = str(error.reason or error).lower().replace("_", " ")
        raise httpx.ReadError(f"TLS: {told}") from error


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return what certificates are checked with; reading them takes too long for every client."""
    return ssl.create_default_context()


def pause(failures: int) -> float:
    """Return how long to wait after so many failures in a row, with jitter."""
    longest: float = min(_LAST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
