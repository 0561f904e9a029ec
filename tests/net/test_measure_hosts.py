"""Measurements between daemons on different hosts, over networks whose speed no host can see."""

import asyncio
import secrets
import time
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from demo.daemons import Daemon, wait_for_peers
from demo.hosts import NetworkSpec, make_hosts
from fabricd.model.codec import from_json, to_json
from fabricd.model.measurement import Measurement, MeasureRequest

PORT = 7470
SLOW_BYTES_PER_SECOND = 200e6 / 8
NETWORKS = [
    NetworkSpec("fast", "10.61.0.0/24"),
    NetworkSpec("slow", "10.62.0.0/24", bits_per_second=200_000_000),
    NetworkSpec("third", "10.63.0.0/24"),
]

pytestmark = pytest.mark.root


class Cluster:
    """Two hosts with a daemon each; requests are made from inside the first one."""

    def __init__(self, hosts, token):
        self.hosts = hosts
        self.token = token

    def post(self, path, body, *, url="http://127.0.0.1:7470", token=None, seconds=20.0) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}"} if token else {}

        def ask():
            return httpx.post(url + path, content=to_json(body), headers=headers, timeout=seconds, trust_env=False)

        return self.hosts[0].namespaces.inside(ask)

    def measure(self, network, *, src=None, dst=None, **fields) -> httpx.Response:
        src_address = src or self.hosts[0].link(network).address
        dst_address = dst or self.hosts[1].link(network).address
        facts = {"dst_node": "h1", "src_address": src_address, "dst_address": dst_address}
        return self.post("/v1/measure", MeasureRequest(**{**facts, **fields}))

    def measured(self, network, **fields) -> Measurement:
        return from_json(self.measure(network, **fields).raise_for_status().content, Measurement)


@contextmanager
def cluster(folder):
    token = secrets.token_hex(32)
    (folder / "token").touch(mode=0o600)
    (folder / "token").write_text(token)
    with ExitStack() as stack:
        hosts = stack.enter_context(make_hosts(2, NETWORKS))
        urls = [f"http://{host.link('third').address}:{PORT}" for host in hosts]
        daemons = []
        for host in hosts:
            peers = [word for url in urls for word in ("--peer", url)]
            options = ["--host", "0.0.0.0", "--port", str(PORT), "--node-id", host.name, "--name", host.name]
            options += ["--token-file", str(folder / "token"), *peers]

            def start(command, output, host=host):
                return host.popen(command, stdout=output, stderr=output)

            daemons.append(stack.enter_context(Daemon(host.name, folder, options, start=start)))
        for daemon in daemons:
            daemon.wait_ready()
        for host in hosts:
            wait_for_peers(host, 2)
        yield Cluster(hosts, token)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("measure")) as found:
        yield found


def test_the_shaped_network_is_seen_for_what_it_is(made):
    slow, fast = made.measured("slow"), made.measured("fast")
    # 200 Mbit/s less the headers; a bucket of 256 KB lets the first bytes pass at once.
    assert 0.85 * SLOW_BYTES_PER_SECOND < slow.bandwidth_bytes_per_second < 1.01 * SLOW_BYTES_PER_SECOND
    assert fast.bandwidth_bytes_per_second > 4 * slow.bandwidth_bytes_per_second
    assert 0 < fast.latency_seconds < 0.01
    assert (fast.src_interface, fast.dst_interface, fast.network) == ("fast", "fast", "10.61.0.0/24")
    assert (fast.src_node, fast.dst_node) == ("h0", "h1")


def test_bytes_go_over_the_network_that_is_measured_and_stay_within_bounds(made):
    before = {link.network: link.counters().sent_bytes for link in made.hosts[0].links.values()}
    found = made.measured("fast", max_age_seconds=0.0)
    sent = {link.network: link.counters().sent_bytes - before[link.network] for link in made.hosts[0].links.values()}
    assert found.bytes_moved <= 2 * (16 << 20)
    assert sent["fast"] > found.bytes_moved * 0.45
    assert sent["slow"] < 100_000


