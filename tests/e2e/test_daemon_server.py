"""The server on real sockets within the test: clients that dawdle, callers of other users, handlers that fail."""

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from starlette.responses import Response, StreamingResponse

from fabricd.api import gate
from fabricd.api.app import create_app
from fabricd.api.auth import caller
from fabricd.api.longpoll import LongPolls
from fabricd.api.message import json_response
from fabricd.api.services import Services
from fabricd.cluster.nodes import NodeMap
from fabricd.config import Config
from fabricd.daemon import protocol, room, server
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


def test_a_request_that_trickles_is_cut_off(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.4)

    async def main() -> None:
        async with serving() as (url, _stop):
            silent, one = await connect(url, b"")
            slow, two = await connect(url, b"GET /livez HT")
            again, three = await connect(url, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await again.readuntil(b"alive\n")).startswith(b"HTTP/1.1 200")
            three.write(b"G")  # the next request on the same connection
            begun = time.monotonic()
            async with asyncio.timeout(5):
                for _ in range(3):
                    two.write(b"T")
                    await asyncio.sleep(0.05)
                assert [await stream.read() for stream in (silent, slow, again)] == [b"", b"", b""]
            assert 0.2 < time.monotonic() - begun < 3
            for writer in (one, two, three):
                writer.close()

    asyncio.run(main())


def test_a_long_answer_is_not_cut_off_by_the_limit_for_heads(monkeypatch):
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.1)

    async def main() -> None:
        async with serving() as (url, _stop), client(url) as http, http.stream("GET", "/stream") as response:
            count = 0
            async for line in response.aiter_lines():
                count += line == "alive"
                if count == 10:
                    return

    asyncio.run(main())


def test_a_body_that_trickles_is_refused(monkeypatch):
    monkeypatch.setattr(gate, "BODY_SECONDS", 0.3)

    async def main() -> None:
        async with serving() as (url, _stop):
            head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n12"
            reader, writer = await connect(url, head)
            async with asyncio.timeout(5):
                assert (await reader.read(1000)).startswith(b"HTTP/1.1 408")
            writer.close()

    asyncio.run(main())


def test_a_body_in_chunks_is_refused_before_any_is_read():
    async def main() -> None:
        async with serving(max_body_bytes=50_000) as (url, _stop), client(url) as http:
            assert (await http.post("/length", content=b"x" * 50_000)).json() == 50_000
            head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            begun = time.monotonic()
            reader, writer = await connect(url, head + b"1\r\nx\r\n" * 40_000)
            async with asyncio.timeout(5):
                assert (await reader.readline()) == b"HTTP/1.1 411 Length Required\r\n"
            assert time.monotonic() - begun < 0.5  # to read them all takes seconds
            writer.close()

    asyncio.run(main())


def test_a_head_is_bounded_also_when_it_comes_at_once():
    async def main() -> None:
        async with serving() as (url, _stop):
            for size in (20_000, 200_000):
                head = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * size + b"\r\n\r\n"
                reader, writer = await connect(url, head)
                async with asyncio.timeout(5):
                    assert (await reader.readline()).startswith(b"HTTP/1.1 431")
                writer.close()
            fine = b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"x" * 15_000 + b"\r\n\r\n"
            reader, writer = await connect(url, fine)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(main())


def test_slow_bodies_keep_only_each_other_out():
    async def main() -> None:
        async with serving(max_requests=8) as (url, _stop), client(url) as http:
            head = b"POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n1"
            streams = [await connect(url, head) for _ in range(9)]
            async with asyncio.timeout(5):
                refused = await streams[8][0].read(1000)
            assert refused.startswith(b"HTTP/1.1 503")
            assert b"\r\nRetry-After: 5\r\n" in refused or b"\r\nretry-after: 5\r\n" in refused
            assert (await http.get("/who")).status_code == 200
            streams[0][1].write(b"234567890")
            async with asyncio.timeout(5):
                assert (await streams[0][0].readline()).startswith(b"HTTP/1.1 200")
            assert (await http.post("/length", content=b"abc")).json() == 3  # its place is free again
            for _, writer in streams:
                writer.close()

    asyncio.run(main())


