"""PyTorch and JAX over two hosts whose names stand for a slow network, beside a faster one: who takes which."""

import json
import shlex
import sys
import time

import pytest

from demo.daemons import program
from demo.hosts import NetworkSpec
from tests.support.host_daemons import hosts_with_daemons
from tests.support.host_ranks import host_ranks

#: Hosts' names are addresses of the first.
NETWORKS = [NetworkSpec("front", "10.71.0.0/24", bits_per_second=400_000_000), NetworkSpec("data", "10.72.0.0/24")]
#: Four all_reduces move twice as much; the last may still be on its way when the counters are read.
MOVED_BYTES = 2 * 4_000_000

pytestmark = [pytest.mark.root, pytest.mark.frameworks]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with hosts_with_daemons(tmp_path_factory.mktemp("torch-hosts"), NETWORKS, "front") as made:
        yield made


def run(hosts, commands, environment):
    """Return what each rank said."""
    with host_ranks(hosts, commands, environment) as jobs:
        return [said(job) for job in jobs]


def said(job):
    """Return what a rank says until it ends well: facts of several lines together."""
    output, errors = job.communicate(timeout=80)
    assert job.returncode == 0, errors
    lines = [line for line in output.splitlines() if line.startswith("{")]  # JAX's Gloo prints there, too
    return {name: value for line in lines for name, value in json.loads(line).items()}


def scene(framework, *words):
    return [sys.executable, "-m", f"tests.e2e.rank_{framework}", *words]


@pytest.mark.parametrize(
    ("framework", "places", "ranks", "met"),
    [
        ("torch", (0, 1, 0), [0, 2, 1], "store: on 10.72.0.1 port"),  # in the plan's order, each host's together
        ("jax", (0, 1), [0, 1], "coordinator: at 10.72.0.1:"),
    ],
    ids=["torch", "jax"],
)
def test_the_plan_takes_the_measured_faster_network(cluster, framework, places, ranks, met):
    hosts, environment = cluster
    where = [hosts[place] for place in places]
    told = run(where, [scene(framework, "moves")] * len(where), {**environment, "FABRICD_GROUP": framework})
    assert [one["launcher_rank"] for one in told] == list(range(len(where)))
    assert [one["rank"] for one in told] == ranks
    for one in told:
        assert one["found"] == [sum(range(1, len(where) + 1))] * 4
        assert one["sent"]["data"] > MOVED_BYTES
        assert one["sent"]["front"] < MOVED_BYTES / 50
        assert "chosen 10.72.0.0/24" in one["explain"]
        assert met in one["explain"]


def test_unmodified_scripts_walk_into_the_slow_network_and_are_kept_off_it(cluster):
    hosts, environment = cluster
    script = ["-m", "tests.e2e.rank_torch", "plain"]
    meeting_point = {"MASTER_ADDR": hosts[0].link("front").address, "MASTER_PORT": "29500"}  # nothing else runs there
    alone = run(hosts, [[sys.executable, *script]] * 2, meeting_point)
    met = run(hosts, [["sh", "-c", by_torchrun(rank, script)] for rank in range(2)], environment)
    for told in (alone, met):
        assert [(one["rank"], one["found"]) for one in told] == [(0, [3.0] * 4), (1, [3.0] * 4)]
    assert min(one["sent"]["front"] for one in alone) > MOVED_BYTES
    for one in met:
        assert one["sent"]["data"] > MOVED_BYTES
        assert one["sent"]["front"] < MOVED_BYTES / 50


def test_run_gives_its_ranks_what_meet_gives_to_other_launchers(cluster):
    hosts, environment = cluster
    say = (
        "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith(('GLOO', 'MASTER'))}))"
    )
    told = run(
        hosts, [[*fabricctl("run", rank), "-n", "1", "--", sys.executable, "-c", say] for rank in (0, 1)], environment
    )
    assert [(one["GLOO_SOCKET_IFNAME"], one["MASTER_ADDR"]) for one in told] == [("data", "10.72.0.1")] * 2


def fabricctl(command, rank):
    return [program("fabricctl"), command, "--group", command, "--nnodes", "2", "--node-rank", str(rank)]


def by_torchrun(rank, script):
    launch = [program("torchrun"), "--nnodes", "2", "--node-rank", str(rank)]
    launch = f"{shlex.join(launch)} --master-addr $MASTER_ADDR --master-port $MASTER_PORT {shlex.join(script)}"
    return f'eval "$({shlex.join(fabricctl("meet", rank))})" && exec {launch}'


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_rank_behind_a_cut_cable_is_lost_in_seconds_although_no_goodbye_arrives(cluster, framework):
    hosts, environment = cluster
    with host_ranks(
        hosts, [scene(framework, "is_cut_off")] * 2, {**environment, "FABRICD_GROUP": f"cut-{framework}"}
    ) as jobs:
        for job in jobs:
            assert "pid" in next(line for line in job.stdout if line.startswith("{"))
        hosts[1].link("data").pull()
        try:
            jobs[1].kill()
            begun = time.monotonic()
            assert said(jobs[0]) == {"ranks": [1]}
            assert time.monotonic() - begun < 20  # Gloo alone would wait for half an hour
        finally:
            hosts[1].link("data").plug()
