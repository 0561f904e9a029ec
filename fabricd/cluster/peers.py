"""Static peers: the daemons named in the configuration, each followed by a long poll on its ``/v1/node``."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import httpx

from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.errors import FabricError, ParseError, TokenError, UnreachableError
from fabricd.model.cluster import NodeState
from fabricd.model.codec import from_json
from fabricd.model.event import EventKind
from fabricd.model.problem import Problem
from fabricd.model.snapshot import Snapshot
from fabricd.sockets import KEEPALIVE

_log = logging.getLogger("fabricd.peers")

#: How long a peer may hold the answer back.
_WAIT_SECONDS = 25.0
#: For connecting, and for an answer to come beyond the wait.
_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
#: Between tries after failures: doubles from the first to the last, with jitter, so that peers that lost a switch
#: together do not ask together.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 0.5, 10.0
_MAX_ANSWER_BYTES = 32 << 20
_MAX_NAME = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What the configuration says of peers; may be another after a reload."""

    urls: tuple[str, ...]
    token: str | None
    gone_seconds: float

    def __repr__(self) -> str:
        return f"PeerSettings({len(self.urls)} peers)"


def peer_client(token: str | None) -> httpx.AsyncClient:
    """Return a client for other daemons: this cluster's token, no proxy of the environment, no redirects."""
    headers = {"Accept-Encoding": "identity"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(socket_options=KEEPALIVE),
        headers=headers,
        timeout=httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS),
        trust_env=False,
    )


class Peers:
    """Follows the peers and keeps their entries in the node map.

    Args:
        nodes: takes what they say.
        count: called with the outcome of each question: "changed", "same", "failed".
        clock: monotonic seconds.
    """

    def __init__(
        self, nodes: NodeMap, *, count: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nodes = nodes
        self._count = count
        self._clock = clock
        self._settings = PeerSettings(urls=(), token=None, gone_seconds=60.0)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def follow(self, settings: PeerSettings) -> None:
        """Follow these peers from now on; those that stay keep what is known of them."""
        restart = settings.token != self._settings.token
        self._settings = settings
        for url in list(self._tasks):
            if restart or url not in settings.urls:
                self._tasks.pop(url).cancel()
            if url not in settings.urls:
                self._nodes.drop_peer(url)
        for url in settings.urls:
            if url not in self._tasks:
                self._tasks[url] = asyncio.create_task(self._follow(url), name=f"peer {url}")

    async def close(self) -> None:
        """Stop following."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, url: str) -> None:
        """Ask one peer again and again, for ever."""
        peer = self._nodes.peer(url) or Peer(key=url, url=url)
        self._nodes.set_peer(peer)
        etag = ""
        failures = 0
        async with peer_client(self._settings.token) as client:
            while True:
                try:
                    answer = await _ask(client, url, etag)
                except FabricError as error:
                    failures += 1
                    etag = ""  # whoever answers next may be new, with the same facts
                    self._count("failed")
                    peer = self._failed(peer, error)
                    await asyncio.sleep(_pause(failures))
                    continue
                failures = 0
                self._count("same" if answer is None else "changed")
                heard = replace(peer, state=NodeState.OK, reason="", heard_at=self._clock())
                if answer is not None:
                    etag = answer.etag
                    heard = replace(heard, snapshot=answer.snapshot)
                self._take(peer, heard)
                peer = heard

    def _failed(self, peer: Peer, error: FabricError) -> Peer:
        silent = None if peer.heard_at is None else self._clock() - peer.heard_at
        if silent is None:
            state = NodeState.UNKNOWN
        else:
            state = NodeState.GONE if silent > self._settings.gone_seconds else NodeState.STALE
        now = replace(peer, state=state, reason=str(error))
        self._take(peer, now)
        return now

    def _take(self, before: Peer, now: Peer) -> None:
        self._nodes.set_peer(now)
        if before.state is not now.state:
            level = logging.INFO if now.state is NodeState.OK else logging.WARNING
            facts = {"url": now.url, "state": now.state.value, **({"reason": now.reason} if now.reason else {})}
            _log.log(level, "peer", extra={"facts": facts})
        elif now.state is NodeState.UNKNOWN and before.reason != now.reason:
            _log.warning("peer never answered", extra={"facts": {"url": now.url, "reason": now.reason}})


async def log_conflicts(nodes: NodeMap) -> None:
    """Log each conflict of the map when it comes up and when it is over, for ever."""
    cursor = None
    while True:
        page = await nodes.history.wait(cursor, 3600)
        cursor = page.cursor
        for event in page.events:
            if event.kind is EventKind.CONFLICT:
                _log.warning("%s", event.detail)
            elif event.kind is EventKind.CONFLICT_OVER:
                _log.info("no longer: %s", event.detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    etag: str
    snapshot: Snapshot


async def _ask(client: httpx.AsyncClient, url: str, etag: str) -> _Answer | None:
    """Return the peer's snapshot, or None when it is still the one that the ETag names.

    Raises:
        FabricError: no answer, or one that is no use; says why.
    """
    timeout = httpx.Timeout(_ANSWER_SECONDS, connect=_CONNECT_SECONDS, read=_WAIT_SECONDS + _ANSWER_SECONDS)
    headers = {"If-None-Match": etag} if etag else {}
    begun = time.monotonic()
    try:
        async with (
            asyncio.timeout(_WAIT_SECONDS + _CONNECT_SECONDS + 2 * _ANSWER_SECONDS),
            client.stream(
                "GET", f"{url}/v1/node", params={"wait": _WAIT_SECONDS}, headers=headers, timeout=timeout
            ) as response,
        ):
            body = await _read(response, url)
    except TimeoutError as error:
        raise UnreachableError(f"no whole answer within {time.monotonic() - begun:.0f} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(str(error) or type(error).__name__) from error
    if response.status_code == 304 and etag:
        return None
    if response.status_code == 401:
        raise TokenError("it refuses this daemon's token", hint="token_file must hold the same on all nodes")
    if response.status_code != 200:
        raise UnreachableError(f"it answered {response.status_code}: {_detail(body)}")
    return _Answer(etag=response.headers.get("etag", "")[:200], snapshot=_checked(body))


async def _read(response: httpx.Response, url: str) -> bytes:
    """Return the body, bounded.

    Raises:
        ParseError: it is too long.
    """
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > _MAX_ANSWER_BYTES:
            raise ParseError(f"the answer of {url} is longer than {_MAX_ANSWER_BYTES} bytes")
    return bytes(body)


def _checked(body: bytes) -> Snapshot:
    """Return the snapshot.

    Raises:
        ParseError: it is none, or does not say whose it is.
    """
    snapshot = from_json(body, Snapshot, what="its answer")
    for name in (snapshot.node.node_id, snapshot.node.name):
        if not 0 < len(name) <= _MAX_NAME or not name.isprintable():
            raise ParseError(f"it does not say who it is: {name[:40]!r}")
    return snapshot


def _detail(body: bytes) -> str:
    try:
        return from_json(body, Problem).detail[:200]
    except ParseError:
        return repr(body[:80])


def _pause(failures: int) -> float:
    longest: float = min(_LAST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 10))
    return longest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter is no secret
