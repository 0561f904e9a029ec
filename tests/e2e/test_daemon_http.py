"""The HTTP interface of a real daemon: freshness, bounds, and an answer to everything that is no good request."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from demo.hosts import NetworkSpec, make_hosts
from fabricd.model.codec import from_json
from fabricd.model.problem import Problem
from fabricd.model.snapshot import Snapshot
from tests.support.daemon import RunningDaemon, daemon, eventually


def raw(running: RunningDaemon, data: bytes, *, seconds: float = 5.0) -> bytes:
    """Send bytes and return everything that comes until the other end closes."""
    port = int(running.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(data)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
        return answer


def problem(response: httpx.Response) -> Problem:
    assert response.headers["content-type"] == "application/problem+json", response.text
    told = from_json(response.content, Problem)
    assert told.status == response.status_code
    return told


def test_node_is_a_snapshot_with_an_etag_that_holds(running):
    first = running.get("/v1/node")
    snapshot = from_json(first.content, Snapshot)
    assert (snapshot.node.node_id, snapshot.this_host, snapshot.generation) == ("d", True, 1)
    assert {report.name for report in snapshot.probes} >= {"host", "numa", "pci", "netlink"}
    etag = first.headers["ETag"]
    again = running.get("/v1/node", headers={"If-None-Match": f'"other", {etag}'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", etag)
    assert running.get("/v1/node", headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize(
    "path",
    ["/v1/node", "/v1/cluster", "/v1/cluster?summary=1&networks=1", "/v1/nodes/d", "/v1/findings", "/v1/events",
     "/v1/paths?src=numa0&dst=lo", "/openapi.json", "/v1/nothing", "/v1/nodes/nobody", "/v1/groups/none"],
)  # fmt: skip
def test_json_ends_its_line_for_those_who_read_it_in_a_shell(running, path):
    answer = running.get(path)
    assert answer.content.endswith(b"}\n")
    assert answer.content.count(b"\n") == 1
    assert answer.headers.get("Content-Length", str(len(answer.content))) == str(len(answer.content))


def test_long_poll_without_news_ends_when_asked(running):
    etag = running.get("/v1/node").headers["ETag"]
    begun = time.monotonic()
    assert running.get("/v1/node?wait=0.5", headers={"If-None-Match": etag}).status_code == 304
    assert 0.45 < time.monotonic() - begun < 3


def test_long_poll_from_another_generation_is_answered_at_once(running):
    begun = time.monotonic()
    assert running.get("/v1/node?wait=30&generation=77").status_code == 200
    assert running.get("/v1/node?wait=30").status_code == 200
    assert running.get("/v1/cluster?wait=30&generation=77").status_code == 200
    assert time.monotonic() - begun < 5


def test_cluster_and_single_nodes(running):
    cluster = running.get("/v1/cluster").json()
    (node,) = cluster["nodes"]
    assert (node["node_id"], node["state"], node["this_node"], cluster["conflicts"]) == ("d", "ok", True, [])
    assert node["snapshot"]["node"]["node_id"] == "d"
    assert running.get("/v1/cluster?summary=1").json()["nodes"][0]["snapshot"] is None
    assert running.get("/v1/nodes/d").json()["node_id"] == "d"
    unknown = problem(running.get("/v1/nodes/nobody"))
    assert (unknown.code, unknown.hint) == ("unknown-name", "known: d")


def test_paths_within_the_node(running):
    answer = running.get("/v1/paths?src=numa0&dst=lo&explain=1").json()
    assert (answer["src"], answer["dst"]) == ("d/numa0", "d/lo")
    assert problem(running.get("/v1/paths?src=eth999&dst=numa0")).code == "unknown-name"
    assert "dst is missing" in problem(running.get("/v1/paths?src=eth0")).detail


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/v1/node", "/v1/cluster?summary=1", "/v1/nobody"])
def test_head_is_get_without_the_body(running, path):
    with httpx.Client(base_url=running.url, trust_env=False) as client:
        head, get = client.head(path), client.get(path)
        assert head.content == b""
        assert head.status_code == get.status_code
        kept = ("content-type", "etag", "x-fabricd-generation")
        assert [head.headers.get(name) for name in kept] == [get.headers.get(name) for name in kept]
        assert int(head.headers["content-length"]) > 0
        assert client.get("/livez").text == "alive\n"  # on the same connection


@pytest.mark.parametrize("path", ["/v1/events", "/v1/groups/g/members/0/watch"])
def test_head_opens_no_stream(running, path):
    headers = {"Accept": "text/event-stream"}
    assert httpx.head(running.url + path, headers=headers, trust_env=False).status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not-found"),
        ("GET", "/v1/node/", 404, "not-found"),
        ("POST", "/v1/node", 405, "method-not-allowed"),
        ("BREW", "/v1/node", 405, "method-not-allowed"),
        ("GET", "/v1/node?wait=61", 400, "bad-input"),
        ("GET", "/v1/node?wait=-1", 400, "bad-input"),
        ("GET", "/v1/node?wait=nan", 400, "bad-input"),
        ("GET", "/v1/node?wait=x", 400, "bad-input"),
        ("GET", "/v1/node?generation=99999999999999999999", 400, "bad-input"),
        ("GET", "/v1/nodes/" + "x" * 300, 400, "bad-input"),
        ("GET", "/v1/paths?src=" + "x" * 3000 + "&dst=numa0", 400, "bad-input"),
        ("GET", "/docs", 404, "not-found"),
    ],
)
def test_every_error_is_a_problem(running, method, path, status, code):
    told = problem(httpx.request(method, running.url + path, trust_env=False))
    assert (told.status, told.code) == (status, code)
    assert told.type == f"urn:fabricd:error:{code}"
    assert told.detail


@pytest.mark.parametrize(
    ("path", "meant"), [("/v1/path", "/v1/paths"), ("/v1/finding", "/v1/findings"), ("/favicon.ico", "")]
)
def test_a_path_that_is_nearly_one_is_told(running, path, meant):
    told = problem(running.get(path)).detail
    assert told == f"nothing is at {path}" + (f"; did you mean {meant!r}?" if meant else "")


def test_an_error_tells_the_path_that_was_asked_whatever_the_host_header_says(running):
    with running.unix() as client:
        told = problem(client.post("/livez", headers={"Host": "["}))
    assert told.detail == "POST is not possible at /livez"


def test_names_in_errors_are_not_echoed_without_end(running):
    assert len(running.get("/" + "x" * 8000).content) < 1000


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7470",
        "127.0.0.1.evil.example",
        "[::1",
        "",
        "localhost.evil.example",
        "localhost/v1/reload?",
        "localhost#",
        "evil.example@localhost",
    ],
)
def test_a_local_request_for_another_name_is_refused(running, host):
    told = problem(running.get("/v1/node", headers={"Host": host}))
    assert (told.status, told.code) == (421, "misdirected")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:7470", "10.2.3.4", socket.gethostname()]
)
def test_a_local_request_by_address_or_own_name_is_fine(running, host):
    assert running.get("/v1/node", headers={"Host": host}).status_code == 200


def test_requests_of_foreign_web_pages_are_refused(running):
    told = problem(running.get("/v1/node", headers={"Origin": "https://evil.example"}))
    assert (told.status, told.code) == (403, "access-denied")
    assert problem(running.get("/v1/node", headers={"Origin": "null"})).status == 403
    assert running.get("/v1/node", headers={"Origin": running.url}).status_code == 200
    # What a page's <img> or <script> sends has no Origin.
    assert problem(running.get("/v1/node", headers={"Sec-Fetch-Site": "cross-site"})).status == 403
    assert running.get("/v1/node", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("path", ["/livez", "/v1/node", "/v1/nodes/nobody", "/nothing"])
def test_browsers_are_told_that_no_answer_is_a_page(running, path):
    headers = running.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_a_body_that_is_too_long_is_refused_before_and_while_it_comes(running):
    told = problem(httpx.post(running.url + "/v1/node", content=b"x" * (2 << 20), trust_env=False))
    assert (told.status, told.code) == (413, "too-large")
    port = int(running.url.rpartition(":")[2])
    for length in (b"1048577", b"9" * 19, b"9" * 5000):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"POST /v1/node HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + length + b"\r\n\r\n")
            assert connection.recv(100).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
    assert "unforeseen" not in running.log


@pytest.mark.parametrize(
    "data",
    [
        b"\0\1\2\3 garbage\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/node HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/node HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,  # a TLS client
    ],
)
def test_what_is_no_request_gets_a_problem_and_the_connection_ends(running, data):
    head, _, body = raw(running, data).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 421"))
    assert json.loads(body)["status"] in (400, 421)
    assert running.get("/livez").status_code == 200


def test_a_client_that_leaves_within_its_body_is_no_fault_of_the_daemon(running):
    port = int(running.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        head = b"POST /v1/measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
        connection.sendall(head + b"{")
        time.sleep(0.2)
    count = 'fabricd_http_requests_total{method="POST",route="/v1/measure",status="0"} 1.0'
    eventually(lambda: count in running.get("/metrics").text, told=[running])
    assert "unforeseen" not in running.log


def test_headers_without_end_are_refused(running):
    head, _, body = raw(running, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 40_000).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431")
    assert json.loads(body)["code"] == "head-too-large"


def test_garbage_after_a_good_request_ends_the_connection_only(running):
    answer = raw(running, b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n\0\0\0garbage\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
    assert running.get("/livez").status_code == 200


def test_a_client_that_goes_away_gives_its_long_poll_back(running):
    port = int(running.url.rpartition(":")[2])
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for connection in connections:
        connection.sendall(b"GET /v1/node?wait=60&generation=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    eventually(lambda: "fabricd_long_polls 20.0" in running.get("/metrics").text, told=[running])
    for connection in connections:
        connection.close()
    eventually(lambda: "fabricd_long_polls 0.0" in running.get("/metrics").text, told=[running])


def test_the_description_tells_every_message(running):
    told = running.get("/openapi.json").json()
    schemas = told["components"]["schemas"]
    assert {"Snapshot", "PathAnswer", "Problem", "ClusterStatus", "NetInterface"} <= set(schemas)
    text = json.dumps(told)
    references = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert references <= set(schemas)
    for path, operations in told["paths"].items():
        for operation in operations.values():
            assert "application/problem+json" in operation["responses"]["default"]["content"], path
            assert operation["description"], path
    assert told["paths"]["/v1/node"]["get"]["responses"]["200"]["content"] == {
        "application/json": {"schema": {"$ref": "#/components/schemas/Snapshot"}}
    }


def test_metrics_have_bounded_labels(running):
    for path in ("/nothing-1", "/nothing-2", "/v1/nodes/a", "/v1/nodes/b"):
        running.get(path)
    text = running.get("/metrics").text
    assert "nothing-1" not in text
    assert 'fabricd_http_requests_total{method="GET",route="/v1/nodes/{node}",status="404"}' in text
    assert 'fabricd_probe_outcome{outcome="ok",probe="host"} 1.0' in text
    assert 'fabricd_build_info{version="' in text
    assert 'fabricd_groups{phase="running"} 0.0' in text


def test_too_many_long_polls_are_told_to_come_again(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("max_long_polls = 2\n")
    with daemon(tmp_path, "--config", str(config), socket=False) as small:
        threads = [threading.Thread(target=small.get, args=("/v1/node?wait=1.5&generation=1",)) for _ in range(2)]
        for thread in threads:
            thread.start()
        eventually(lambda: "fabricd_long_polls 2.0" in small.get("/metrics").text, told=[small])
        refusal = small.get("/v1/node?wait=1.5&generation=1")
        assert (problem(refusal).code, refusal.headers["Retry-After"]) == ("busy", "5")
        assert small.get("/v1/node").status_code == 200
        assert small.get("/readyz").text == "ready\nshort of long_polls\n"
        assert 'fabricd_shortages_total{resource="long_polls"} 1.0' in small.get("/metrics").text
        for thread in threads:
            thread.join()


def test_a_slow_body_keeps_only_other_bodies_out(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("max_requests = 1\n")
    with daemon(tmp_path, "--config", str(config), socket=False) as small:
        port = int(small.url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"POST /v1/measure HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")

            def status() -> int:
                return httpx.post(small.url + "/v1/measure", content=b"{}", trust_env=False).status_code

            eventually(lambda: status() == 503, told=[small])
            assert [small.get(path).status_code for path in ("/livez", "/readyz", "/v1/node")] == [200, 200, 200]
        eventually(lambda: status() == 400, told=[small])


def test_handlers_need_no_threads(running):
    """A herd of ranks that join at once would queue for the few threads in which plain dependencies run."""
    with ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(lambda _: running.get("/v1/node").status_code, range(100)))
    assert statuses == [200] * 100
    assert sum(1 for _ in Path(f"/proc/{running.process.pid}/task").iterdir()) < 10


def test_too_many_connections_are_told_to_come_again(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("max_connections = 16\n")
    with daemon(tmp_path, "--config", str(config), socket=False) as small:
        port = int(small.url.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        assert small.get("/livez").status_code == 200  # those without a request make room
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(16)]
        for connection in connections:
            connection.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        eventually(lambda: small.get("/v1/node").status_code == 503, told=[small])
        refused = small.get("/v1/node")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")
        for _ in range(3):  # a supervisor hears that it lives, and why others hear nothing
            assert small.get("/livez").text == "alive\n"
            assert small.get("/readyz").text == "ready\nshort of connections\n"
        for connection in (*idle, *connections):
            connection.close()
        eventually(lambda: small.get("/v1/node").status_code == 200, told=[small])
        assert 'fabricd_short{resource="connections"} 1.0' in small.get("/metrics").text


@pytest.mark.root
def test_a_long_poll_wakes_within_a_second_of_a_change(tmp_path):
    with make_hosts(1, [NetworkSpec("net", "10.9.2.0/24")]) as (host,):

        def start(command, output):
            return host.popen(command, stdout=output, stderr=output)

        with daemon(tmp_path, start=start) as running, running.unix() as client:
            first = client.get("/v1/node")
            known = first.json()["generation"]
            with ThreadPoolExecutor() as pool:
                headers = {"If-None-Match": first.headers["ETag"]}
                by_etag = pool.submit(client.get, "/v1/node?wait=20", headers=headers, timeout=30)
                by_number = pool.submit(client.get, f"/v1/node?wait=20&generation={known}", timeout=30)
                time.sleep(0.3)
                begun = time.monotonic()
                host.run(["ip", "address", "add", "10.99.99.99/32", "dev", "lo"])
                for answer in (by_etag.result(), by_number.result()):
                    assert answer.json()["generation"] > known
                    addresses = [a["address"] for nic in answer.json()["interfaces"] for a in nic["addresses"]]
                    assert "10.99.99.99" in addresses
                assert time.monotonic() - begun < 1.5  # with the time that ip takes to start
