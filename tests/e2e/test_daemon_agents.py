"""Daemons that hold no map: they answer for their own node and pass the rest on, within bounds and never in circles."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import httpx
import pytest

from tests.support.clusters import cluster
from tests.support.daemon import RunningDaemon, daemon, eventually
from tests.support.etcd import free_port
from tests.support.odd_server import odd_server

HEADER = "X-Fabricd-Answered-By"


def states(running: RunningDaemon) -> dict[str, str]:
    return {node["name"]: node["state"] for node in running.get("/v1/cluster?summary=1").json()["nodes"]}


def test_an_agent_passes_questions_about_the_cluster_on(tmp_path):
    with cluster(tmp_path) as [m0, m1, a0, a1]:
        everybody = dict.fromkeys(("m0", "m1", "a0", "a1"), "ok")
        eventually(lambda: states(m0) == states(m1) == everybody, 15, told=[m0, m1])
        answer = a0.get("/v1/cluster?summary=1")
        assert {node["name"]: node["state"] for node in answer.json()["nodes"]} == everybody
        first = answer.headers[HEADER]
        assert first in (m0.url, m1.url)
        unchanged = a0.get("/v1/cluster?summary=1&wait=0.2", headers={"If-None-Match": answer.headers["ETag"]})
        assert unchanged.status_code == 304
        assert a0.get("/v1/nodes/a1").json()["snapshot"]["node"]["node_id"] == "a1"
        own = a0.get("/v1/nodes/a0")
        assert own.json()["this_node"]
        assert HEADER not in own.headers
        for name in ("nobody", "a%0A1", "a1%3Fx", "a1%23"):  # a map node is asked for no other name than the agent was
            missing = a0.get(f"/v1/nodes/{name}")
            assert (missing.status_code, missing.json()["code"]) == (404, "unknown-name")
        with a0.unix() as client:
            answer = client.get("/v1/nodes/a1", headers={"Host": "localhost/v1/node?"})
            assert answer.json()["snapshot"]["node"]["node_id"] == "a1"

        within = a0.get("/v1/paths?src=numa0&dst=numa0")
        assert within.status_code == 200
        assert HEADER not in within.headers
        across = a0.get("/v1/paths?src=numa0&dst=a1/numa0&explain=1")
        assert (across.status_code, across.json()["src"], across.json()["dst"]) == (200, "a0/numa0", "a1/numa0")
        assert across.headers[HEADER]
        assert a0.get("/v1/paths?src=nothing&dst=a1/numa0").json()["code"] == "unknown-name"

        for ranks, told in ((["a1"], "no GPU on these machines"), (["a1", "gpu0"], "no GPU called 'a0/gpu0'")):
            plan = httpx.post(f"{a0.url}/v1/plans", json={"ranks": ranks}, timeout=60, trust_env=False)
            assert told in plan.json()["detail"]
            assert plan.headers[HEADER]
        alone = httpx.post(f"{a0.url}/v1/plans", json={"ranks": ["a0"]}, timeout=60, trust_env=False)
        assert "no GPU" in alone.json()["detail"]
        assert HEADER not in alone.headers

        ask = {"dst_node": "a1", "src_address": "127.0.0.1", "dst_address": "127.0.0.1"}
        measured = httpx.post(f"{a0.url}/v1/measure", json=ask, timeout=20, trust_env=False).json()
        assert (measured["src_node"], measured["dst_node"], measured["reachable"]) == ("a0", "a1", True)
        unknown = httpx.post(f"{a0.url}/v1/measure", json={**ask, "dst_node": "x"}, timeout=20, trust_env=False).json()
        assert unknown["code"] == "unknown-name"

        cursor = a0.get("/v1/events").json()["cursor"]
        with httpx.Client(base_url=a0.url, trust_env=False, timeout=20) as client:
            a1.process.send_signal(signal.SIGTERM)
            news = client.get("/v1/events", params={"since": cursor, "wait": 15}).json()
            assert [(event["kind"], event["node"]) for event in news["events"]] == [("node_stale", "a1")]
            with client.stream("GET", "/v1/events", headers={"Accept": "text/event-stream"}) as stream:
                assert next(line for line in stream.iter_lines() if line.startswith("event: ")) == "event: node_joined"

        best, other = (m0, m1) if first == m0.url else (m1, m0)
        best.kill()
        assert a0.get("/v1/cluster?summary=1").headers[HEADER] == other.url
        other.kill()
        begun = time.monotonic()
        nobody = a0.get("/v1/cluster")
        assert time.monotonic() - begun < 5
        assert (nobody.status_code, nobody.json()["code"]) == (502, "unreachable")
        assert all(one.url in nobody.json()["detail"] for one in (m0, m1))
        assert a0.get("/v1/node").status_code == 200
        assert a0.get("/v1/paths?src=numa0&dst=numa0").status_code == 200


def test_a_question_never_goes_round_in_circles(tmp_path):
    ports = [free_port() for _ in range(2)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    with ExitStack() as stack:
        for number in (0, 1):
            config = tmp_path / f"{number}.toml"
            config.write_text(f'role = "agent"\nmap_nodes = ["{urls[1 - number]}", "{urls[number]}"]\n')
            arguments = ["-c", str(config), "--port", str(ports[number])]
            running = stack.enter_context(daemon(tmp_path, *arguments, name=f"a{number}"))
        answer = running.get("/v1/cluster")
        assert (answer.status_code, answer.json()["code"]) == (502, "unreachable")
        assert answer.json()["detail"].count("holds no map") == 2
        assert running.get("/v1/cluster", headers={"X-Fabricd-Passed-On": "x"}).json()["code"] == "no-map"


def test_a_map_node_that_hangs_is_passed_over_and_an_agent_ends_in_time(tmp_path):
    with cluster(tmp_path, agents=1) as [m0, m1, a0]:
        eventually(lambda: states(a0) == dict.fromkeys(("m0", "m1", "a0"), "ok"), 15, told=[m0, a0])
        best, other = (m0, m1) if a0.get("/v1/cluster?summary=1").headers[HEADER] == m0.url else (m1, m0)
        best.process.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            assert a0.get("/v1/cluster?summary=1", seconds=20).headers[HEADER] == other.url
            assert time.monotonic() - begun < 12
            assert a0.get("/v1/cluster?summary=1", seconds=2).headers[HEADER] == other.url
            other.process.send_signal(signal.SIGSTOP)
            with ThreadPoolExecutor(1) as pool:
                before = a0.metric("fabricd_long_polls")
                waiting = pool.submit(a0.get, "/v1/cluster?wait=30", seconds=20)
                eventually(lambda: a0.metric("fabricd_long_polls") > before)
                assert a0.stop() < 1.5
                with suppress(httpx.TransportError):
                    assert waiting.result().status_code == 503
        finally:
            for one in (m0, m1):
                one.process.send_signal(signal.SIGCONT)


def test_a_map_node_that_ends_amid_its_answer_is_told_in_a_line(tmp_path):
    def respond(_what, _headers, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")

    with odd_server(respond) as url:
        config = tmp_path / "c.toml"
        config.write_text(f'role = "agent"\nmap_nodes = ["{url}"]\n')
        with daemon(tmp_path, "--config", str(config)) as agent:
            with pytest.raises(httpx.RemoteProtocolError):
                agent.get("/v1/cluster")
            eventually(lambda: "an answer broke off path=/v1/cluster" in agent.log, told=[agent])
            assert "its answer broke off" in agent.log
