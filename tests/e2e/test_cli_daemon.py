"""fabricctl topo, paths and nodes against real daemons, over TCP and over the Unix socket."""

import json
import subprocess

import pytest

from demo.daemons import program
from fabricd.model.cluster import ClusterStatus
from fabricd.model.codec import from_json
from fabricd.model.path import PathAnswer
from tests.support.daemon import daemon, eventually


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two daemons of this host under two names, the first of which knows the second."""
    folder = tmp_path_factory.mktemp("cli")
    with daemon(folder, name="far") as far, daemon(folder, "--peer", far.url, name="near") as near:
        eventually(lambda: len(near.get("/v1/cluster").json()["nodes"]) == 2, told=[near, far])
        eventually(
            lambda: all(one["state"] == "ok" for one in near.get("/v1/cluster").json()["nodes"]), told=[near, far]
        )
        yield near, far


def fabricctl(*arguments):
    done = subprocess.run([program("fabricctl"), *arguments], capture_output=True, text=True, timeout=30, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_nodes(two):
    near, far = two
    done = fabricctl("nodes", "--from", near.url)
    assert done.returncode == 0
    first, second = [line.split() for line in done.stdout.splitlines()[1:]]
    assert first[:4] == ["near", "(this", "node)", "ok"]
    assert second[:2] == ["far", "ok"]
    assert far.url in second
    told = from_json(fabricctl("nodes", "--json", "--from", near.url).stdout, ClusterStatus)
    assert [one.name for one in told.nodes] == ["near", "far"]


def test_topo_of_this_node_and_of_another(two):
    near, _ = two
    over_tcp = fabricctl("topo", "--from", near.url)
    assert over_tcp.stdout.startswith("near: ")
    over_unix = fabricctl("topo", "--from", f"unix:{near.socket}")
    assert over_unix.stdout == over_tcp.stdout
    assert fabricctl("topo", "--from", near.url, "--node", "far").stdout.startswith("far: ")
    unknown = fabricctl("topo", "--from", near.url, "--node", "nowhere")
    assert (unknown.returncode, "known: near, far" in unknown.stderr) == (2, True)


def test_paths_are_the_daemons_own_answer(two):
    near, _ = two
    done = fabricctl("paths", "numa0", "far/numa0", "--json", "--explain", "--from", near.url)
    answer = near.get("/v1/paths?src=numa0&dst=far/numa0&explain=true").json()
    assert json.loads(done.stdout) == answer
    assert (answer["src"], answer["dst"]) == ("near/numa0", "far/numa0")
    assert done.returncode == (0 if answer["paths"] else 1)
    everything = from_json(fabricctl("paths", "--json", "--from", near.url).stdout, PathAnswer)
    assert all(path.src.startswith("near/") for path in everything.paths)


def test_a_name_that_does_not_exist_is_told_as_the_daemon_tells_it(two):
    near, _ = two
    done = fabricctl("paths", "nothing0", "numa0", "--from", near.url)
    assert done.returncode == 2
    assert "no device on near called 'nothing0'" in done.stderr
