"""Ranks that speak the group interface and nothing more: for tests and benchmarks of the daemon's side."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from fabricd.localview import LocalView
from fabricd.model.codec import from_json, to_json
from fabricd.model.wire import (
    CLAIM_HEADER,
    EVENT_LINES,
    INCARNATION_HEADER,
    SECRET_HEADER,
    FenceAnswer,
    FenceRequest,
    JoinAnswer,
    JoinRequest,
    WatchEvent,
)

SECRET = secrets.token_hex(16)


def one_host(rank: int, **fields: Any) -> LocalView:
    """The view of a rank that shares memory with all others of its group."""
    facts = {"hostname": "host-a", "pid": 1000 + rank, "boot_id": "b", "net_namespace": "1", "ipc_namespace": "2"}
    return LocalView(**{**facts, "pid_namespace": "3", "shm_device": "0:4", **fields})


@dataclass
class Target:
    """A daemon: by URL, or by its Unix socket."""

    url: str = "http://fabricd"
    socket: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    connections: int = 100

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=self.connections, max_keepalive_connections=self.connections)
        transport = httpx.AsyncHTTPTransport(uds=self.socket or None, limits=limits)
        return httpx.AsyncClient(
            transport=transport, base_url=self.url, headers=self.headers, timeout=90.0, trust_env=False
        )


@dataclass
class Member:
    """One rank of one group."""

    client: httpx.AsyncClient
    rank: int
    size: int
    group: str = "g"
    secret: str | None = None
    incarnation: int = 0
    claim: str = field(default_factory=lambda: secrets.token_hex(16))
    view: LocalView | None = None

    @property
    def base(self) -> str:
        return f"/v1/groups/{self.group}"

    @property
    def headers(self) -> dict[str, str]:
        shown = {CLAIM_HEADER: self.claim, INCARNATION_HEADER: str(self.incarnation)}
        return {**shown, **({SECRET_HEADER: self.secret} if self.secret else {})}

    async def put(self, *, wait: float = 20.0, seconds: float = 20.0, **fields: Any) -> httpx.Response:
        """Join, and return the answer as it is."""
        content = self._request(seconds, fields)
        return await self.client.put(
            f"{self.base}/members/{self.rank}", params={"wait": wait}, content=content, headers=self.headers
        )

    def _request(self, seconds: float, fields: dict[str, Any]) -> bytes:
        values = {"world_size": self.size, "claim": self.claim, "incarnation": self.incarnation}
        view = self.view or one_host(self.rank)
        return to_json(JoinRequest(**{**values, "view": view, "timeout_seconds": seconds, **fields}))

    @asynccontextmanager
    async def joined(self, *, wait: float = 20.0, seconds: float = 20.0) -> AsyncIterator[tuple[JoinAnswer, "Watch"]]:
        """Join, and hold open the event stream that follows the answer."""
        path, headers = f"{self.base}/members/{self.rank}", {**self.headers, "Accept": EVENT_LINES}
        content, params = self._request(seconds, {}), {"wait": wait}
        async with self.client.stream("PUT", path, params=params, content=content, headers=headers) as response:
            assert (response.status_code, response.headers["content-type"]) == (200, EVENT_LINES)
            watch = Watch(response)
            answer = await watch.answer()
            assert (await watch.next()).kind == "hello"
            yield answer, watch

    async def join(self, **options: Any) -> JoinAnswer:
        return from_json((await self.put(**options)).raise_for_status().content, JoinAnswer)

    async def post(self, number: int, keys: dict[str, str], *, wait: float = 20.0) -> httpx.Response:
        """Come to a fence, and return the answer as it is."""
        content = to_json(FenceRequest(rank=self.rank, keys=keys))
        return await self.client.post(
            f"{self.base}/fence/{number}", params={"wait": wait}, content=content, headers=self.headers
        )

    async def fence(self, number: int, keys: dict[str, str]) -> dict[str, str]:
        return from_json((await self.post(number, keys)).raise_for_status().content, FenceAnswer).keys

    async def roll(self) -> httpx.Response:
        return await self.client.post(f"{self.base}/members/{self.rank}/roll", json={}, headers=self.headers)

    async def say(self, doing: str) -> httpx.Response:
        """Answer a roll call."""
        path = f"{self.base}/members/{self.rank}/doing"
        return await self.client.put(path, params={"what": doing}, headers=self.headers)

    async def leave(self) -> httpx.Response:
        return await self.client.delete(f"{self.base}/members/{self.rank}", headers=self.headers)

    async def abort(self, reason: str = "") -> httpx.Response:
        return await self.client.delete(self.base, params={"reason": reason}, headers=self.headers)

    async def status(self) -> httpx.Response:
        return await self.client.get(self.base, headers=self.headers)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator["Watch"]:
        """Hold the event stream open."""
        path = f"{self.base}/members/{self.rank}/watch"
        async with self.client.stream("GET", path, headers=self.headers) as response:
            if response.status_code != 200:
                await response.aread()
            watch = Watch(response)
            if response.status_code == 200:
                assert (await watch.next()).kind == "hello"
            yield watch


class Watch:
    """An open event stream."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    async def answer(self) -> JoinAnswer:
        """Return what comes before the events, of a join."""
        return from_json(await anext(self._lines), JoinAnswer)

    async def next(self, *, skip: Iterable[str] = ("alive",), seconds: float = 10.0) -> WatchEvent:
        """Return the next event of a kind that is not skipped."""
        async with asyncio.timeout(seconds):
            while (event := from_json(await anext(self._lines), WatchEvent)).kind in skip:
                pass
            return event

    async def rest(self, *, seconds: float = 10.0) -> list[WatchEvent]:
        """Return what comes until the stream ends, but for heartbeats."""
        async with asyncio.timeout(seconds):
            events = [from_json(line, WatchEvent) async for line in self._lines]
        return [event for event in events if event.kind != "alive"]


def members(client: httpx.AsyncClient, size: int, **fields: Any) -> list[Member]:
    return [Member(client, rank, size, **fields) for rank in range(size)]


async def join_all(ranks: list[Member], **options: Any) -> list[JoinAnswer]:
    return await asyncio.gather(*(rank.join(**options) for rank in ranks))


def code(response: httpx.Response) -> str:
    """The stable code of a problem, ``""`` when it is none."""
    return str(response.json().get("code", "")) if response.status_code >= 400 else ""


async def eventually(condition: Any, seconds: float = 10.0) -> None:
    """Wait until an async condition holds."""
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "did not come true"
        await asyncio.sleep(0.05)


def records(folder: Path, name: str = "d") -> list[Path]:
    """The group records of a daemon that ``tests.support.daemon`` started."""
    return sorted((folder / f"{name}.d" / "groups").glob("*"))


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """Return what a scenario does, which must end in time."""
    return asyncio.run(asyncio.wait_for(scenario, 90))
