"""Daemons of other nodes that answer with what no daemon should: they cost this one little, and nobody else's path."""

import asyncio
import json
import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fabricd.cluster.map_client import MapClient
from fabricd.cluster.measuring import Measurer, checked
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer_post import PeerPost
from fabricd.cluster.peers import Peers, PeerSettings
from fabricd.credentials import PeerAccess
from fabricd.errors import ParseError, UnreachableError
from fabricd.measure import tcp
from fabricd.measure.burst import take_burst
from fabricd.model import shared
from fabricd.model.codec import to_builtins
from fabricd.model.measurement import ListenAnswer, Measurement, MeasureRequest
from fabricd.model.shared import SharedParts
from fabricd.model.snapshot import Snapshot
from tests.support.nodes import nic, node
from tests.support.odd_server import answer, odd_server

HERE = "127.0.0.1"


def snapshot(name: str = "a", **fields: object) -> dict:
    return to_builtins(node(name, interfaces=(nic("lo", f"{HERE}/8"),))) | {"instance": f"i-{name}"} | fields


@pytest.mark.parametrize("unchanged", [True, False])
def test_one_that_does_not_hold_its_answers_back_is_not_asked_all_the_time(unchanged):
    asked = []
    enough = threading.Event()

    def respond(_what, headers, _connection):
        asked.append(time.monotonic())
        if len(asked) == 4:
            enough.set()
        if unchanged and "if-none-match" in headers:
            return answer(status="304 Not Modified", ETag='"1"')
        return answer(snapshot(generation=len(asked), content_hash=str(len(asked))), ETag=f'"{len(asked)}"')

    async def follow(url: str) -> None:
        nodes = NodeMap()
        nodes.set_local(node("here"))
        peers = Peers(nodes, count=lambda _: None)
        peers.follow(PeerSettings(entries=(url,), access=PeerAccess(), gone_seconds=60.0))
        assert await asyncio.to_thread(enough.wait, 20)
        await peers.close()

    with odd_server(respond) as url:
        asyncio.run(follow(url))
    assert asked[3] - asked[1] > 0.3  # twice a quarter of a second, less what the second was on its way


def test_an_answer_without_end_is_read_no_further_than_it_may_be():
    sent = 0

    def respond(_what, _headers, connection):
        nonlocal sent
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            sent += connection.send(bytes(1 << 20))

    with odd_server(respond) as url, pytest.raises(ParseError, match="longer than 1048576 bytes"):
        asyncio.run(PeerPost(PeerAccess)(url, "/v1/measure/listen", {}, ListenAnswer, seconds=3.0))
    assert sent < 100 << 20  # with what is on its way


@pytest.mark.parametrize("status", ["204 No Content", "302 Found", "403 No", "499 Gone", "500 Error", "999 Odd"])
def test_what_no_map_node_says_is_not_passed_on_and_the_next_is_asked(status):
    async def ask(*urls: str) -> tuple[str, int]:
        maps = MapClient(lambda: urls, PeerAccess, "a")
        async with maps.ask("/v1/cluster", seconds=3.0) as (url, found):
            return url, found.status_code

    with odd_server(lambda *_: answer(status=status)) as odd, odd_server(lambda *_: answer({})) as good:
        assert asyncio.run(ask(odd, good)) == (good, 200)
        with pytest.raises(UnreachableError, match=f"status {status[:3]}"):
            asyncio.run(ask(odd))


@pytest.mark.parametrize("port", [-1, 0, 65536, 1 << 40])
def test_a_port_that_cannot_be_is_told(port):
    known = {name: node(name, interfaces=(nic("lo", f"{HERE}/8"),)) for name in "ab"}
    with odd_server(lambda *_: answer({"port": port, "token": "x"})) as url:
        nodes = SimpleNamespace(local=known["a"], url_of=lambda _: url, snapshots=lambda: known)
        measurer = Measurer(nodes, PeerPost(PeerAccess))
        request = MeasureRequest(dst_node="b", src_address=HERE, dst_address=HERE, network="net")
        with pytest.raises(ParseError, match=f"listens at port {port}"):
            asyncio.run(measurer.measure(request))


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -1.0])
def test_a_rate_that_cannot_be_is_no_measurement(rate):
    def lie() -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionResetError):
            connection.recv(33)  # the token, and which way
            while connection.recv(1) == b"p":
                connection.sendall(b"p")
            take_burst(connection)
            connection.sendall(struct.pack("!Qd", 1 << 20, rate))
            while connection.recv(1 << 20):
                pass

    with socket.create_server((HERE, 0)) as listener:
        thread = threading.Thread(target=lie)
        thread.start()
        timing = tcp.measure(HERE, "lo", HERE, listener.getsockname()[1], tcp.new_token())
        thread.join()
    assert not timing.reachable
    assert "bytes/s arrived" in timing.reason


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"dst_address": "10.0.0.9", "reachable": False}, "10.0.0.9"),
        ({"dst_node": "c"}, "was measured"),
        ({"bandwidth_bytes_per_second": -1.0}, "no measurement gives"),
        ({"bandwidth_bytes_per_second": 0.0}, "no measurement gives"),
        ({"latency_seconds": -1.0}, "no measurement gives"),
        ({"age_seconds": -1e9}, "no measurement gives"),
        ({"reason": "\x1b[2J"}, "not printable"),
        ({"network": "n" * 501}, "longer than 500"),
    ],
)
def test_a_measurement_must_be_the_one_that_was_asked_for(lie, words):
    request = MeasureRequest(dst_node="b", src_address="10.0.0.1", dst_address="10.0.0.2", network="net")
    true = Measurement(
        src_node="a",
        dst_node="b",
        src_interface="eth0",
        dst_interface="eth0",
        src_address="10.0.0.1",
        dst_address="10.0.0.2",
        network="net",
        reachable=True,
        latency_seconds=1e-6,
        bandwidth_bytes_per_second=1e9,
    )
    assert checked(true, "a", request) == true
    with pytest.raises(ParseError, match=words):
        checked(replace(true, **lie), "a", request)


def test_what_is_remembered_of_snapshots_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(shared, "_MAX_BYTES", 1 << 16)
    parts = SharedParts()

    def devices(bus: int) -> object:
        told = [{"address": f"0000:{bus:02x}:{slot:02x}.0"} for slot in range(200)]
        return parts.decode(json.dumps(snapshot(pci=told)), Snapshot).pci

    first = devices(0)
    assert devices(0) is first
    for bus in range(1, 20):
        devices(bus)
    assert devices(0) is not first
