"""Static peers: the daemons named in the configuration, each followed by a long poll on its ``/v1/node``."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import httpx

from fabricd.background import in_thread
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer import Peer
from fabricd.cluster.peer_client import ANSWER_SECONDS, pause, peer_client, read_body, reason_of
from fabricd.cluster.peer_list import PeerList
from fabricd.credentials import PeerAccess
from fabricd.errors import FabricError, ParseError, TokenError, UnreachableError
from fabricd.model.cluster import NodeState
from fabricd.model.codec import check_snapshot, from_json, without_counters
from fabricd.model.event import EventKind
from fabricd.model.problem import Problem
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import SCHEMA, Snapshot
from fabricd.shortage import Shortages

_log = logging.getLogger("fabricd.peers")

#: How long a peer may hold the answer back.
_WAIT_SECONDS = 25.0
#: A peer is asked so often at most: one that does not hold its answers back, or whose facts change all the time, would
#: otherwise be asked hundreds of times a second.
_LEAST_SECONDS = 0.25
_MAX_ANSWER_BYTES = 32 << 20


#: Between two looks at a file of peers, and at what addresses a name has.
_LOOK_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSettings:
    """What the configuration says of peers; may be another after a reload."""

    entries: tuple[str, ...]  #: URLs, and ``dns://NAME:PORT``
    access: PeerAccess  #: how they are asked
    gone_seconds: float
    file: Path | None = None  #: more entries
    equal: bool = True  #: no map nodes: every peer asks every other
    secure: bool = False  #: addresses of names are asked by TLS

    def __repr__(self) -> str:
        return f"PeerSettings({len(self.entries)} peers)"


class Peers:
    """Follows the peers and keeps their entries in the node map.

    Args:
        nodes: takes what they say.
        count: called with the outcome of each question: "changed", "same", "failed".
        shortages: told when there is too little of something to ask with.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        nodes: NodeMap,
        *,
        count: Callable[[str], None],
        shortages: Shortages | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._count = count
        self._shortages = shortages or Shortages(clock=clock)
        self._clock = clock
        self._settings = PeerSettings(entries=(), access=PeerAccess(), gone_seconds=60.0)
        self._list = PeerList()
        self._looking: asyncio.Task[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._parts = SharedParts()

    def follow(self, settings: PeerSettings) -> None:
        """Follow these peers from now on; those that stay keep what is known of them."""
        if settings.access != self._settings.access:
            self._end(self._tasks)
        self._settings = settings
        if self._looking is not None:
            self._looking.cancel()
        self._list = replace(
            self._list,
            entries=settings.entries,
            file=settings.file,
            equal=settings.equal,
            secure=settings.secure,
        )
        look = partial(self._look, self._list)
        self._looking = asyncio.create_task(self._shortages.outlast(look, "list of peers"), name="list of peers")

    async def _look(self, peers: PeerList) -> None:
        """Keep to the list; again and again if it can change by itself."""
        while True:
            await peers.look()
            self._nodes.set_faults("peers", peers.faults)
            self._keep_to(peers.urls)
            if not peers.changes:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    def _keep_to(self, urls: tuple[str, ...]) -> None:
        wanted = set(urls)
        left = self._tasks.keys() - wanted
        self._end(left)
        for url in left:
            self._nodes.drop_peer(url)
        for url in urls:
            if url not in self._tasks:
                name, follow = f"peer {url}", partial(self._follow, url)
                self._tasks[url] = asyncio.create_task(self._shortages.outlast(follow, name), name=name)

    def _end(self, urls: Iterable[str]) -> None:
        for url in list(urls):
            self._tasks.pop(url).cancel()

    async def close(self) -> None:
        """Stop following."""
        tasks = [*self._tasks.values(), *([self._looking] if self._looking else [])]
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
        failing_since = 0.0
        async with peer_client(self._settings.access) as client:
            while True:
                begun = time.monotonic()
                try:
                    answer = await _ask(client, url, etag, self._parts)
                except FabricError as error:
                    failing_since = failing_since if failures else self._clock()
                    failures += 1
                    etag = ""  # whoever answers next may be new, with the same facts
                    self._count("failed")
                    peer = self._failed(peer, error, self._clock() - failing_since)
                    await asyncio.sleep(pause(failures))
                    continue
                failures = 0
                self._count("same" if answer is None else "changed")
                heard = replace(peer, state=NodeState.OK, reason="", heard_at=self._clock())
                if answer is not None:
                    etag = answer.etag
                    heard = replace(heard, snapshot=answer.snapshot)
                self._take(peer, heard)
                peer = heard
                await asyncio.sleep(begun + _LEAST_SECONDS - time.monotonic())

    def _failed(self, peer: Peer, error: FabricError, silent: float) -> Peer:
        """Take that a peer did not answer.

        Args:
            peer: what was known of it.
            error: why.
            silent: seconds since the first failure of this row; until then its connection held.
        """
        if peer.heard_at is None:
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
class _Schema:
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    etag: str
    snapshot: Snapshot


async def _ask(client: httpx.AsyncClient, url: str, etag: str, parts: SharedParts) -> _Answer | None:
    """Return the peer's snapshot, or None when it is still the one that the ETag names.

    A large one takes a second to decode, which must not be the event loop's.

    Raises:
        FabricError: no answer, or one that is no use; says why.
    """
    timeout = httpx.Timeout(ANSWER_SECONDS, read=_WAIT_SECONDS + ANSWER_SECONDS)
    headers = {"If-None-Match": etag} if etag else {}
    begun = time.monotonic()
    try:
        async with (
            asyncio.timeout(_WAIT_SECONDS + 3 * ANSWER_SECONDS),
            client.stream(
                "GET", f"{url}/v1/node", params={"wait": _WAIT_SECONDS}, headers=headers, timeout=timeout
            ) as response,
        ):
            body = await read_body(response, _MAX_ANSWER_BYTES)
    except TimeoutError as error:
        raise UnreachableError(f"no whole answer within {time.monotonic() - begun:.0f} s") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnreachableError(reason_of(error)) from error
    if response.status_code == 304 and etag:
        return None
    if response.status_code == 401:
        raise TokenError("it refuses this daemon's token", hint="token_file must hold the same on all nodes")
    if response.status_code != 200:
        raise UnreachableError(f"it answered {response.status_code}: {_detail(body)}")
    snapshot = await in_thread(lambda: _checked(body, parts), name="peer's snapshot")
    return _Answer(etag=response.headers.get("etag", "")[:200], snapshot=snapshot)


def _checked(body: bytes, parts: SharedParts) -> Snapshot:
    """Return the snapshot, without the counters, which would be old for as long as nothing else changes.

    Raises:
        ParseError: it is none, or does not say whose it is.
    """
    try:
        snapshot = parts.decode(body, Snapshot, what="its answer")
    except ParseError as error:
        raise ParseError(error.message + _other_schema(body)) from error
    check_snapshot(snapshot)
    return without_counters(snapshot)


def _other_schema(body: bytes) -> str:
    try:
        schema = from_json(body, _Schema).schema
    except ParseError:
        return ""
    return f" (it has schema {schema}, this daemon {SCHEMA})" if schema != SCHEMA else ""


def _detail(body: bytes) -> str:
    try:
        return from_json(body, Problem).detail[:200]
    except ParseError:
        return repr(body[:80])
