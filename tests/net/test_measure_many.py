"""fabricctl measure between hosts: the one with a slow port is named, and so is a cable that is pulled."""

import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from demo.daemons import wait_for_peers
from demo.hosts import NetworkSpec, make_hosts
from fabricd.model.codec import from_json, to_json
from fabricd.model.measurement import MAX_PAIRS, Pair, PairsAnswer, PairsRequest
from tests.support.host_daemons import PORT, daemons

pytestmark = pytest.mark.root
URL = f"http://127.0.0.1:{PORT}/v1/measure/pairs"


class Hosts:
    """Three hosts with a daemon each; the first holds the map, the others are its agents."""

    def __init__(self, hosts):
        self.hosts = hosts

    def fabricctl(self, *words, at=0):
        """Run a command line on a host; return exit status, standard output and standard error."""
        command = [str(Path(sys.executable).with_name("fabricctl")), *words]
        run = self.hosts[at].popen(command, stdout=-1, stderr=-1)
        out, err = run.communicate(timeout=60)
        return run.returncode, out, err

    def post(self, *bodies):
        """Ask the first host's daemon, all at once; return its answers."""

        async def all_of_them():
            async with httpx.AsyncClient(trust_env=False, timeout=30.0) as client:
                return await asyncio.gather(*(client.post(URL, content=to_json(body)) for body in bodies))

        return self.hosts[0].namespaces.inside(lambda: asyncio.run(all_of_them()))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with ExitStack() as stack:
        hosts = stack.enter_context(
            make_hosts(3, [NetworkSpec("net", "10.71.0.0/24"), NetworkSpec("data", "10.72.0.0/24")])
        )
        urls = [f"http://{host.link('net').address}:{PORT}" for host in hosts]
        maps = f'map_nodes = ["{urls[0]}"]\n'
        agent = maps + 'role = "agent"\n'
        stack.enter_context(daemons(tmp_path_factory.mktemp("many"), hosts, urls, [maps, agent, agent]))
        wait_for_peers(hosts[0], 3)
        yield Hosts(hosts)


def pair(src=0, dst=1, **fields):
    facts = {
        "network": "10.71.0.0/24", "src_node": f"h{src}", "dst_node": f"h{dst}", "src_interface": "net",
        "dst_interface": "net", "src_address": f"10.71.0.{src + 1}", "dst_address": f"10.71.0.{dst + 1}",
    }  # fmt: skip
    return Pair(**(facts | fields))


def test_the_host_with_a_slow_port_is_named_on_its_network_alone(made):
    shape = ["root", "tbf", "rate", "200mbit", "burst", "256kb", "latency", "50ms"]
    made.hosts[2].run(["tc", "qdisc", "add", "dev", "data", *shape])
    try:
        status, out, err = made.fabricctl("measure", at=1)  # by an agent, which passes it on
        assert (status, "round 3: 1 pair of 10.72.0.0/24" in err) == (1, True), err
        rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("10.7")}
        assert "h2/data" in rows["10.72.0.0/24"]
        assert "warning  measured-slow  h2" in out
        assert [host for host in ("h0", "h1", "h2") if f"{host}/data is slow" in out] == ["h2"], out
        made.hosts[0].run(["sh", "-c", "echo 127.0.1.1 h0 > /run/hosts"])
        told = json.loads(made.fabricctl("doctor", "--json")[1])["findings"]
        assert ("h2", "data") in {(one["node"], one["subject"]) for one in told if one["code"] == "measured-slow"}
        assert [one["evidence"][0] for one in told if one["code"] == "name-loopback"] == ["h0: 127.0.1.1"]
    finally:
        made.hosts[2].run(["tc", "qdisc", "del", "dev", "data", "root"])


def test_a_pulled_cable_is_told_with_both_ends(made):
    made.hosts[1].link("data").pull()
    try:
        answer = from_json(
            made.post(PairsRequest(pairs=(pair(2, 0), pair(0, 1, network="data", src_interface="data",
            dst_interface="data", src_address="10.72.0.1", dst_address="10.72.0.2"))))[0].content, PairsAnswer,
        )  # fmt: skip
        assert {(one.network, one.reachable) for one in answer.measured} == {("10.71.0.0/24", True), ("data", False)}
    finally:
        made.hosts[1].link("data").plug()


def test_what_cannot_be_measured_is_no_verdict(made):
    wrong = pair(0, 1, dst_address="10.71.0.77")
    unknown, itself = pair(7, 8), pair(1, 1)
    answer = from_json(made.post(PairsRequest(pairs=(wrong, unknown, itself, pair())))[0].content, PairsAnswer)
    assert [one.dst_node for one in answer.measured] == ["h1"]
    reasons = {one.pair: one.reason for one in answer.unmeasured}
    assert "is not an address of h1" in reasons[wrong]
    assert "h7" in reasons[unknown]
    assert "cannot be both ends" in reasons[itself]


def test_questions_are_bounded_and_wait_for_each_other(made):
    many = PairsRequest(pairs=tuple(pair(dst_address=f"10.71.1.{number}") for number in range(MAX_PAIRS + 1)))
    assert made.post(many)[0].status_code == 400
    assert made.post(PairsRequest(pairs=(pair(), pair())))[0].status_code == 400
    several = PairsRequest(pairs=(pair(0, 1), pair(1, 2), pair(0, 2)))
    for answer in made.post(several, several):
        assert len(from_json(answer.content, PairsAnswer).measured) == 3


def test_a_network_that_is_none_is_told_with_those_there_are(made):
    status, _, err = made.fabricctl("measure", "--network", "10.71.0.0/42")
    assert (status, "10.71.0.0/24" in err) == (2, True)
