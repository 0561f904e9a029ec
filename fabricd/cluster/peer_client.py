"""HTTP to other parts of this cluster, and how long to wait before trying again."""

import functools
import random
import ssl
from collections.abc import Mapping

import httpx

from fabricd.sockets import KEEPALIVE

#: For connecting to another daemon, and for an answer to come.
ANSWER_SECONDS = 5.0
#: Between tries after failures: doubles from the first to the last, with jitter, so that peers that lost a switch
#: together do not ask together.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 10.0


def plain_client(headers: Mapping[str, str], *, seconds: float) -> httpx.AsyncClient:
    """Return a client for parts of this cluster: no proxy of the environment, no redirects, keepalive on the wire.

    Args:
        headers: of every request.
        seconds: for connecting, and for each wait for data.
    """
    transport = httpx.AsyncHTTPTransport(
        verify=_trusted(), socket_options=KEEPALIVE, limits=httpx.Limits(max_connections=None)
    )
    return httpx.AsyncClient(
        transport=transport,
        headers={"Accept-Encoding": "identity", **headers},
        timeout=httpx.Timeout(seconds),
        trust_env=False,
    )


def peer_client(token: str | None) -> httpx.AsyncClient:
    """Return a client for other daemons, which shows them this cluster's token."""
    return plain_client({} if token is None else {"Authorization": f"Bearer {token}"}, seconds=ANSWER_SECONDS)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return what certificates are checked with; reading them takes too long for every client."""
    return ssl.create_default_context()


def pause(failures: int) -> float:
    """Return how long to wait after so many failures in a row, with jitter."""
    longest: float = min(_LAST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
