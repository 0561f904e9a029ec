"""A cluster in a file: simulated, served by a daemon, asked, captured from there, and asked again."""

import contextlib
import io
import json
import socket
import sys
from pathlib import Path
from unittest import mock

import pytest

from fabric_client.cli.main import run
from fabricd.model.cluster_file import read_cluster
from tests.support.daemon import daemon, ended, eventually


def fabricctl(*arguments):
    """Run a command line in this process; returns exit status, standard output and standard error."""
    out, fault = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["fabricctl", *map(str, arguments)])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(fault):
        status = run()
    return status, out.getvalue(), fault.getvalue()


def read(file):
    with file.open("rb") as stream:
        return read_cluster(stream, what=str(file))


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    file = tmp_path_factory.mktemp("simulated") / "c.jsonl.gz"
    status, told, fault = fabricctl(
        "simulate", "--template", "H100", "--nodes", 30, "--leaf", 8, "--down", 1, "--seed", 7, "--out", file
    )
    assert (status, fault) == (0, "")
    assert "30 nodes" in told
    return file


@pytest.fixture(scope="module")
def serving(simulated, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    with daemon(folder, "--replay", str(simulated), "--name", "h100-0000") as running:
        yield running


def test_the_same_options_give_the_same_bytes(simulated, tmp_path):
    again = tmp_path / "again.jsonl.gz"
    options = ("--template", "h100", "--nodes", 30, "--leaf", 8, "--down", 1, "--seed", 7)
    assert fabricctl("simulate", *options, "--out", again)[0] == 0
    assert again.read_bytes() == simulated.read_bytes()
    status, _, fault = fabricctl("simulate", *options, "--out", again)
    assert (status, "cannot write" in fault) == (2, True)
    status, _, fault = fabricctl("simulate", *options, "--rails", 9, "--out", tmp_path / "no.jsonl")
    assert (status, "9 rails need 9 ports" in fault) == (2, True)
    assert not (tmp_path / "no.jsonl").exists()


def test_a_daemon_serves_it_and_says_that_nobody_lives_there(serving):
    cluster = serving.get("/v1/cluster?summary=1").json()
    assert len(cluster["nodes"]) == 30
    assert cluster["conflicts"] == []
    assert {node["state"] for node in cluster["nodes"]} == {"ok"}
    assert all("a replay" in node["note"] for node in cluster["nodes"])
    other = serving.get("/v1/nodes/h100-0029").json()
    assert (other["snapshot"]["this_host"], other["url"], other["age_seconds"]) == (False, "", None)
    answer = serving.get("/v1/paths?src=gpu3&dst=h100-0029/gpu3&explain=1").json()
    assert (answer["paths"][0]["transport"], answer["paths"][0]["gdr"]) == ("infiniband", True)
    assert "leaf-r3-0003" in json.dumps(answer["paths"][0])


def test_the_command_line_answers_alike_from_the_file_and_from_the_daemon(simulated, serving):
    for command in (
        ("paths", "h100-0003/gpu3", "h100-0029/gpu5", "--explain"),
        ("paths", "h100-0003/gpu3"),
        ("topo", "--node", "h100-0011"),
    ):
        from_file = fabricctl(*command, "--from", simulated)
        assert from_file[0] == 0
        assert from_file == fabricctl(*command, "--from", serving.url)
    for origin in (simulated, serving.url):
        status, told, _ = fabricctl("nodes", "--from", origin)
        assert (status, told.count("h100-00")) == (0, 30)


@pytest.fixture
def key(tmp_path):
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text("0123456789abcdef0123456789abcdef\n")
    return file


@pytest.mark.parametrize("raw", [True, False])
def test_a_captured_cluster_answers_as_the_daemon_did(serving, tmp_path, key, raw):
    file = tmp_path / "captured.jsonl.gz"
    options = ["--raw"] if raw else ["--key", key]
    assert fabricctl("capture-cluster", file, "--from", serving.url, *options)[0] == 0
    assert oct(file.stat().st_mode & 0o777) == "0o600"
    cluster = read(file)
    assert len(cluster.nodes) == 30
    names = [node.name for node in cluster.nodes]
    assert all(node.name == node.snapshot.node.name for node in cluster.nodes)
    assert (names[29] == "h100-0029") is raw
    _, told, _ = fabricctl("paths", f"{names[3]}/gpu3", f"{names[29]}/gpu3", "--json", "--from", file)
    best = json.loads(told)["paths"][0]
    asked = serving.get("/v1/paths?src=h100-0003/gpu3&dst=h100-0029/gpu3").json()["paths"][0]
    facts = ("type", "transport", "bandwidth_bytes_per_second", "evidence", "gdr")
    assert {name: best[name] for name in facts} == {name: asked[name] for name in facts}
    if not raw:
        text = json.dumps([str(node) for node in cluster.nodes])
        assert [secret for secret in ("h100-00", "leaf-r3", "10.32.0.", "spine-00") if secret in text] == []


def test_captures_with_one_key_fit_together(serving, tmp_path, key):
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for file in files:
        assert fabricctl("capture-cluster", file, "--from", serving.url, "--key", key)[0] == 0
    assert read(files[0]).nodes == read(files[1]).nodes
    key.chmod(0o644)
    status, _, fault = fabricctl("capture-cluster", tmp_path / "c.jsonl", "--from", serving.url, "--key", key)
    assert (status, "--key" in fault) == (1, True)
    assert fabricctl("capture-cluster", tmp_path / "c.jsonl", "--key", key, "--raw")[0] == 2
    assert not (tmp_path / "c.jsonl").exists()


def test_hostile_files_are_refused_in_a_sentence(simulated, tmp_path):
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(simulated.read_bytes()[:-100])
    status, told = ended("serve", "--replay", str(cut), "--port", "0", "--socket", "")
    assert (status, "cut off or damaged" in told) == (2, True)
    status, _, fault = fabricctl("topo", "--from", cut)
    assert (status, "cut off or damaged" in fault) == (2, True)
    status, _, fault = fabricctl("topo", "--node", "nobody", "--from", simulated)
    assert (status, "h100-0000" in fault) == (2, True)


def written(running, client: socket.socket) -> int:
    """Return what the kernel holds of an answer, bytes: not read, or not sent."""
    ports = f":{int(running.url.rpartition(':')[2]):04X}", f":{client.getsockname()[1]:04X}"
    for line in Path("/proc/net/tcp").read_text().splitlines():
        fields = line.split()
        if fields[1].endswith(ports[0]) and fields[2].endswith(ports[1]):
            return int(fields[4].partition(":")[0], 16)
    raise AssertionError("there is no such connection")


def test_an_answer_that_nobody_reads_takes_little_memory(serving):
    length = len(serving.get("/v1/cluster").content)
    assert length > 2_000_000
    with socket.create_connection(("127.0.0.1", int(serving.url.rpartition(":")[2])), timeout=10) as client:
        client.sendall(b"GET /v1/cluster HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        eventually(lambda: written(serving, client) > 0)
        assert serving.get("/livez").status_code == 200  # by then it has written what it will
        assert written(serving, client) < 200_000
        read = 0
        while part := client.recv(1 << 16):
            read += len(part)
        assert read > length  # all of it, with its head
