"""Plans and exports of a real daemon: the right answer, refusals with their reason, and nothing left running."""

import asyncio
import os
import re
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from fabric_client.cli.main import app
from fabricd.api.plan_process import Plans
from fabricd.errors import BusyError, InputError
from fabricd.graph.nccl_xml_read import read
from fabricd.model.codec import from_json
from fabricd.model.collective import CollectivePlan
from fabricd.model.plan_request import PlanRequest
from fabricd.model.problem import Problem
from fabricd.paths.nccl.view import NcclView
from fabricd.placement.read import read_placement
from fabricd.plan.job_plan import nodes_of, plan_job
from tests.support.daemon import daemon, eventually
from tests.support.nodes import hgx, mapping


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    file = tmp_path_factory.mktemp("cluster") / "c.jsonl"
    options = ["--template", "h100", "--nodes", "3", "--leaf", "2", "--out", str(file)]
    made = CliRunner().invoke(app, ["simulate", *options])
    assert made.exit_code == 0, made.output
    return file


@pytest.fixture(scope="module")
def serving(cluster, tmp_path_factory):
    with daemon(tmp_path_factory.mktemp("plans"), "--replay", str(cluster), "--name", "h100-0000") as running:
        yield running


def ask(running, seconds=60.0, **request):
    return httpx.post(f"{running.url}/v1/plans", json=request, timeout=seconds, trust_env=False)


