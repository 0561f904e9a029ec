"""The daemon's server within a test, on real sockets, with handlers that do what one may do badly."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI, Request
from starlette.responses import Response, StreamingResponse

from fabricd.api.app import create_app
from fabricd.api.auth import caller
from fabricd.api.longpoll import LongPolls
from fabricd.api.message import json_response
from fabricd.api.services import Services
from fabricd.cluster.nodes import NodeMap
from fabricd.config import Config
from fabricd.daemon.listeners import UnixListener, listen_tcp
from fabricd.daemon.server import Server
from fabricd.errors import GroupAbortedError
from fabricd.metrics import ShortageCollector

LARGE = 32 << 20  #: more than the buffers of two sockets hold


def routes(app: FastAPI) -> None:
    """Add what a handler may do badly."""

    @app.get("/who")
    async def who(request: Request) -> Response:
        asker = await caller(request)
        return json_response({"kind": asker.kind, "uid": asker.uid, "pid": asker.pid})

    @app.post("/length")
    async def length(request: Request) -> Response:
        return json_response(len(await request.body()))

    @app.get("/large")
    async def large() -> Response:
        return Response(bytes(LARGE))

    @app.get("/raises")
    async def raises() -> Response:
        raise RuntimeError("the secret is 1234")

    @app.get("/refuses")
    async def refuses() -> Response:
        raise GroupAbortedError("by rank 3", hint="restart", details={"rank": 3})

    @app.get("/breaks")
    async def breaks() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"one"
            raise RuntimeError("half way")

        return StreamingResponse(parts())

    @app.get("/burns")
    async def burns() -> Response:
        time.sleep(0.1)  # noqa: ASYNC251 - as a search does that holds the loop up
        return Response()

    @app.get("/sleeps")
    async def sleeps() -> Response:
        await asyncio.sleep(30)
        return Response()

    @app.get("/stream")
    async def stream() -> Response:
        async def parts() -> AsyncIterator[bytes]:
            while True:
                yield b"alive\n"
                await asyncio.sleep(0.05)

        return StreamingResponse(parts())


@asynccontextmanager
async def serving(
    path: Path | None = None, near_memory_limit: Callable[[], str] = lambda: "", **settings: Any
) -> AsyncIterator[tuple[str, Callable[[], Coroutine[Any, Any, float]]]]:
    """Serve; yield the URL and what stops it and tells how long that took."""
    config = Config(**settings)
    services = Services(
        config=config,
        nodes=NodeMap(),
        polls=LongPolls(config.max_long_polls),
        near_memory_limit=near_memory_limit,
    )
    services.metrics.watch(ShortageCollector(services.shortages))
    services.metrics.watch_long_polls(lambda: services.polls.open)
    app = create_app(services)
    routes(app)
    stopping = asyncio.Event()
    tcp = listen_tcp("127.0.0.1", 0)
    unix = UnixListener(path) if path else None
    url = f"http://127.0.0.1:{tcp.getsockname()[1]}"
    limit = config.max_connections
    running = Server(app, stopping, limit, services.shortages, lambda: None, near_memory_limit=near_memory_limit)
    task = asyncio.create_task(running.serve(sockets=[tcp, *([unix.socket] if unix else [])]))

    async def stop() -> float:
        begun = time.monotonic()
        stopping.set()
        services.polls.stop()
        await task
        return time.monotonic() - begun

    try:
        while not running.started:  # noqa: ASYNC110 - uvicorn tells nobody
            await asyncio.sleep(0.005)
        yield url, stop
    finally:
        await stop()
        if unix:
            unix.close()


def client(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, trust_env=False)


async def connect(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(data)
    return reader, writer
