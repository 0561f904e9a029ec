"""Daemons that find each other in a real etcd, while etcd and they are killed in turn.

``FABRICD_KILL_SECONDS`` sets how long the killing goes on (by default 7; ``make test-etcd`` takes 60).
"""

import random
import time
from contextlib import ExitStack

import pytest

from tests.support.daemon import RunningDaemon, daemon, eventually
from tests.support.etcd import KILL_SECONDS, EtcdServer, etcd_server, free_port

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(240)]

NAMES = ("a", "b", "c")


class Cluster:
    """Some daemons of one etcd; each keeps its port over restarts."""

    def __init__(self, folder, server: EtcdServer, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._ports = {name: free_port() for name in NAMES}
        self.running: dict[str, RunningDaemon] = {}
        self.config = folder / "c.toml"
        self.config.write_text(
            f'peer_gone_seconds = 5\n[cluster]\nbackend = "etcd"\n'
            f'[etcd]\nendpoints = ["{server.url}"]\nlease_seconds = 5\n'
        )

    def start(self, name: str, *arguments: str) -> RunningDaemon:
        options = ["-c", str(self.config), "--port", str(self._ports.get(name, 0)), *arguments]
        self.running[name] = self._stack.enter_context(daemon(self._folder, *options, name=name))
        return self.running[name]

    def states(self, name: str) -> dict[str, str]:
        nodes = self.running[name].get("/v1/cluster?summary=1").json()["nodes"]
        return {node["name"]: node["state"] for node in nodes}

    def is_true(self) -> bool:
        """Whether every daemon's map holds every daemon as it is now, by process and facts."""
        own = {name: one.get("/v1/node").json() for name, one in self.running.items()}
        want = {name: (facts["instance"], facts["content_hash"]) for name, facts in own.items()}
        return all(self._map(name) == want for name in self.running)

    def _map(self, name: str) -> dict[str, tuple[str, str]]:
        cluster = self.running[name].get("/v1/cluster").json()
        if cluster["store"]["state"] != "ok" or cluster["conflicts"] or cluster["faults"]:
            return {}
        return {
            node["name"]: (node["snapshot"]["instance"], node["content_hash"])
            for node in cluster["nodes"]
            if node["state"] == "ok"
        }

    @property
    def everyone(self) -> list[RunningDaemon]:
        return list(self.running.values())


def test_every_daemon_has_the_true_map_after_etcd_and_daemons_were_killed_in_turn(tmp_path):
    chance = random.Random(5)
    with etcd_server(tmp_path / "etcd") as server, ExitStack() as stack:
        cluster = Cluster(tmp_path, server, stack)
        for name in NAMES:
            cluster.start(name)
        eventually(cluster.is_true, 15, told=cluster.everyone)
        end = time.monotonic() + KILL_SECONDS
        kills = 0
        while time.monotonic() < end:
            victim = "etcd" if kills % 2 == 0 else chance.choice(NAMES)
            if victim == "etcd":
                server.kill()
                time.sleep(chance.uniform(0, 4))
                server.start()
            else:
                cluster.running[victim].kill()
                time.sleep(chance.uniform(0, 2))
                cluster.start(victim)
            time.sleep(chance.uniform(0, 1))
            kills += 1
        assert kills >= 2
        eventually(cluster.is_true, 20, told=cluster.everyone)
        eventually(lambda: (server.leases(), server.watchers()) == (len(NAMES), len(NAMES)), 15, told=cluster.everyone)
        assert len(server.keys()) == len(NAMES)
        for one in cluster.everyone:
            assert "Traceback" not in one.log
            one.stop()
        eventually(lambda: (server.keys(), server.leases(), server.watchers()) == ([], 0, 0), 3)


def test_a_daemon_that_leaves_is_no_failure_and_one_that_is_killed_is(tmp_path):
    with etcd_server(tmp_path / "etcd") as server, ExitStack() as stack:
        cluster = Cluster(tmp_path, server, stack)
        for name in NAMES:
            cluster.start(name)
        eventually(cluster.is_true, 15, told=cluster.everyone)
        cluster.running["b"].stop()
        eventually(lambda: cluster.states("a") == {"a": "ok", "c": "ok"}, 3, told=cluster.everyone)
        cluster.running["c"].kill()
        eventually(lambda: cluster.states("a") == {"a": "ok", "c": "stale"}, 10, told=cluster.everyone)
        eventually(lambda: cluster.states("a") == {"a": "ok", "c": "gone"}, 10, told=cluster.everyone)
        events = cluster.running["a"].get("/v1/events").json()["events"]
        told = [(event["kind"], event["node"]) for event in events if event["kind"] != "node_joined"]
        assert told == [("node_left", "b"), ("node_stale", "c"), ("node_gone", "c")]


def test_the_last_map_is_served_while_etcd_is_away_and_daemons_end_without_it(tmp_path):
    with etcd_server(tmp_path / "etcd") as server, ExitStack() as stack:
        cluster = Cluster(tmp_path, server, stack)
        for name in ("a", "b"):
            cluster.start(name)
        eventually(cluster.is_true, 15, told=cluster.everyone)
        server.kill()
        eventually(lambda: cluster.states("a") == {"a": "ok", "b": "stale"}, 12, told=cluster.everyone)
        cluster_map = cluster.running["a"].get("/v1/cluster").json()
        assert (cluster_map["store"]["backend"], cluster_map["store"]["state"]) == ("etcd", "stale")
        assert cluster_map["store"]["age_seconds"] > 2
        assert cluster_map["store"]["reason"]
        assert cluster_map["nodes"][1]["snapshot"]
        assert cluster.running["a"].get("/v1/paths?src=numa0&dst=b/numa0").status_code == 200
        assert cluster.running["a"].get("/readyz").status_code == 200
        assert cluster.running["a"].stop() < 1.5


def test_an_agent_keeps_its_record_and_no_map(tmp_path):
    with etcd_server(tmp_path / "etcd") as server, ExitStack() as stack:
        cluster = Cluster(tmp_path, server, stack)
        first = cluster.start("a")
        agents = tmp_path / "agent.toml"
        agents.write_text(f'role = "agent"\nmap_nodes = ["{first.url}"]\n{cluster.config.read_text()}')
        agent = stack.enter_context(daemon(tmp_path, "-c", str(agents), name="z"))
        eventually(lambda: cluster.states("a") == {"a": "ok", "z": "ok"}, told=[first, agent])
        assert server.watchers() == 1
        answer = agent.get("/v1/cluster?summary=1")
        assert [node["name"] for node in answer.json()["nodes"]] == ["a", "z"]
        assert answer.headers["X-Fabricd-Answered-By"] == first.url
        assert answer.json()["nodes"][1]["url"] == agent.url