def children(pid):
    """Return the processes that a process has started and that run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def test_a_plan_over_two_nodes_has_rings_a_bound_a_time_and_settings(serving):
    answer = ask(serving, ranks=["h100-0001", "h100-0000"], bytes=1 << 28)
    assert answer.status_code == 200, answer.text
    plan = from_json(answer.content, CollectivePlan)
    assert plan.ranks[0] == "h100-0001/gpu0"
    assert plan.ranks[15] == "h100-0000/gpu7"
    assert all(sorted(channel.ring) == list(range(16)) for channel in plan.channels)
    assert 0 < plan.bandwidth_bytes_per_second <= plan.bound_bytes_per_second
    assert plan.predicted.time_seconds > 0
    told = {setting.name: setting for setting in plan.settings}
    assert told["NCCL_NET"].value == "IB"
    assert told["NCCL_NET"].because


def test_single_gpus_and_changes_may_be_asked_for(serving):
    some = from_json(ask(serving, ranks=["gpu1", "h100-0000/gpu3", "gpu5"]).content, CollectivePlan)
    assert some.ranks == ("gpu1", "gpu3", "gpu5")
    weak = from_json(ask(serving, ranks=["h100-0000"], links_down=["gpu0-nvswitch:9"]).content, CollectivePlan)
    assert weak.bandwidth_bytes_per_second <= 9 * 20.6e9, "half of the GPU's 18 links are left"


def nodes_fetched(running):
    text = httpx.get(f"{running.url}/metrics", timeout=10, trust_env=False).text
    counted = r'^fabricd_http_requests_total\{method="GET",route="/v1/nodes/\{node\}",status="200"\} (\d+)'
    found = re.search(counted, text, re.MULTILINE)
    return int(found[1]) if found else 0


@pytest.mark.parametrize(
    ("options", "ranks", "fetched"),
    [
        (("--nodes", "h100-[0001-0002]", "--collective", "all_gather"), 16, 0),
        (("--ranks", "0-2,8-10", "--port-speed", "h100-0001/mlx5_3=25"), 6, 2),
        (("--nodes", "h100-0002", "--nccl-env", "NCCL_ALGO=Ring"), 8, 1),
    ],
)
def test_the_command_line_lets_the_daemon_plan_and_fetches_no_more_than_it_needs(
    serving, fabricctl, options, ranks, fetched
):
    before = nodes_fetched(serving)
    status, out, err = fabricctl("plan", "--from", serving.url, "--json", *options)
    assert status == 0, err
    plan = from_json(out.encode(), CollectivePlan)
    assert len(plan.ranks) == ranks
    assert nodes_fetched(serving) - before == fetched
    assumed = [reason for reason in plan.because if reason.startswith("assumed")]
    assert assumed == ["assumed: h100-0001/mlx5_3 carries 25 GB/s"] * ("--port-speed" in options)


@pytest.mark.parametrize(
    ("request_", "status", "code", "told"),
    [
        ({"ranks": ["nowhere"]}, 404, "unknown-name", "no node called 'nowhere'"),
        ({"ranks": ["h100-0000/gpu9"]}, 404, "unknown-name", "no GPU called 'h100-0000/gpu9'"),
        ({"without": ["mlx9"]}, 404, "unknown-name", "no GPU or port called 'mlx9'"),
        ({"bytes": 0}, 400, "bad-input", "0 bytes"),
        ({"ranks": ["x" * 400]}, 400, "bad-input", "more than 300 characters"),
        ({"ranks": 7}, 400, "parse-error", "not a valid PlanRequest"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_reason(serving, request_, status, code, told):
    answer = ask(serving, **request_)
    problem = from_json(answer.content, Problem)
    assert (answer.status_code, problem.code) == (status, code), problem
    assert told in problem.detail


@pytest.mark.parametrize(
    ("asked", "told"),
    [({"collective": "gossip"}, "no collective 'gossip'"), ({"kind": "stars"}, "no kind"), ({"view": "x"}, "no view")],
)
def test_plans_that_there_are_not(asked, told):
    with pytest.raises(InputError, match=told):
        plan_job(PlanRequest(**asked), {"a": hgx("a")})


def test_nodes_are_named_by_name_or_by_id_where_names_clash():
    a, b, twin = hgx("a"), hgx("b"), replace(hgx("x"), node=replace(hgx("b").node, node_id="id-twin"))
    known = mapping(a, b, twin)
    assert list(nodes_of(PlanRequest(), known)) == ["a"]
    assert list(nodes_of(PlanRequest(ranks=("id-b/gpu0", "gpu1", "id-twin")), known)) == ["id-b", "a", "id-twin"]
    with pytest.raises(InputError, match="2 nodes are called 'b'"):
        nodes_of(PlanRequest(ranks=("b",)), known)


def test_a_client_that_leaves_and_a_daemon_that_ends_take_the_planner_along(cluster, tmp_path):
    with daemon(tmp_path, "--replay", str(cluster), "--name", "h100-0000") as running:
        everything = {"ranks": ["h100-0000", "h100-0001", "h100-0002"], "kind": "trees", "routes": "free"}
        with pytest.raises(httpx.ReadTimeout):
            ask(running, seconds=0.6, **everything)
        eventually(lambda: not children(running.process.pid), told=[running])
        with pytest.raises(httpx.ReadTimeout):
            ask(running, seconds=0.3, **everything)
        left = children(running.process.pid)
        running.stop()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))


def test_plans_are_bounded_in_number_and_time():
    async def scene():
        plans = Plans(seconds=0.2)
        nodes = {"a": hgx("a")}
        begun = time.monotonic()
        asked = [asyncio.create_task(plans.make(PlanRequest(), nodes)) for _ in range(12)]
        await asyncio.sleep(0)
        refused = [task.exception() for task in asked if task.done()]
        for task in asked[1:]:
            task.cancel()
        with pytest.raises(InputError, match="the plan took more"):
            await asked[0]
        await asyncio.gather(*asked, return_exceptions=True)
        assert time.monotonic() - begun < 10
        return refused

    before = children(os.getpid())  # the daemon of the other tests
    refused = asyncio.run(scene())
    assert len(refused) == 3
    assert all(isinstance(error, BusyError) for error in refused)
    assert children(os.getpid()) == before


def test_exports_are_what_the_programs_read(serving):
    topology = serving.get("/v1/export/nccl-topo.xml?node=h100-0002")
    assert topology.headers["content-type"] == "application/xml"
    assert len(NcclView(read(topology.text)).names()) == 18
    slurm = serving.get("/v1/export/slurm-topology").text
    assert len(read_placement(slurm.encode(), "topology.conf").positions) == 3
    assert serving.get("/v1/export/hostfile").text.splitlines() == [f"h100-000{at} slots=8" for at in range(3)]
    assert serving.get("/v1/export/rankfile").text.count("\n") == 24
    assert serving.get("/v1/export/dot").text.startswith("graph fabric {")
    assert "GPU7" in serving.get("/v1/export/matrix.txt").text


@pytest.mark.parametrize(
    ("path", "told"),
    [("/v1/export/pdf", "no format called 'pdf'"), ("/v1/export/dot?node=x", "no node called 'x'")],
)
def test_exports_of_nothing_are_refused(serving, path, told):
    answer = serving.get(path)
    assert answer.status_code == 404
    assert told in from_json(answer.content, Problem).detail
