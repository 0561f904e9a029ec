"""Four hosts: links down and up, daemons killed, one host cut off; and every daemon's map right afterwards.

All are joined by ``mgmt``, over which the daemons ask each other, and by two data networks; h2's interfaces bear other
names than those of the rest, and h3's on the second data network is down.
"""

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from demo.hosts import Host, NetworkSpec, make_hosts
from tests.support.daemon import RunningDaemon, daemon, eventually
from tests.support.etcd import EtcdServer

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

NETWORKS = [
    NetworkSpec("mgmt", "10.30.0.0/24"),
    NetworkSpec("data0", "10.30.1.0/24", interfaces=("data0", "data0", "enp7s0", "data0")),
    NetworkSpec("data1", "10.30.2.0/24", interfaces=("data1", "data1", "enp8s0", "data1")),
]
PORT = 7470


class HostDaemon:
    """A host with its daemon, asked over its Unix socket, which no network can cut off."""

    def __init__(self, host: Host, folder, arguments: list[str], stack: ExitStack) -> None:
        self.host = host
        self.name = host.name
        self._folder = folder
        self._arguments = arguments
        self._stack = stack
        self.daemon = self.start()

    def start(self) -> RunningDaemon:
        def starter(command, output):
            return self.host.popen(command, stdout=output, stderr=output)

        self.daemon = self._stack.enter_context(daemon(self._folder, *self._arguments, name=self.name, start=starter))
        return self.daemon

    def get(self, path: str) -> dict:
        with self.daemon.unix() as client:
            return client.get(path).json()

    def states(self) -> dict[str, str]:
        return {node["name"]: node["state"] for node in self.get("/v1/cluster?summary=1")["nodes"]}

    def told(self) -> list[tuple[str, str, str]]:
        return [(one["kind"], one["node"], one["subject"]) for one in self.get("/v1/events")["events"]]

    def networks(self, src: str, dst: str) -> set[str]:
        """Networks that paths between two hosts' memory may take, as this host sees it."""
        return set(self.ports(src, dst))

    def ports(self, src: str, dst: str) -> dict[str, list[str]]:
        """The ports at both ends of the paths between two hosts' memory, by network, as this host sees it."""
        answer = self.get(f"/v1/paths?src={src}/numa0&dst={dst}/numa0&candidates=8")
        return {path["network"]: [end["port"] for end in path["ends"]] for path in answer["paths"]}


@pytest.fixture
def hosts(tmp_path) -> Iterator[list[HostDaemon]]:
    token = tmp_path / "token"
    token.write_text("a-secret")
    token.chmod(0o600)
    with make_hosts(4, NETWORKS) as made, ExitStack() as stack:
        made[3].link("data1").pull()
        urls = [f"http://{host.link('mgmt').address}:{PORT}" for host in made]
        config = tmp_path / "c.toml"
        config.write_text(f"peers = {urls!r}\npeer_gone_seconds = 8\n".replace("'", '"'))
        arguments = ["-c", str(config), "--host", "0.0.0.0", "--port", str(PORT), "--token-file", str(token)]
        running = [HostDaemon(host, tmp_path, arguments, stack) for host in made]
        everybody(running, dict.fromkeys(("h0", "h1", "h2", "h3"), "ok"))
        yield running


def everybody(hosts: list[HostDaemon], states: dict[str, str], seconds: float = 20.0) -> float:
    """Wait until every host's map is this; return how long that took."""
    begun = time.monotonic()
    eventually(lambda: all(one.states() == states for one in hosts), seconds, told=[one.daemon for one in hosts])
    return time.monotonic() - begun


INTERFACES = {"10.30.0.0/24": "mgmt", "10.30.1.0/24": "data0", "10.30.2.0/24": "data1"}
OTHERWISE = {("h2", "data0"): "enp7s0", ("h2", "data1"): "enp8s0"}


def every_answer_is_right(hosts: list[HostDaemon], down: set[tuple[str, str]], seconds: float = 10.0) -> None:
    """Ask each daemon for the paths of every pair of hosts: each network that both are on, by the interfaces there."""
    for asked in hosts:
        for src, dst in itertools.permutations(("h0", "h1", "h2", "h3"), 2):
            expected = {
                network: [f"{host}/{OTHERWISE.get((host, interface), interface)}" for host in (src, dst)]
                for network, interface in INTERFACES.items()
                if not {(src, interface), (dst, interface)} & down
            }
            eventually(lambda: asked.ports(src, dst) == expected, seconds, told=[asked.daemon])  # noqa: B023 - is called at once