def test_connections_without_a_request_make_room_the_longest_first():
    async def main() -> None:
        async with serving(max_connections=16) as (url, _stop):
            polls = [await connect(url, b"GET /sleeps HTTP/1.1\r\nHost: localhost\r\n\r\n") for _ in range(4)]
            slow = [await connect(url, b"GET /livez HT") for _ in range(12)]
            await asyncio.sleep(0.1)
            extra = await connect(url, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(5):
                assert (await extra[0].readline()).startswith(b"HTTP/1.1 200")
                with suppress(ConnectionResetError):
                    assert await slow[0][0].read() == b""
            slow[1][1].write(b"TP/1.1\r\nHost: localhost\r\n\r\n")  # the next one is still there
            async with asyncio.timeout(5):
                assert (await slow[1][0].readline()).startswith(b"HTTP/1.1 200")
            for _, writer in (*polls, *slow, extra):
                writer.close()

    asyncio.run(main())


def test_a_client_that_does_not_read_its_answer_is_cut_off(monkeypatch):
    monkeypatch.setattr(protocol, "STALL_SECONDS", 0.3)

    async def main() -> None:
        async with serving() as (url, _stop):
            reader, writer = await connect(url, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(1.0)
            got = 0
            with suppress(ConnectionResetError):
                while part := await reader.read(1 << 20):
                    got += len(part)
            assert 0 < got < LARGE
            writer.close()

    asyncio.run(main())


def test_a_client_that_leaves_is_noticed_also_when_it_has_asked_more():
    async def main() -> None:
        async with serving() as (url, _stop), client(url) as http:
            ask = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            reader, writer = await connect(url, ask)
            await reader.readuntil(b"hello")
            assert "fabricd_long_polls 1.0" in (await http.get("/metrics")).text
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0.1)
            writer.close()
            async with asyncio.timeout(5):
                while "fabricd_long_polls 0.0" not in (await http.get("/metrics")).text:  # noqa: ASYNC110 - no event to await
                    await asyncio.sleep(0.05)

    asyncio.run(main())


def test_what_handlers_raise_becomes_a_problem_that_tells_no_secret(caplog):
    async def main() -> None:
        async with serving() as (url, _stop), client(url) as http:
            refused = await http.get("/refuses")
            assert refused.status_code == 409
            assert refused.json() == {
                "type": "urn:fabricd:error:group-aborted",
                "title": "Conflict",
                "status": 409,
                "detail": "by rank 3",
                "code": "group-aborted",
                "hint": "restart",
                "details": {"rank": 3},
            }
            unforeseen = await http.get("/raises")
            assert (unforeseen.status_code, unforeseen.json()["code"]) == (500, "internal")
            assert "1234" not in unforeseen.text
            with pytest.raises(httpx.RemoteProtocolError):
                await http.get("/breaks")
            assert (await http.get("/livez")).status_code == 200

    asyncio.run(main())
    assert "the secret is 1234" in caplog.text  # the log is for the administrator


def test_requests_beyond_the_limit_are_told_to_come_again():
    async def main() -> None:
        async with serving(max_requests=3) as (url, _stop), client(url) as http:
            held = [asyncio.create_task(http.get("/sleeps")) for _ in range(3)]
            await asyncio.sleep(0.2)
            busy = await http.get("/metrics")
            assert (busy.status_code, busy.json()["code"], busy.headers["Retry-After"]) == (503, "busy", "1")
            assert (await http.get("/livez")).status_code == 200  # busy is not dead
            for task in held:
                task.cancel()
            await asyncio.gather(*held, return_exceptions=True)

    asyncio.run(main())


def test_what_waited_too_long_for_its_turn_is_refused_but_not_supervisors_and_jobs(monkeypatch):
    monkeypatch.setattr(gate, "QUEUE_SECONDS", 0.25)

    async def main() -> None:
        async with serving() as (url, _stop):
            paths = ["/burns"] * 8 + ["/livez", "/v1/groups/g", "/v1/events?wait=0.1"]
            asked = [await connect(url, b"") for _ in paths]
            for path, (_, writer) in zip(paths, asked, strict=True):
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            heads = [await reader.readuntil(b"\r\n\r\n") for reader, _ in asked]
            statuses = [int(head.split()[1]) for head in heads]
            assert (statuses[0], statuses[7], statuses[8]) == (200, 503, 200)
            assert b"\r\nretry-after: 1\r\n" in heads[7]
            assert statuses[10] == 200
            assert statuses[9] in (401, 403, 404)  # what it would be at any other time
            for _, writer in asked:
                writer.close()

    asyncio.run(main())


def test_near_the_end_of_memory_all_is_refused_but_supervisors_jobs_and_metrics_and_who_does_not_read_is_ended(
    monkeypatch,
):
    monkeypatch.setattr(server, "_BEAT_SECONDS", 0.05)
    monkeypatch.setattr(room, "_READ_SECONDS", 0.1)
    near = ""

    async def main() -> None:
        nonlocal near
        async with serving(near_memory_limit=lambda: near) as (url, _stop), client(url) as http:
            assert (await http.get("/who")).status_code == 200
            unread, writer = await connect(url, b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await asyncio.sleep(0.1)  # it comes to a halt
            near = "990 of 1024 MiB"
            refused = await http.get("/who")  # over a connection that is open
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert "990 of 1024 MiB" in refused.json()["detail"]
            for path, status in (("/livez", 200), ("/v1/groups/none", 403)):
                assert (await http.get(path)).status_code == status, path
            assert 'fabricd_short{resource="memory"} 1.0' in (await http.get("/metrics")).text
            await asyncio.sleep(0.5)
            async with asyncio.timeout(5):
                with suppress(ConnectionResetError):
                    assert len(await unread.read()) < LARGE
            writer.close()
            near = ""
            assert (await http.get("/who")).status_code == 200

    asyncio.run(main())


def test_ends_in_time_with_streams_and_handlers_that_do_not():
    async def main() -> None:
        async with serving() as (url, stop), client(url) as http:
            tasks = [asyncio.create_task(http.get(path)) for path in ("/stream", "/sleeps", "/stream")]
            await asyncio.sleep(0.2)
            assert await stop() < 1.0
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(result, httpx.TransportError)

    asyncio.run(main())


def test_the_unix_socket_tells_who_asks():
    async def main(folder: Path) -> None:
        path = folder / "s.sock"
        async with serving(path) as (url, _stop):
            transport = httpx.AsyncHTTPTransport(uds=str(path))
            async with httpx.AsyncClient(transport=transport, base_url="http://fabricd") as http:
                told = (await http.get("/who")).json()
            async with client(url) as http:
                over_tcp = (await http.get("/who")).json()
        assert told["kind"] == "unix"
        assert told["uid"] == os.geteuid()
        assert told["pid"] == os.getpid()
        assert over_tcp == {"kind": "loopback", "uid": None, "pid": None}

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@pytest.mark.root
@pytest.mark.parametrize(("uid", "told"), [(12345, 12345), (65534, None)])
def test_the_unix_socket_tells_users_apart(uid, told):
    """The uid that stands for all users without a number here is nobody's."""

    async def main(folder: Path) -> None:
        path = folder / "s.sock"
        async with serving(path):
            command = ["curl", "-s", "--unix-socket", str(path), "http://fabricd/who"]
            done = await asyncio.to_thread(
                subprocess.run, command, user=uid, capture_output=True, text=True, check=True
            )
        assert f'"kind":"unix","uid":{"null" if told is None else told}' in done.stdout

    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        asyncio.run(main(Path(folder)))


def test_accepted_connections_have_keepalive():
    with listen_tcp("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            tcp = socket.IPPROTO_TCP
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [accepted.getsockopt(tcp, option) for option in options] == [3, 1, 4, 7000]


def test_answers_are_sent_at_once():
    """Without TCP_NODELAY the second part of an answer waits 40 ms for the acknowledgement of the first."""

    async def main() -> int:
        connected = asyncio.get_running_loop().create_future()
        with listen_tcp("127.0.0.1", 0) as listener:
            server = await asyncio.start_server(lambda _, writer: connected.set_result(writer), sock=listener)
            async with server:
                _, ours = await asyncio.open_connection(*listener.getsockname())
                theirs = await connected
                told = theirs.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for writer in (ours, theirs):
                    writer.close()
                    await writer.wait_closed()
                return told

    assert asyncio.run(main()) == 1
