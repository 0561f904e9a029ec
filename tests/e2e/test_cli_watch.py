"""fabricctl watch beside real daemons: changes come as lines, a restart is survived, and what was missed is said."""

import json
import os
import pty
import select
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from demo.daemons import program
from tests.support.clusters import peer_arguments
from tests.support.daemon import daemon, eventually
from tests.support.etcd import free_port


@contextmanager
def watching(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    environ = os.environ | {"FABRICD_URL": url, "PYTHONUNBUFFERED": "1"}
    command = [program("fabricctl"), "watch", *words]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_changes_come_as_lines_of_the_node_that_is_asked_for(tmp_path):
    first, second = peer_arguments(tmp_path)
    with daemon(tmp_path, *first, name="n0") as n0, watching(n0.url, "--node", "n1", "--count", "1") as process:
        with daemon(tmp_path, *second, name="n1"):
            out, err = process.communicate(timeout=30)
        assert (process.returncode, err) == (0, "no node called n1 is known yet; waiting for it\n")
        _, kind, node = out.split()[:3]
        assert (kind, node) == ("node_joined", "n1")


def test_the_past_as_json(tmp_path):
    first, second = peer_arguments(tmp_path)
    with daemon(tmp_path, *first, name="n0") as n0, daemon(tmp_path, *second, name="n1") as n1:
        eventually(lambda: "n1" in n0.get("/v1/events").text, 15, told=[n0, n1])
        with watching(n0.url, "--past", "--json", "--node", "n1", "--count", "1") as process:
            out, err = process.communicate(timeout=30)
        assert (json.loads(out)["kind"], err) == ("node_joined", "")


def test_it_survives_a_restart_and_says_what_it_missed(tmp_path):
    port = free_port()
    with daemon(tmp_path, "--port", str(port), name="n0") as n0, watching(n0.url) as process:
        eventually(lambda: n0.metric("fabricd_long_polls") > 0, 15, told=[n0])
        n0.stop()
        assert process.stderr is not None
        assert "waiting for it" in process.stderr.readline()
        with daemon(tmp_path, "--port", str(port), name="n0"):
            assert process.stderr.readline() == "it answers again\n"
            assert process.stderr.readline() == "changes were missed: fabricctl nodes tells how things are\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130


def test_a_terminal_is_told_that_it_watches(tmp_path):
    terminal, end = pty.openpty()
    with daemon(tmp_path, name="n0") as n0:
        command = [program("fabricctl"), "watch", "--from", n0.url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=end, text=True) as process:
            os.close(end)
            try:
                assert select.select([terminal], [], [], 30)[0]
                told = f"watching 1 node by the daemon at {n0.url}; Ctrl-C ends it\r\n"
                assert os.read(terminal, 200) == told.encode()
                process.send_signal(signal.SIGINT)
                assert process.wait(10) == 130
            finally:
                process.kill()
    os.close(terminal)


def test_wrong_input_and_no_daemon(tmp_path):
    with watching("http://127.0.0.1:9") as process:
        _, err = process.communicate(timeout=30)
        assert (process.returncode, "no answer" in err) == (3, True)
    with watching("", "--from", str(tmp_path / "c.jsonl.gz")) as process:
        _, err = process.communicate(timeout=30)
        assert (process.returncode, "is no daemon's address" in err) == (2, True)
