"""``verify()`` on two hosts with two networks: confirmed on the planned one, and refuted when forced onto the other."""

import json
import subprocess
import sys

import pytest

from demo.hosts import NetworkSpec
from tests.support.host_daemons import hosts_with_daemons
from tests.support.host_ranks import host_ranks, run_host_ranks

NETWORKS = [NetworkSpec("front", "10.73.0.0/24", bits_per_second=400_000_000), NetworkSpec("data", "10.74.0.0/24")]

pytestmark = [pytest.mark.root, pytest.mark.mpi]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with hosts_with_daemons(tmp_path_factory.mktemp("verify-hosts"), NETWORKS, "front") as made:
        yield made


def verified(cluster, group, ranks_of_hosts=(0, 1), **variables):
    """Return what the ranks, one entry for each with its host, found."""
    hosts, environment = cluster
    places = [hosts[one] for one in ranks_of_hosts]
    command = [sys.executable, "-m", "tests.e2e.rank_verifies", str(4 << 20)]
    ended = run_host_ranks(places, command, {**environment, "FABRICD_GROUP": group, **variables})
    return [one.json() for one in ended]


@pytest.mark.timeout(120)
def test_the_planned_network_is_confirmed_with_what_each_host_carried(cluster):
    told = verified(cluster, "planned", (0, 0, 1))
    assert [one["verdict"] for one in told] == ["CONFIRMED"] * 3
    assert len({one["told"] for one in told}) == 1
    lines = told[0]["told"].splitlines()
    assert [line.split(" sent ")[0] for line in lines[1:]] == ["h0: data (planned)", "h1: data (planned)"]


@pytest.mark.timeout(120)
def test_another_network_is_seen_on_every_rank(cluster):
    told = verified(cluster, "forced", UCX_NET_DEVICES="front")
    assert [one["verdict"] for one in told] == ["WRONG_INTERFACE"] * 2
    assert "h0: " in told[0]["told"]
    assert "front sent" in told[0]["told"]
    assert "data (planned)" in told[0]["told"]


@pytest.mark.timeout(120)
def test_where_both_networks_may_be_used_the_figures_decide(cluster):
    told = verified(cluster, "both", UCX_NET_DEVICES="front,data")
    used = "front sent" in told[0]["told"]  # MPI's choice; less than a tenth is not told
    assert [one["verdict"] for one in told] == ["WRONG_INTERFACE" if used else "CONFIRMED"] * 2
    assert "data (planned) sent" in told[0]["told"]


@pytest.mark.frameworks
@pytest.mark.timeout(120)
def test_gloo_takes_the_planned_network_and_the_loopback_inside_a_host(cluster):
    told = verified(cluster, "gloo", (0, 0, 1), ENGINE="gloo")
    assert [one["verdict"] for one in told] == ["CONFIRMED"] * 3
    assert "h0: data (planned) sent" in told[0]["told"]


@pytest.mark.timeout(120)
def test_ranks_of_one_host_that_talk_through_sockets(cluster):
    # What a host sends to its own address goes through its loopback interface.
    told = verified(cluster, "loopback", (0, 0), MPIR_CVAR_NOLOCAL="1", UCX_TLS="tcp,self", UCX_NET_DEVICES="data")
    assert [one["verdict"] for one in told] == ["FELL_BACK_TO_SOCKET"] * 2
    assert "shared memory is planned; lo sent" in told[0]["told"]


@pytest.mark.timeout(120)
def test_a_cable_that_is_pulled_makes_the_plan_stale_and_what_needs_a_restart_is_named(cluster):
    hosts, environment = cluster
    command = [sys.executable, "-m", "tests.e2e.rank_stale"]
    with host_ranks(hosts, [command] * 2, {**environment, "FABRICD_GROUP": "stale"}, stdin=subprocess.PIPE) as jobs:
        assert [json.loads(job.stdout.readline()) for job in jobs] == [{"stale": [], "total": 2}] * 2
        hosts[1].link("data").pull()
        try:
            for told in [json.loads(job.stdout.readline()) for job in jobs]:
                assert "h1: data (planned) link down: up -> down" in told["stale"]
                assert "UCX_NET_DEVICES=front instead of data (on ranks 0-1)" in told["refused"]
        finally:
            hosts[1].link("data").plug()
        for job in jobs:
            job.stdin.write("\n")
            job.stdin.flush()
        for job in jobs:
            out, errors = job.communicate(timeout=40)
            assert job.returncode == 0, errors
            assert (json.loads(out), errors) == ({"total": 2, "group": "stale+2"}, "")
