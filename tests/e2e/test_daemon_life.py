"""A real daemon's life: signals, sockets, supervisor, reload, and its end whatever clients do."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from demo.daemons import program
from tests.support.daemon import STOP_SECONDS, daemon, ended, eventually


def test_says_where_it_listens_and_takes_that_back(tmp_path):
    with daemon(tmp_path) as running:
        told = json.loads((tmp_path / "d.ready").read_text())
        assert told == {"url": running.url, "socket": running.socket, "node_id": "d", "pid": running.process.pid}
        assert running.get("/readyz").text == "ready\n"
        running.stop()
        assert not (tmp_path / "d.ready").exists()
        assert not Path(running.socket).exists()


def test_ends_in_time_with_fifty_long_polls_and_idle_and_slow_clients(tmp_path):
    with daemon(tmp_path) as running:
        answers = []

        def poll():
            answers.append(running.get("/v1/node?wait=60&generation=1", seconds=70).status_code)

        threads = [threading.Thread(target=poll) for _ in range(50)]
        for thread in threads:
            thread.start()
        port = int(running.url.rpartition(":")[2])
        idle = socket.create_connection(("127.0.0.1", port))
        halfway = socket.create_connection(("127.0.0.1", port))
        halfway.sendall(b"GET /v1/node HTTP/1.1\r\nHost: local")
        with running.unix() as client:
            eventually(lambda: "fabricd_long_polls 50.0" in client.get("/metrics").text, told=[running])
        took = running.stop()
        for thread in threads:
            thread.join(5)
        assert took < STOP_SECONDS
        assert answers == [503] * 50  # told to ask again, not cut off
        idle.close()
        halfway.close()


def test_descriptors_that_the_launcher_closed_go_to_no_socket(tmp_path):
    script = 'exec "$0" serve --port 0 --socket "" --ready-file "$1" <&- >&- 2>&-'
    ready = tmp_path / "ready"
    process = subprocess.Popen(["sh", "-c", script, program("fabricd"), str(ready)])
    try:
        eventually(ready.exists, 15)
        standard = [Path(f"/proc/{process.pid}/fd/{number}").readlink() for number in range(3)]
        assert standard == [Path("/dev/null")] * 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
    finally:
        process.kill()
        process.wait()


def test_connections_beyond_the_descriptors_fill_no_log(tmp_path):
    script = 'ulimit -n 256; exec "$0" "$@"'

    def start(command, output):
        return subprocess.Popen(["bash", "-c", script, *command], stdout=output, stderr=output, text=True)

    with daemon(tmp_path, start=start) as running:
        port = int(running.url.rpartition(":")[2])
        connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        time.sleep(1.5)
        for connection in connections:
            connection.close()
        eventually(lambda: running.get("/livez").status_code == 200, told=[running])
        assert len(running.log.splitlines()) < 20, running.log[:2000]


def test_where_there_are_too_few_descriptors_it_does_not_begin():
    command = ["bash", "-c", 'ulimit -n 48; exec "$0" serve --port 0 --socket ""', program("fabricd")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
    assert done.returncode == 1
    assert "48 file descriptors" in done.stderr
    assert "ulimit -n" in done.stderr


def test_sigint_ends_it_too(tmp_path):
    with daemon(tmp_path) as running:
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(5) == 0


def test_reload_takes_the_good_and_refuses_the_bad(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('allowed_hosts = ["one.example"]\n')
    with daemon(tmp_path, "--config", str(config)) as running:

        def status(host: str) -> int:
            return running.get("/v1/node", headers={"Host": host}).status_code

        assert (status("one.example"), status("two.example")) == (200, 421)
        config.write_text('allowed_hosts = ["two.example"]\nname = "other"\nlog_level = "debug"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: status("two.example") == 200, told=[running])
        assert status("one.example") == 421
        config.write_text('allowed_hosts = ["three.example"]\nprot = 1\nlog_level = "loud"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "stays as it is" in running.log, told=[running])
        eventually(lambda: "did you mean 'port'" in running.log, 5, told=[running])
        eventually(lambda: "'loud' is not one of" in running.log, 5, told=[running])
        assert (status("two.example"), status("three.example")) == (200, 421)
        assert 'fabricd_reloads_total{outcome="failed"} 1.0' in running.get("/metrics").text


def test_a_storm_of_reload_signals_is_few_reloads_and_takes_the_last_content(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("")
    with daemon(tmp_path, "--config", str(config)) as running:
        for number in range(500):
            if number == 400:
                config.write_text('allowed_hosts = ["last.example"]\n')
            running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.get("/v1/node", headers={"Host": "last.example"}).status_code == 200, told=[running])
        assert running.log.count("was read again") < 100


def test_a_hangup_while_it_starts_does_not_end_it(tmp_path):
    with daemon(tmp_path, start=_hung_up_at_the_start) as running:
        assert running.get("/livez").status_code == 200


def _hung_up_at_the_start(command, output):
    """Start a daemon and send it SIGHUP as soon as it ignores or handles that, long before it is ready."""
    process = subprocess.Popen(command, stdout=output, stderr=output, text=True)

    def heeded():
        status = Path(f"/proc/{process.pid}/status").read_text()
        masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn", "SigCgt"))]
        return any(mask & (1 << (signal.SIGHUP - 1)) for mask in masks)

    eventually(heeded, 30)
    process.send_signal(signal.SIGHUP)
    return process


def test_reload_says_what_only_a_restart_changes(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("")
    with daemon(tmp_path, "--config", str(config)) as running:
        config.write_text('log_format = "json"\nprobe_interval_seconds = 5\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "settings=log_format" in running.log, told=[running])


def test_reload_changes_limits_and_the_level_of_the_log(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("max_connections = 16\n")
    with daemon(tmp_path, "--config", str(config)) as running, ExitStack() as stack:
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        for _ in range(16):
            stream = stack.enter_context(socket.create_connection(address))
            stream.sendall(b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            assert stream.recv(12) == b"HTTP/1.1 200"
        assert running.get("/v1/node").status_code == 503
        assert " debug " not in running.log
        config.write_text('max_connections = 64\nmax_body_bytes = 2048\nlog_level = "debug"\n')
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: running.get("/v1/node").status_code == 200, told=[running])
        with running.unix() as client:
            assert client.post("/v1/plans", content=bytes(2049)).status_code == 413
        with socket.create_connection(address) as leaves:
            leaves.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        eventually(lambda: " debug fabricd.http: a client left" in running.log, told=[running])


def test_two_daemons_cannot_share_a_socket_and_the_other_is_named(tmp_path):
    with daemon(tmp_path) as running:
        status, said = ended("serve", "--port", "0", "--socket", running.socket)
        assert status == 1
        assert f"process {running.process.pid}" in said
        assert running.socket in said
        assert running.get("/livez").status_code == 200


def test_a_socket_that_some_other_program_listens_at_is_left_alone(tmp_path):
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        status, said = ended("serve", "--port", "0", "--socket", str(path))
        assert status == 1
        assert f"process {os.getpid()}" in said
        assert path.is_socket()


def test_a_lock_with_anything_in_it_is_told_as_taken(tmp_path):
    path = tmp_path / "x.sock.lock"
    path.write_bytes(b"no pid \xff 12")
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        status, said = ended("serve", "--port", "0", "--socket", str(tmp_path / "x.sock"))
    assert status == 1
    assert "another process listens at" in said


def test_a_file_in_the_sockets_place_is_left_alone(tmp_path):
    path = tmp_path / "precious"
    path.write_text("data")
    status, said = ended("serve", "--port", "0", "--socket", str(path))
    assert (status, path.read_text()) == (1, "data")
    assert "no socket" in said


def test_starts_over_the_socket_of_one_that_was_killed(tmp_path):
    with daemon(tmp_path) as running:
        running.kill()
        assert Path(running.socket).is_socket()
        with daemon(tmp_path) as again, again.unix() as client:
            assert client.get("/v1/node").json()["node"]["node_id"] == "d"


def test_a_ready_file_that_cannot_be_written_ends_it(tmp_path):
    status, said = ended("serve", "--port", "0", "--socket", "", "--ready-file", str(tmp_path / "none/ready"))
    assert status == 1
    assert "cannot write the ready line" in said


def test_port_in_use_is_told(tmp_path):
    with daemon(tmp_path) as running:
        port = running.url.rpartition(":")[2]
        status, said = ended("serve", "--port", port, "--socket", "")
        assert status == 1
        assert f"127.0.0.1 port {port}" in said
        assert "--port" in said


def test_no_socket_directory_can_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    status, said = ended("serve", "--port", "0", "--socket", str(tmp_path / "file/x.sock"))
    assert status == 1
    assert "--socket" in said


def test_refuses_to_listen_beyond_loopback_without_a_token():
    status, said = ended("serve", "--host", "0.0.0.0", "--port", "0", "--socket", "")
    assert status == 2
    assert "--token-file" in said


def test_every_fault_of_the_command_line_and_the_file_at_once(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("port = 70000\nhots = 'x'\n")
    status, said = ended("serve", "--config", str(config), "--log-level", "loud", "--peer", "ftp://x")
    assert status == 2
    assert "4 fault(s)" in said
    assert "did you mean 'host'" in said


def test_tells_a_supervisor(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000000")
        with daemon(tmp_path) as running:
            heard = []
            while heard.count("WATCHDOG=1") < 3:
                heard.append(supervisor.recv(1000).decode())
            assert "READY=1" in heard
            running.process.send_signal(signal.SIGHUP)
            while not any(text.startswith("RELOADING=1\nMONOTONIC_USEC=") for text in heard):
                heard.append(supervisor.recv(1000).decode())
            while heard[-1] != "READY=1":
                heard.append(supervisor.recv(1000).decode())
            running.stop()
            while heard[-1] != "STOPPING=1":
                heard.append(supervisor.recv(1000).decode())


def test_ready_line_on_a_descriptor(tmp_path):
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [program("fabricd"), "serve", "--port", "0", "--socket", "", "--ready-fd", str(writing)],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = json.loads(stream.read())  # to its end: the daemon closed it
    assert httpx.get(told["url"] + "/livez", trust_env=False).status_code == 200
    process.terminate()
    assert process.wait(5) == 0


def test_a_daemon_that_starts_while_the_port_is_held_by_dead_connections(tmp_path):
    with daemon(tmp_path) as running:
        port = running.url.rpartition(":")[2]
        with httpx.Client(base_url=running.url, trust_env=False) as client:
            assert client.get("/livez").status_code == 200
            running.kill()
        begun = time.monotonic()
        with daemon(tmp_path, "--port", port, name="again") as again:
            assert again.url == running.url
            assert time.monotonic() - begun < 10


def test_serves_a_captured_machine_that_is_never_this_host(tmp_path):
    capture = tmp_path / "machine.json"
    assert ended("capture", str(capture))[0] == 0
    with daemon(tmp_path, "--replay", str(capture)) as running:
        told = running.get("/v1/node").json()
        assert (told["this_host"], told["node"]["node_id"], told["node"]["id_source"]) == (False, "d", "configured")
        assert running.get("/v1/cluster?summary=1").json()["nodes"][0]["this_node"]


def test_serves_the_machine_under_a_root(tmp_path):
    (tmp_path / "host").mkdir()
    with daemon(tmp_path, "--root", str(tmp_path / "host")) as running:
        told = running.get("/v1/node").json()
        assert (told["this_host"], told["interfaces"]) == (False, [])
