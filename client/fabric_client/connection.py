"""HTTP to one daemon: over TCP with a bearer token, or over the Unix socket of this host.

What the daemon answers as an error (RFC 9457 problem+json with the error's stable code) comes back as the same
FabricError class that it was there.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx

from fabric_client.locate import DaemonAddress, find_tls
from fabricd.errors import (
    AccessError,
    BusyError,
    ConfigError,
    FabricError,
    InputError,
    ParseError,
    RankLostError,
    UnreachableError,
)
from fabricd.model.codec import from_json, to_json
from fabricd.model.problem import Problem

T = TypeVar("T")

#: A daemon on this host or in this cluster accepts within this time, or is not there.
CONNECT_SECONDS = 5.0
#: Added to the time that a long poll is held, for the answer to come.
ANSWER_SECONDS = 10.0
#: A proxy or a starting service says these; the question may be asked again.
_TRANSIENT = frozenset({502, 503, 504})


class TransientError(UnreachableError):
    """Nothing answered this time; the same question may be asked again."""


class Connection:
    """A daemon. May be used by several threads.

    Args:
        address: where it listens.
        token: bearer token, for daemons beyond loopback.
        headers: sent with every request.
        tls: how an ``https://`` daemon is checked; None looks into the environment.
    """

    def __init__(
        self,
        address: DaemonAddress,
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        sent = dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}"
        # trust_env=False: a proxy of the environment is for the internet, not for the cluster's own hosts.
        self._http = httpx.Client(
            base_url=address.url,
            transport=httpx.HTTPTransport(uds=address.socket, verify=_checks(address, tls)),
            headers=sent,
            timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
            trust_env=False,
        )

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        wait: float = 0.0,
        seconds: float = ANSWER_SECONDS,
    ) -> httpx.Response:
        """Ask once.

        Args:
            method: HTTP method.
            path: e.g. ``"/v1/node"``.
            body: a model, sent as JSON.
            params: query.
            wait: seconds that the daemon may hold the answer back (``?wait=``); 0 sends no such parameter.
            seconds: for the answer to come, beyond that.

        Raises:
            TransientError: not reached, or not now.
            UnreachableError: its certificate is not to be trusted.
            FabricError: what the daemon answered.
        """
        query = dict(params or {})
        if wait > 0:
            query["wait"] = f"{wait:.3f}"
        try:
            response = self._http.request(
                method,
                path,
                params=query,
                content=None if body is None else to_json(body),
                headers={} if body is None else {"Content-Type": "application/json"},
                timeout=httpx.Timeout(seconds + wait, connect=CONNECT_SECONDS),
            )
        except httpx.TransportError as error:
            raise self._not_reached(error) from error
        return self._checked(response)

    def get(
        self,
        path: str,
        kind: type[T],
        *,
        params: Mapping[str, str] | None = None,
        wait: float = 0.0,
        seconds: float = ANSWER_SECONDS,
    ) -> T:
        """Return what ``path`` holds, decoded and validated.

        Raises:
            TransientError: not reached, or not now.
            FabricError: what the daemon answered.
            ParseError: an answer that is not a ``kind``.
        """
        response = self.request("GET", path, params=params, wait=wait, seconds=seconds)
        return from_json(response.content, kind, what=f"answer of {self.address} to {path}")

    @contextmanager
    def stream(self, path: str, *, read_timeout: float) -> Iterator[httpx.Response]:
        """Hold a stream open; reading from it raises TransientError when it breaks.

        Args:
            path: what to read.
            read_timeout: seconds without a byte after which the stream counts as broken.
        """
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=read_timeout)
        try:
            with self._http.stream("GET", path, timeout=timeout) as response:
                if response.status_code >= 400:
                    response.read()
                yield self._checked(response)
        except httpx.TransportError as error:
            raise self._not_reached(error) from error

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def _not_reached(self, error: httpx.TransportError) -> UnreachableError:
        what = f"no answer from the daemon at {self.address}: {error or type(error).__name__}"
        if "CERTIFICATE" in str(error):  # asking again would not help
            return UnreachableError(what, hint="FABRICD_CA_FILE must name the CA of the daemon's certificate")
        tls = "; if it speaks TLS, its address begins with https://" if isinstance(error, httpx.ProtocolError) else ""
        return TransientError(
            what, hint=f"is `fabricd serve` running there? The address came from {self.address.source}{tls}"
        )

    def _checked(self, response: httpx.Response) -> httpx.Response:
        if response.status_code < 400:
            return response
        error = error_from_answer(response.status_code, response.content, str(self.address))
        if isinstance(error, BusyError) or (response.status_code in _TRANSIENT and type(error) is FabricError):
            raise TransientError(error.message, hint=error.hint)
        raise error


def _checks(address: DaemonAddress, tls: ssl.SSLContext | None) -> ssl.SSLContext:
    """Return what certificates are checked with; this system's CAs, which take long to read, only where one comes."""
    if tls is not None:
        return tls
    return find_tls() if address.url.startswith("https://") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def error_from_answer(status: int, content: bytes, origin: str) -> FabricError:
    """Return the FabricError that an answer stands for.

    Args:
        status: HTTP status.
        content: the body; what is no problem+json becomes a plain error that shows its beginning.
        origin: who answered, for the message.
    """
    try:
        problem = from_json(content, Problem)
    except ParseError:
        shown = " ".join(content[:120].decode("utf-8", "replace").split())
        return FabricError(f"{origin} answered with status {status}: {shown}")
    kind = _classes_by_code().get(problem.code)
    if kind is None:  # an error of HTTP itself, or of a newer daemon
        kind = _CLASS_BY_STATUS.get(status, FabricError)
    # Constructors that compose their message are not run again: the message is composed already.
    error = kind.__new__(kind)
    FabricError.__init__(error, problem.detail, hint=problem.hint, details=problem.details)
    vars(error).update(
        {name: convert(problem.details.get(name)) for name, convert in _ATTRIBUTES.get(kind, {}).items()}
    )
    return error


def _classes_by_code() -> dict[str, type[FabricError]]:
    """Return every error class of the tree by its code."""
    found: dict[str, type[FabricError]] = {}
    waiting: list[type[FabricError]] = [FabricError]
    while waiting:
        kind = waiting.pop()
        if "code" in vars(kind):  # a class that inherits its code is this side's own refinement
            found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return found


def _ranks(value: object) -> tuple[int, ...]:
    return tuple(sorted(item for item in value if isinstance(item, int))) if isinstance(value, list) else ()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()


_CLASS_BY_STATUS: Mapping[int, type[FabricError]] = {
    400: InputError,
    401: AccessError,
    403: AccessError,
    422: InputError,
}
#: Attributes that classes have beside the root's, from the details of the same name.
_ATTRIBUTES: Mapping[type[FabricError], Mapping[str, Callable[[object], object]]] = {
    RankLostError: {"group": lambda value: str(value or ""), "ranks": _ranks},
    ConfigError: {"faults": _texts},
    BusyError: {"retry_after_seconds": lambda value: value if isinstance(value, int) else 1},
}