def test_a_measurement_takes_little_time_also_on_a_slow_network(made):
    begun = time.monotonic()
    made.measured("slow", max_age_seconds=0.0)
    assert time.monotonic() - begun < 2.5


def test_it_is_remembered_with_its_age(made):
    first = made.measured("fast", max_age_seconds=0.0)
    time.sleep(0.3)
    again = made.measured("fast")
    assert again.bandwidth_bytes_per_second == first.bandwidth_bytes_per_second
    assert again.age_seconds >= 0.3
    assert made.measured("fast", max_age_seconds=0.0).age_seconds < 0.3


def test_a_pulled_cable_is_no_way_and_its_reason_is_told(made):
    made.hosts[1].link("fast").pull()
    try:
        found = made.measured("fast", max_age_seconds=0.0)
        assert not found.reachable
        assert found.bandwidth_bytes_per_second is None
        assert found.reason.startswith(("no answer within 2 s", "unreachable"))
    finally:
        made.hosts[1].link("fast").plug()


def test_an_address_of_another_network_is_not_reached_from_this_one(made):
    """Whatever the routes say, bytes leave by the interface that is measured."""
    found = made.measured("fast", dst=made.hosts[1].link("slow").address, max_age_seconds=0.0)
    assert not found.reachable


def test_it_is_no_scanner(made):
    refusals = {
        "not of this node": made.measure("fast", src="10.99.0.1"),
        "not of the peer": made.measure("fast", dst="10.61.0.200"),
        "loopback of the peer is its own": made.measure("fast", dst="8.8.8.8"),
        "not a peer": made.measure("fast", dst_node="somebody"),
        "itself": made.measure("fast", dst_node="h0"),
    }
    assert {what: answer.status_code for what, answer in refusals.items()} == {
        "not of this node": 400,
        "not of the peer": 400,
        "loopback of the peer is its own": 400,
        "not a peer": 404,
        "itself": 404,
    }


def test_other_hosts_need_the_token(made):
    url = f"http://{made.hosts[1].link('fast').address}:{PORT}"
    body = {"address": made.hosts[1].link("fast").address, "client_address": made.hosts[0].link("fast").address}
    assert made.post("/v1/measure/listen", body, url=url).status_code == 401
    assert made.post("/v1/measure/listen", body, url=url, token="wrong").status_code == 401
    answer = made.post("/v1/measure/listen", body, url=url, token=made.token)
    assert answer.status_code == 200
    assert (
        made.post("/v1/measure/listen", {**body, "address": "10.9.9.9"}, url=url, token=made.token).status_code == 400
    )
    assert (
        made.post("/v1/measure/listen", {**body, "client_address": "x"}, url=url, token=made.token).status_code == 400
    )


def test_many_requests_at_once_are_served_in_turn(made):
    def ask():
        async def all_of_them():
            request = {"dst_node": "h1", "max_age_seconds": 60.0}
            hosts = [host.link("third").address for host in made.hosts]
            body = to_json(MeasureRequest(src_address=hosts[0], dst_address=hosts[1], **request))
            async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
                posts = [client.post("http://127.0.0.1:7470/v1/measure", content=body) for _ in range(20)]
                return [answer.status_code for answer in await asyncio.gather(*posts)]

        return asyncio.run(all_of_them())

    assert made.hosts[0].namespaces.inside(ask) == [200] * 20


def test_listeners_are_few(made):
    url = f"http://{made.hosts[1].link('fast').address}:{PORT}"
    body = {"address": made.hosts[1].link("fast").address, "client_address": made.hosts[0].link("fast").address}
    answers = [made.post("/v1/measure/listen", body, url=url, token=made.token).status_code for _ in range(6)]
    assert answers.count(503) >= 2
