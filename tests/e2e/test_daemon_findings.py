"""What real daemons find wrong: with a peer that is gone, through an agent, in metrics, and by fabricctl doctor."""

import json
import os
import subprocess
from collections.abc import Sequence

from demo.daemons import program
from tests.support.clusters import cluster, peer_arguments
from tests.support.daemon import RunningDaemon, daemon, eventually


def found(running: RunningDaemon, query: str = "") -> list[tuple[str, str]]:
    answer = running.get(f"/v1/findings{query}")
    assert answer.status_code == 200, answer.text
    return [(one["code"], one["node"]) for one in answer.json()["findings"]]


def doctor(running: RunningDaemon, *words: str, **settings: str) -> tuple[int, str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "SLURM_", "UCX_"))}
    environ |= {"FABRICD_URL": running.url, "FABRICD_SOCKET": running.socket, **settings}
    command: Sequence[str] = [program("fabricctl"), "doctor", *words]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout + ended.stderr


def test_a_peer_that_is_gone_is_found_and_named(tmp_path):
    arguments = peer_arguments(tmp_path)
    with daemon(tmp_path, *arguments[0], name="n0") as n0:
        with daemon(tmp_path, *arguments[1], name="n1") as n1:
            eventually(lambda: n0.get("/v1/findings").json()["nodes"] == 2, 15, told=[n0, n1])
            assert "n1" not in {node for code, node in found(n0) if code.startswith("node-")}
            assert found(n0, "?nodes=n[0-1]") == found(n0)
            n1.kill()
        eventually(lambda: ("node-stale", "n1") in found(n0), 15, told=[n0])
        assert ("node-stale", "n1") not in found(n0, "?nodes=n0")
        assert ("node-stale", "n1") in found(n0, "?nodes=n1")
        status, text = doctor(n0, "--at-least", "warning")
        assert status == 1
        assert "node-stale  n1" in text
        assert "n1 did not answer lately" in text


def test_wrong_questions_are_answered_with_what_there_is(tmp_path):
    with daemon(tmp_path, name="n0") as n0:
        unknown = n0.get("/v1/findings?nodes=n7")
        assert (unknown.status_code, unknown.json()["code"]) == (404, "unknown-name")
        assert "n0" in unknown.json()["detail"] + unknown.json()["hint"]
        assert n0.get("/v1/findings?nodes=n[").status_code == 400
        assert n0.get(f"/v1/findings?nodes={'n' * 9000}").status_code in (400, 414, 422)


def test_a_nodelist_that_the_daemon_does_not_know_says_whose_it_is_and_how_it_learns_of_them(tmp_path):
    with daemon(tmp_path, name="n0") as n0:
        status, text = doctor(n0, SLURM_JOB_NODELIST="n[0-1]")
        assert status == 2
        assert "no node called 'n1' (known: n0; SLURM_JOB_NODELIST names it; " in text
        assert "fabricd serve --peer http://n1:7470" in text
        assert "--nodes names it" in doctor(n0, "--nodes", "n7")[1]


def test_machines_with_one_identity_are_told_to_who_asks_the_doctor_on_one_of_them(tmp_path):
    first, second = peer_arguments(tmp_path)
    same = ("--node-id", "cloned")
    with daemon(tmp_path, *first, *same, name="n0") as n0, daemon(tmp_path, *second, *same, name="n1") as n1:
        eventually(lambda: ("node-conflict", "") in found(n0), 15, told=[n0, n1])
        status, text = doctor(n0)
        assert status == 1
        assert "set node_id on each" in text


def test_settings_of_the_process_that_asks_are_looked_at(tmp_path):
    with daemon(tmp_path, name="n0") as n0:
        status, text = doctor(n0, "--at-least", "error", NCCL_SOCKET_IFNAME="ens9", GLOO_SOCKET_IFNAME="^lo")
        assert status == 1
        assert "NCCL_SOCKET_IFNAME=ens9: no interface that is up here is called so" in text
        assert "GLOO_SOCKET_IFNAME=^lo: Gloo takes whole names" in text
        told = json.loads(doctor(n0, "--json")[1])
        assert {one["code"] for one in told["findings"] if one["code"].startswith("setting-")} == set()


def test_of_settings_in_files_those_count_that_the_environment_does_not_have(tmp_path):
    file = tmp_path / "nccl.conf"
    file.write_text("# of another machine\nNCCL_SOCKET_IFNAME = ens9\nNCCL_SHM_DISABLE=1\n")
    with daemon(tmp_path, name="n0") as n0:
        _, text = doctor(n0, "--json", NCCL_CONF_FILE=str(file), NCCL_SOCKET_IFNAME="^lo0")
        told = [one for one in json.loads(text)["findings"] if one["code"].startswith("setting-")]
        assert [(one["subject"], one["evidence"]) for one in told] == [("NCCL_SHM_DISABLE", [f"it stands in {file}"])]


def test_a_job_on_more_nodes_than_a_question_can_name(tmp_path):
    with daemon(tmp_path, name="n0") as n0:
        assert n0.get(f"/v1/findings?nodes={','.join(['n0'] * 3000)}").status_code == 400
        told = [json.loads(doctor(n0, "--json", SLURM_JOB_NODELIST=",".join(["n0"] * count))[1]) for count in (1, 3000)]
        assert told[0] == told[1]
        assert told[1]["nodes"] == 1


def test_findings_are_counted_for_prometheus(tmp_path):
    with daemon(tmp_path, name="n0") as n0:
        severities = [one["severity"] for one in n0.get("/v1/findings").json()["findings"]]
        lines = n0.get("/metrics").text.splitlines()
        for severity in ("error", "warning", "note"):
            assert f'fabricd_findings{{severity="{severity}"}} {float(severities.count(severity))}' in lines


def test_an_agent_answers_for_itself_and_passes_the_rest_on(tmp_path):
    with cluster(tmp_path, maps=1, agents=1) as [m0, a0]:
        eventually(lambda: m0.get("/v1/findings").json()["nodes"] == 2, 15, told=[m0, a0])
        passed = a0.get("/v1/findings")
        assert passed.headers["X-Fabricd-Answered-By"] == m0.url
        assert passed.json()["nodes"] == 2
        own = a0.get("/v1/findings?nodes=a0")
        assert "X-Fabricd-Answered-By" not in own.headers
        assert own.json()["nodes"] == 1
