"""Paths in a cluster that a daemon serves from a file: by HTTP, by the command line, and from the file itself."""

import json
from urllib.parse import urlencode

import pytest

from fabricd.model.codec import from_json
from fabricd.model.path import PathAnswer, Transport
from tests.e2e.test_cluster_replay import fabricctl
from tests.support.daemon import daemon

PAIR = {"src": "h100-0001/gpu3", "dst": "h100-0002/gpu5"}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paths")
    file = folder / "c.jsonl"
    # Each rail is a fabric of its own, so that only a relay leads from one to another.
    assert fabricctl("simulate", "-t", "h100", "-n", 4, "--spines", 0, "--out", file)[0] == 0
    with daemon(folder, "--replay", str(file), "--name", "h100-0000") as running:
        yield running, file


def ask(running, **query):
    return running.get("/v1/paths?" + urlencode(query))


def test_policy_bytes_and_flows_count(served):
    running, _ = served
    told = from_json(ask(running, **PAIR, bytes=65536, flows=4, policy="priority", explain=1).content, PathAnswer)
    assert (told.policy, told.bytes, told.flows) == ("priority", 65536, 4)
    best = told.paths[0]
    assert (best.transport, best.ends[0].relay) == (Transport.INFINIBAND, "h100-0001/gpu5")
    assert best.estimate.share_bytes_per_second == best.bandwidth_bytes_per_second / 4
    assert best.estimate.transfer_seconds == 65536 / best.estimate.share_bytes_per_second
    assert {one.name for one in told.rejected} >= {"nvlink"}


@pytest.mark.parametrize("query", [{"bytes": 0}, {"bytes": 1 << 61}, {"flows": 0}, {"policy": "cheapest"}])
def test_what_is_out_of_bounds_is_refused(served, query):
    running, _ = served
    answer = ask(running, **PAIR, **query)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith(f"{next(iter(query))} is ")


def test_the_command_line_and_the_file_say_the_same(served):
    running, file = served
    options = ("paths", *PAIR.values(), "--bytes", "64K", "--flows", 4, "--policy", "priority", "--explain")
    texts = [fabricctl(*options, "--from", origin) for origin in (running.url, file)]
    assert texts[0] == texts[1]
    assert "64K in " in texts[0][1]
    assert "1 of 4 shares of the path" in texts[0][1]
    answers = [json.loads(fabricctl(*options, "--json", "--from", origin)[1]) for origin in (running.url, file)]
    assert answers[0] == answers[1]
    status, _, fault = fabricctl(*options, "--bytes", "many", "--from", file)
    assert (status, "not a size" in fault) == (2, True)