def test_links_go_down_and_up(hosts):
    h0, _, h2, _ = hosts
    every_answer_is_right(hosts, {("h3", "data1")})
    why = h2.get("/v1/paths?src=h0/numa0&dst=h3/numa0&explain=1")["rejected"]
    (reason,) = [one["reason"] for one in why if one["name"] == "h3/data1"]
    assert reason.startswith("it is down")
    before = h0.get("/v1/cluster?summary=1")["event_cursor"]
    begun = time.monotonic()
    h2.host.link("data0").pull()
    for one in hosts:
        eventually(lambda one=one: ("link_down", "h2", "enp7s0") in one.told(), 5, told=[one.daemon])
    assert time.monotonic() - begun < 4
    news = h0.get(f"/v1/events?since={before}")["events"]
    (network,) = [one for one in news if one["kind"] == "network_changed"]
    assert (network["subject"], network["before"], network["after"]) == ("10.30.1.0/24", "enp7s0", "")
    every_answer_is_right(hosts, {("h3", "data1"), ("h2", "data0")})
    h2.host.link("data0").plug()
    every_answer_is_right(hosts, {("h3", "data1")})
    assert everybody(hosts, dict.fromkeys(("h0", "h1", "h2", "h3"), "ok")) < 5


def test_daemons_killed_and_a_host_cut_off_are_stale_then_gone_then_back(hosts):
    h0, h1, h2, h3 = hosts
    h1.daemon.kill()
    others = [h0, h2, h3]
    assert everybody(others, {"h0": "ok", "h1": "stale", "h2": "ok", "h3": "ok"}) < 5
    assert all("10.30.1.0/24" in one.networks("h0", "h1") for one in others)  # stale: the last that is known
    h3.host.link("mgmt").pull()
    cut = {"h0": "ok", "h1": "gone", "h2": "ok", "h3": "stale"}
    eventually(lambda: h0.states() == cut and h2.states() == cut, 25, told=[h0.daemon, h2.daemon])
    eventually(lambda: set(h3.states().values()) <= {"ok", "stale", "gone"} and h3.states()["h0"] != "ok", 15)
    gone = {"h0": "ok", "h1": "gone", "h2": "ok", "h3": "gone"}
    everybody([h0, h2], gone, 25)
    assert h0.get("/v1/paths?src=h0/numa0&dst=h3/numa0")["code"] == "unknown-name"
    ages = {one["name"]: one["age_seconds"] for one in h0.get("/v1/cluster?summary=1")["nodes"]}
    assert ages["h1"] > ages["h3"] > 8
    assert h3.states()["h3"] == "ok"  # cut off, it knows itself and says of the others how old they are
    h3.host.link("mgmt").plug()
    h1.start()
    assert everybody(hosts, dict.fromkeys(("h0", "h1", "h2", "h3"), "ok"), 25) < 20
    comes = {"node_joined", "node_stale", "node_gone", "node_back", "node_restarted"}
    kinds = [kind for kind, node, _ in h0.told() if node == "h1" and kind in comes]
    assert kinds == ["node_joined", "node_stale", "node_gone", "node_back", "node_restarted"]
    kinds = [kind for kind, node, _ in h0.told() if node == "h3" and kind in comes]
    assert kinds == ["node_joined", "node_stale", "node_gone", "node_back"]


@pytest.mark.etcd
def test_with_etcd_a_host_that_is_cut_off_is_stale_then_gone_then_back(tmp_path):
    token = tmp_path / "token"
    token.write_text("a-secret")
    token.chmod(0o600)
    with make_hosts(3, NETWORKS[:1]) as made, ExitStack() as stack:
        address = made[0].link("mgmt").address
        server = EtcdServer(tmp_path, address=address, start=made[0].popen)
        stack.callback(server.kill)
        server.launch()
        config = tmp_path / "c.toml"
        config.write_text(
            f'peer_gone_seconds = 5\ncluster.backend = "etcd"\n'
            f'etcd.endpoints = ["{server.url}"]\netcd.lease_seconds = 5\n'
        )
        arguments = ["-c", str(config), "--host", "0.0.0.0", "--port", str(PORT), "--token-file", str(token)]
        h0, h1, h2 = hosts = [HostDaemon(host, tmp_path, arguments, stack) for host in made]
        everybody(hosts, dict.fromkeys(("h0", "h1", "h2"), "ok"), 25)
        urls = {node["name"]: node["url"] for node in h1.get("/v1/cluster?summary=1")["nodes"]}
        assert urls["h2"] == f"http://{made[2].link('mgmt').address}:{PORT}"
        made[2].link("mgmt").pull()
        everybody([h0, h1], {"h0": "ok", "h1": "ok", "h2": "stale"}, 15)
        eventually(lambda: h2.states() == {"h0": "stale", "h1": "stale", "h2": "ok"}, 15, told=[h2.daemon])
        assert h2.get("/v1/cluster?summary=1")["store"]["state"] == "stale"
        everybody([h0, h1], {"h0": "ok", "h1": "ok", "h2": "gone"}, 15)
        made[2].link("mgmt").plug()
        everybody(hosts, dict.fromkeys(("h0", "h1", "h2"), "ok"), 20)
