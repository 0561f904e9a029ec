"""``/v1/events`` of real daemons: pages, long polls, streams, and what happens to cursors over a restart."""

import json
import signal
import time

import httpx

from tests.support.daemon import RunningDaemon, daemon, eventually


def told(running: RunningDaemon, query: str = "") -> dict:
    return running.get(f"/v1/events{query}").json()


def kinds(page: dict) -> list[str]:
    return [event["kind"] for event in page["events"]]


def test_nodes_come_and_go_in_the_events_of_another(tmp_path):
    with daemon(tmp_path, name="a") as first, daemon(tmp_path, "--peer", first.url, name="b") as second:
        eventually(lambda: kinds(told(second)) == ["node_joined", "node_joined"], told=[second])
        page = told(second)
        assert sorted(event["node"] for event in page["events"]) == ["a", "b"]
        assert [event["number"] for event in page["events"]] == [1, 2]
        assert second.get("/v1/cluster?summary=1").json()["event_cursor"] == page["cursor"]
        assert told(second, f"?since={page['cursor']}") == {**page, "events": []}
        with httpx.Client(base_url=second.url, trust_env=False, timeout=30) as client:
            first.process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            news = client.get("/v1/events", params={"since": page["cursor"], "wait": 20}).json()
        assert time.monotonic() - begun < 5
        assert [(event["kind"], event["node"], event["after"]) for event in news["events"]] == [
            ("node_stale", "a", "stale")
        ]
        assert news["events"][0]["detail"]


def test_a_bad_cursor_is_refused_and_one_of_another_process_is_a_resync(tmp_path):
    with daemon(tmp_path, name="a") as running:
        for query in ("?since=x", "?since=", "?since=" + "a" * 65):
            answer = running.get("/v1/events" + query)
            assert (answer.status_code, answer.json()["code"]) == (400, "bad-input")
            assert running.get("/v1/events" + query, headers={"Accept": "text/event-stream"}).status_code == 400
        before = told(running)["cursor"]
    with daemon(tmp_path, name="a") as running:
        page = told(running, f"?since={before}&wait=20")
        assert (page["resync"], page["events"]) == (True, [])
        assert page["cursor"] == running.get("/v1/cluster?summary=1").json()["event_cursor"]


def messages(lines, count: int) -> list[dict[str, str]]:
    """Read so many server-sent events."""
    found, fields = [], {}
    for line in lines:
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and fields:
            found.append(fields)
            fields = {}
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {found}")


def test_a_stream_tells_events_as_they_come_and_ends_with_the_daemon(tmp_path):
    headers = {"Accept": "text/event-stream"}
    with (
        daemon(tmp_path, name="a") as first,
        daemon(tmp_path, "--peer", first.url, name="b") as second,
        httpx.Client(base_url=second.url, trust_env=False, timeout=20) as client,
    ):
        with client.stream("GET", "/v1/events", headers=headers) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            joined = messages(lines, 2)
            assert [one["event"] for one in joined] == ["node_joined", "node_joined"]
            first.kill()
            (stale,) = messages(lines, 1)
            assert json.loads(stale["data"])["kind"] == stale["event"] == "node_stale"
            assert told(second, f"?since={stale['id']}")["events"] == []
            assert second.get("/metrics").text.count("fabricd_long_polls 1.0") == 1
        again = {**headers, "Last-Event-ID": joined[0]["id"]}
        with client.stream("GET", "/v1/events", headers=again) as stream:
            assert [one["event"] for one in messages(stream.iter_lines(), 2)] == ["node_joined", "node_stale"]
        with client.stream("GET", "/v1/events?since=abc:5", headers=headers) as stream:
            lines = stream.iter_lines()
            (resync,) = messages(lines, 1)
            assert resync["event"] == "resync"
            assert second.stop() < 1.5
            assert all(line.startswith(":") or not line for line in lines)  # the stream ends, whole
