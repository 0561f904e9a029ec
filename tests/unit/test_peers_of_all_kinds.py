"""What peers are that differ from this daemon: imaged anew, moved, with another clock, with another schema.

A real HTTP server answers as a peer's daemon would.
"""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peers import Peers, PeerSettings
from fabricd.credentials import PeerAccess
from fabricd.model.codec import to_json
from fabricd.model.snapshot import SCHEMA
from tests.support.nodes import nic, node


class Standin:
    """Answers ``/v1/node`` with a snapshot, or anything else that is JSON."""

    def __init__(self) -> None:
        self.answer: dict = {}
        standin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                body = json.dumps(standin.answer).encode()
                known = self.headers.get("If-None-Match") == f'"{hash(body)}"'
                time.sleep(0.05 if known else 0)  # a long poll that ends soon
                self.send_response(304 if known else 200)
                self.send_header("ETag", f'"{hash(body)}"')
                self.send_header("Content-Length", "0" if known else str(len(body)))
                self.end_headers()
                self.wfile.write(b"" if known else body)

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def peer() -> Iterator[Standin]:
    made = Standin()
    yield made
    made.close()


def answer(name: str = "a", address: str = "10.0.0.1/24", **fields: object) -> dict:
    made = node(name, interfaces=(nic("eth0", address),))
    return json.loads(to_json(made)) | {"instance": "i-1", "content_hash": "h", "generation": 1} | fields


def following(peer: Standin, scenario) -> None:
    """Run a scenario with a map that follows the peer."""

    async def run() -> None:
        nodes = NodeMap()
        nodes.set_local(node("here"))
        peers = Peers(nodes, count=lambda _: None)
        peers.follow(settings(peer.url))
        try:
            await scenario(nodes, peers)
        finally:
            await peers.close()

    asyncio.run(run())


def settings(url: str) -> PeerSettings:
    return PeerSettings(entries=(url,), access=PeerAccess(), gone_seconds=60.0)


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the map tells nobody of what is waited for here
            await asyncio.sleep(0.01)


def others(nodes: NodeMap) -> list[tuple[str, str]]:
    return [(status.node_id, status.state.value) for status in nodes.status(summary=True).nodes[1:]]


def events(nodes: NodeMap) -> list[str]:
    return [event.kind.value for event in nodes.history.since(None).events]


def test_a_node_imaged_anew_takes_the_place_of_the_one_that_was(peer):
    peer.answer = answer()

    async def scenario(nodes, _):
        await until(lambda: others(nodes) == [("id-a", "ok")])
        imaged = answer()
        imaged["node"]["node_id"] = "id-new"
        peer.answer = imaged | {"instance": "i-2"}
        await until(lambda: others(nodes) == [("id-new", "ok")])
        assert nodes.conflicts == ()
        assert set(nodes.snapshots()) == {"id-here", "id-new"}
        (told,) = [event for event in nodes.history.since(None).events if event.kind.value == "node_replaced"]
        assert (told.before, told.after) == ("id-a", "id-new")

    following(peer, scenario)


def test_other_addresses_are_the_same_node(peer):
    peer.answer = answer()
    elsewhere = Standin()

    async def scenario(nodes, peers):
        await until(lambda: others(nodes) == [("id-a", "ok")])
        # Its interface has another address; then its daemon is asked at another one.
        peer.answer = answer(address="10.0.0.77/24", generation=2, content_hash="h2")
        await until(lambda: nodes.snapshots()["id-a"].interfaces[0].addresses[0].address == "10.0.0.77")
        elsewhere.answer = peer.answer
        peers.follow(settings(elsewhere.url))
        # In between it may be on the map by neither.
        await until(lambda: others(nodes) == [("id-a", "ok")] and nodes.url_of("id-a") == elsewhere.url)
        assert nodes.conflicts == ()
        assert "addresses_changed" in events(nodes)
        assert nodes.url_of("id-a") == elsewhere.url

    try:
        following(peer, scenario)
    finally:
        elsewhere.close()


@pytest.mark.parametrize("years", [-30, 30])
def test_its_clock_does_not_matter(peer, years):
    peer.answer = answer(taken_at=time.time() + years * 365 * 86400)

    async def scenario(nodes, _):
        await until(lambda: others(nodes) == [("id-a", "ok")])
        assert 0 <= nodes.find("a").age_seconds < 10

    following(peer, scenario)


def test_a_newer_schema_is_read_as_far_as_it_is_known_and_an_older_one_takes_defaults(peer):
    newer = answer(schema=SCHEMA + 1, wormholes=[{"length": 3}])
    newer["interfaces"][0] |= {"kind": "wormhole", "colour": "red"}
    peer.answer = newer

    async def scenario(nodes, _):
        await until(lambda: others(nodes) == [("id-a", "ok")])
        status = nodes.find("a")
        assert status.schema == SCHEMA + 1
        assert "newer: facts that this daemon does not know are left out" in status.note
        assert status.snapshot.interfaces[0].addresses[0].address == "10.0.0.1"
        old = {"schema": SCHEMA - 1, "node": {"node_id": "id-a", "name": "a"}, "instance": "i-1", "generation": 9}
        peer.answer = old
        await until(lambda: nodes.find("a").schema == SCHEMA - 1)
        status = nodes.find("a")
        assert (status.state.value, status.snapshot.interfaces) == ("ok", ())
        assert "older: facts may lack" in status.note

    following(peer, scenario)


def test_a_schema_that_cannot_be_read_is_told_and_the_last_facts_stay(peer):
    peer.answer = answer()

    async def scenario(nodes, _):
        await until(lambda: others(nodes) == [("id-a", "ok")])
        peer.answer = answer(schema=SCHEMA + 1, interfaces={"eth0": {}})
        await until(lambda: others(nodes) == [("id-a", "stale")])
        status = nodes.find("a")
        assert f"schema {SCHEMA + 1}" in status.reason
        assert status.snapshot.interfaces[0].name == "eth0"

    following(peer, scenario)
