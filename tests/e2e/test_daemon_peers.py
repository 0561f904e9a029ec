"""Daemons that follow each other: up, down, up again, in conflict, and behind a wrong token."""

import json
import signal
import time
from contextlib import ExitStack

import httpx
import pytest

from demo.hosts import NetworkSpec, make_hosts
from tests.e2e.test_daemon_access import token_file
from tests.support.daemon import RunningDaemon, daemon, eventually


def peers(running: RunningDaemon) -> list[dict]:
    return running.get("/v1/cluster?summary=1").json()["nodes"][1:]


def states(running: RunningDaemon) -> dict[str, str]:
    return {node["name"]: node["state"] for node in peers(running)}


def test_a_peer_goes_stale_and_comes_back(tmp_path):
    with daemon(tmp_path, name="a") as first:
        port = first.url.rpartition(":")[2]
        with daemon(tmp_path, "--peer", first.url, name="b") as second:
            eventually(lambda: states(second) == {"a": "ok"}, told=[second])
            assert second.get("/v1/nodes/a").json()["snapshot"]["node"]["node_id"] == "a"
            first.kill()
            eventually(lambda: states(second) == {"a": "stale"}, told=[second])
            (node,) = peers(second)
            assert node["reason"]
            assert node["age_seconds"] > 0
            with daemon(tmp_path, "--port", port, name="a"):
                eventually(lambda: states(second) == {"a": "ok"}, 10, told=[second])


def test_a_peer_that_never_answered_is_unknown_and_its_reason_told(tmp_path):
    with daemon(tmp_path, "--peer", "http://127.0.0.1:1", name="b") as running:
        eventually(lambda: peers(running)[0]["reason"], told=[running])
        (node,) = peers(running)
        assert (node["state"], node["node_id"], node["url"], node["age_seconds"]) == (
            "unknown",
            "",
            "http://127.0.0.1:1",
            None,
        )


def test_a_peer_that_is_long_silent_is_gone_and_no_candidate(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("peer_gone_seconds = 5\n")
    with (
        daemon(tmp_path, name="a") as first,
        daemon(tmp_path, "-c", str(config), "--peer", first.url, name="b") as second,
    ):
        eventually(lambda: states(second) == {"a": "ok"}, told=[second])
        assert second.get("/v1/paths?src=numa0&dst=a/numa0").status_code == 200
        first.kill()
        eventually(lambda: states(second) == {"a": "gone"}, 20, told=[second])
        assert second.get("/v1/paths?src=numa0&dst=a/numa0").json()["code"] == "unknown-name"


def test_two_machines_with_one_identity_are_told_and_never_merged(tmp_path):
    with ExitStack() as stack:
        first = stack.enter_context(daemon(tmp_path, name="a"))
        twin = stack.enter_context(daemon(tmp_path, "--node-id", "a", "--name", "c", name="x"))
        asker = stack.enter_context(daemon(tmp_path, "--peer", first.url, "--peer", twin.url, name="b"))
        eventually(lambda: sorted(states(asker)) == ["a", "c"], told=[asker])
        (conflict,) = asker.get("/v1/cluster?summary=1").json()["conflicts"]
        assert "node_id a is claimed by" in conflict
        assert first.url in conflict
        assert twin.url in conflict
        eventually(lambda: conflict in asker.log, 5, told=[asker])
        refusal = asker.get("/v1/nodes/a").json()
        assert refusal["code"] == "unknown-name"
        assert "fabricd_node_conflicts 1.0" in asker.get("/metrics").text


def test_two_nodes_of_one_name_are_told(tmp_path):
    with ExitStack() as stack:
        first = stack.enter_context(daemon(tmp_path, "--name", "same", name="a"))
        second = stack.enter_context(daemon(tmp_path, "--peer", first.url, "--name", "same", name="b"))
        eventually(lambda: states(second) == {"same": "ok"}, told=[second])
        (conflict,) = second.get("/v1/cluster?summary=1").json()["conflicts"]
        assert conflict.startswith("the name same is borne by")


def test_one_list_of_peers_serves_every_node(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("")
    with (
        daemon(tmp_path, "-c", str(config), name="a") as first,
        daemon(tmp_path, "-c", str(config), name="b") as second,
    ):
        config.write_text(f"peers = {json.dumps([first.url, second.url])}\n")
        for running in (first, second):
            running.process.send_signal(signal.SIGHUP)
        eventually(lambda: states(first) == {"b": "ok"}, told=[first])
        eventually(lambda: states(second) == {"a": "ok"}, told=[second])
        assert first.get("/v1/cluster?summary=1").json()["conflicts"] == []
        config.write_text("")
        first.process.send_signal(signal.SIGHUP)
        eventually(lambda: states(first) == {}, told=[first])


def test_the_map_wakes_its_readers_when_a_peer_changes(tmp_path):
    with daemon(tmp_path, name="a") as first, daemon(tmp_path, "--peer", first.url, name="b") as second:
        eventually(lambda: states(second) == {"a": "ok"}, told=[second])
        etag = second.get("/v1/cluster?summary=1").headers["ETag"]
        with httpx.Client(base_url=second.url, trust_env=False, timeout=30) as client:
            first.process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            news = client.get("/v1/cluster?summary=1&wait=20", headers={"If-None-Match": etag})
            assert news.status_code == 200
            assert news.json()["nodes"][1]["state"] == "stale"
            assert time.monotonic() - begun < 5


def test_a_peer_behind_another_token_says_so(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with ExitStack() as stack:
        first = stack.enter_context(daemon(tmp_path, "--token-file", token_file(tmp_path / "one", "first"), name="a"))
        arguments = ["--token-file", token_file(tmp_path / "two", "second"), "--peer", first.url]
        second = stack.enter_context(daemon(tmp_path, *arguments, name="b"))
        eventually(lambda: "refuses this daemon's token" in peers(second)[0]["reason"], told=[second])


@pytest.mark.root
def test_a_host_that_falls_silent_is_noticed_within_seconds(tmp_path):
    token = token_file(tmp_path)
    with make_hosts(2, [NetworkSpec("net", "10.9.1.0/24")]) as hosts:

        def starter(host):
            return lambda command, output: host.popen(command, stdout=output, stderr=output)

        common = ["--host", "0.0.0.0", "--port", "7470", "--token-file", token]
        url = f"http://{hosts[0].link('net').address}:7470"
        with daemon(tmp_path, *common, name="a", start=starter(hosts[0])) as first:
            arguments = [*common, "--peer", url]
            with daemon(tmp_path, *arguments, name="b", start=starter(hosts[1])) as second, second.unix() as client:

                def state() -> str:
                    return client.get("/v1/cluster?summary=1").json()["nodes"][1]["state"]

                eventually(lambda: state() == "ok", told=[first, second])
                hosts[0].link("net").pull()
                begun = time.monotonic()
                eventually(lambda: state() == "stale", 12, told=[first, second])
                assert time.monotonic() - begun < 10
                hosts[0].link("net").plug()
                eventually(lambda: state() == "ok", 20, told=[first, second])
