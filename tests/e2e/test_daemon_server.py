"""The server on real sockets within the test: clients that dawdle, callers of other users, handlers that fail."""

import asyncio
import os
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from fabricd.api import gate
from fabricd.daemon import protocol
from fabricd.daemon.listeners import listen_tcp
from tests.support.served_app import LARGE, client, connect, serving


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
