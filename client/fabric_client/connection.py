"""Questions to one daemon, and its answers: over TCP with a bearer token, or over the Unix socket of this host."""

import ssl
from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

from fabric_client.locate import DaemonAddress, find_tls
from fabric_client.transport import Answer, TransientError, Transport
from fabricd.errors import BusyError, FabricError, ParseError

T = TypeVar("T")

#: Added to the time that a long poll is held, for the answer to come.
ANSWER_SECONDS = 10.0
#: A proxy or a starting service says these; the question may be asked again.
_TRANSIENT = frozenset({502, 503, 504})


class Connection:
    """A daemon. May be used by several threads. Proxies of the environment are for the internet, not for the cluster.

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
        checks = tls or find_tls() if address.url.startswith("https://") else None
        self._transport = Transport(address, sent, checks)

    def ask(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        accept: str = "",
        wait: float = 0.0,
        seconds: float = ANSWER_SECONDS,
    ) -> Answer:
        """Ask once; the answer's body is still to be read, or followed.

        Args:
            method: HTTP method.
            path: e.g. ``"/v1/node"``.
            body: a model, sent as JSON.
            params: query.
            accept: media type that is wanted; "" for any.
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
        headers = {"Accept": accept} if accept else {}
        content = None
        if body is not None:
            from fabricd.model.codec import to_json  # a launcher, which ranks wait for, asks without

            headers["Content-Type"] = "application/json"
            content = to_json(body)
        answer = self._transport.ask(
            method,
            f"{path}?{urlencode(query)}" if query else path,
            body=content,
            headers=headers,
            seconds=seconds + wait,
        )
        if answer.status >= 300:  # a daemon sends nobody elsewhere
            raise self._error(answer.status, answer.read())
        return answer

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        wait: float = 0.0,
        seconds: float = ANSWER_SECONDS,
    ) -> bytes:
        """Ask once, and return the answer's body; see :meth:`ask`."""
        return self.ask(method, path, body=body, params=params, wait=wait, seconds=seconds).read()

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
        return self._decoded(self.request("GET", path, params=params, wait=wait, seconds=seconds), kind, path)

    def post(self, path: str, kind: type[T], *, body: Any, seconds: float = ANSWER_SECONDS) -> T:
        """Return the answer to a question that is a model; see :meth:`get`."""
        return self._decoded(self.request("POST", path, body=body, seconds=seconds), kind, path)

    def close(self) -> None:
        """Close every connection."""
        self._transport.close()

    def _decoded(self, content: bytes, kind: type[T], path: str) -> T:
        from fabricd.model.codec import from_json  # see ask

        try:
            return from_json(content, kind, what=f"answer of {self.address} to {path}")
        except ParseError as error:
            from fabric_client.answer_errors import IS_IT  # when there is one

            raise ParseError(error.message, hint=IS_IT) from error

    def _error(self, status: int, content: bytes) -> FabricError:
        from fabric_client.answer_errors import error_from_answer  # when there is one

        error = error_from_answer(status, content, str(self.address))
        if isinstance(error, BusyError) or (status in _TRANSIENT and type(error) is FabricError):
            busy = TransientError(error.message, hint=error.hint)
            busy.connected = True
            return busy
        return error
