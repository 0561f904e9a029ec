"""A server that has no room: who waits, who is refused, and who makes room for others."""

import asyncio
from contextlib import suppress

from fabricd.api import gate
from fabricd.daemon import room, server
from tests.support.served_app import LARGE, client, connect, serving


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
