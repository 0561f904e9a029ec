"""Real daemons with TLS: clients, peers, certificates that are renewed, and those that are wrong."""

import os
import random
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from demo.daemons import program
from tests.e2e.test_daemon_access import PROXIED
from tests.support.certificates import Authority
from tests.support.daemon import RunningDaemon, daemon, ended, eventually

#: In every certificate of these daemons, beside the address.
NAMES = ("IP:127.0.0.1", "DNS:fabricd.test")


@pytest.fixture
def authority(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    return Authority(folder)


def config(folder: Path, authority: Authority, *lines: str, name: str = "node") -> str:
    """Write a configuration with TLS; return its path."""
    told = [
        f'tls_certificate_file = "{authority.folder / name}.crt"',
        f'tls_key_file = "{authority.folder / name}.key"',
    ]
    path = folder / f"{name}.toml"
    path.write_text("\n".join((*told, *lines, "")))
    return str(path)


def access(folder: Path, text: str) -> str:
    path = folder / "access"
    path.write_text(text)
    path.chmod(0o600)
    return f'access_file = "{path}"'


def https(running: RunningDaemon, authority: Authority, pair=None, **headers: str) -> httpx.Client:
    """Return a client that is from elsewhere as far as the daemon can tell."""
    shown = {**PROXIED, **headers}
    return httpx.Client(base_url=running.url, verify=authority.client(pair), headers=shown, trust_env=False)


def end_of(running: RunningDaemon) -> float:
    with running.unix() as client:
        lines = client.get("/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith("fabricd_tls_not_after_seconds")).split()[1])


def test_who_shows_a_certificate_gets_what_its_line_says(tmp_path, authority):
    authority.issue("node", *NAMES)
    lines = access(tmp_path, "monitor read certificate:monitor.test\n")
    told = config(tmp_path, authority, f'tls_client_ca_file = "{authority.file}"', lines)
    with daemon(tmp_path, "-c", told) as running:
        assert running.url.startswith("https://127.0.0.1:")
        with https(running, authority) as nobody:
            assert nobody.get("/livez").status_code == 200
            assert nobody.get("/v1/node").status_code == 401
        with https(running, authority, authority.issue("x", "DNS:monitor.test")) as monitor:
            assert monitor.get("/v1/node").status_code == 200
            refused = monitor.post("/v1/reload")
            assert (refused.status_code, refused.json()["code"]) == (403, "scope-missing")
            assert "certificate monitor" in refused.json()["detail"]
        with https(running, authority, authority.issue("y", "DNS:other.test")) as other:
            assert "other.test" in other.get("/v1/node").json()["detail"]
        with pytest.raises(httpx.ConnectError):
            httpx.get(running.url + "/livez", trust_env=False)  # this system's CAs do not know it
        with socket.create_connection(("127.0.0.1", int(running.url.rpartition(":")[2]))) as plain:
            plain.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in plain.recv(100)
        with running.unix() as local:
            assert local.get("/v1/node").status_code == 200
        command = ["openssl", "s_client", "-connect", running.url.removeprefix("https://"), "-tls1_1"]
        old = subprocess.run(command, input="", capture_output=True, text=True, timeout=20)
        assert old.returncode != 0


def test_a_renewed_certificate_is_taken_and_connections_go_on(tmp_path, authority):
    authority.issue("node", *NAMES, days=90)
    with daemon(tmp_path, "-c", config(tmp_path, authority)) as running:
        first = end_of(running)
        with https(running, authority, Host="127.0.0.1") as client:
            client.headers.pop("X-Forwarded-For")
            generation = client.get("/v1/node").headers["X-Fabricd-Generation"]
            answers = []
            poll = threading.Thread(
                target=lambda: answers.append(client.get(f"/v1/node?wait=60&generation={generation}", timeout=70))
            )
            poll.start()
            authority.issue("node", *NAMES, days=5)
            eventually(lambda: end_of(running) < first, 10, told=[running])  # by itself, within LOOK_SECONDS
            with running.unix() as local:
                (fault,) = local.get("/v1/cluster?summary=1").json()["faults"]
            assert "ends in 4 days" in fault
            (authority.folder / "node.crt").write_text("no certificate\n")
            running.process.send_signal(signal.SIGHUP)
            eventually(lambda: "not a PEM certificate" in running.log, told=[running])
            assert client.get("/livez").status_code == 200
            with https(running, authority) as other:
                assert other.get("/livez").status_code == 200  # a new connection
            authority.issue("node", *NAMES, days=60)
            running.process.send_signal(signal.SIGHUP)
            eventually(lambda: end_of(running) > time.time() + 50 * 86400, 10, told=[running])
            assert not answers
            running.stop()
            poll.join(20)
            assert [answer.status_code for answer in answers] == [503]  # told to ask again, not cut off


def test_only_a_restart_begins_or_ends_tls(tmp_path, authority):
    authority.issue("node", *NAMES)
    told = Path(config(tmp_path, authority))
    with daemon(tmp_path, "-c", str(told)) as running, running.unix() as local:
        told.write_text("")
        assert local.post("/v1/reload").status_code == 204
        eventually(lambda: "only a restart begins or ends TLS" in running.log, 5, told=[running])
        with https(running, authority) as client:
            assert client.get("/livez").status_code == 200
        config(tmp_path, authority)
        assert local.post("/v1/reload").status_code == 204
        authority.issue("other", *NAMES)
        config(tmp_path, authority, name="other")
        told.write_text((tmp_path / "other.toml").read_text())  # another file
        assert local.post("/v1/reload").status_code == 204
        with https(running, authority) as client, client.stream("GET", "/livez") as answer:
            shown = answer.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
        assert shown["subject"] == ((("commonName", "other"),),)


def test_peers_know_each_other_by_certificates_alone(tmp_path, authority):
    lines = access(tmp_path, "nodes read,measure certificate:fabricd.test\n")
    cas = [f'tls_ca_file = "{authority.file}"', f'tls_client_ca_file = "{authority.file}"', lines]
    for name in ("a", "b"):
        authority.issue(name, "DNS:fabricd.test")  # no address: it is the name that counts
    named = 'tls_peer_name = "fabricd.test"'
    with daemon(tmp_path, "-c", config(tmp_path, authority, *cas, name="a"), name="a") as first:
        told = config(tmp_path, authority, *cas, named, name="b")
        port = first.url.rpartition(":")[2]
        with daemon(tmp_path, "-c", told, "--peer", first.url, name="b") as second, second.unix() as local:

            def state() -> list[tuple[str, str]]:
                nodes = local.get("/v1/cluster?summary=1").json()["nodes"]
                return [(node["state"], node["reason"]) for node in nodes[1:]]

            eventually(lambda: state() == [("ok", "")], told=[second])
            Path(told).write_text(Path(told).read_text().replace(named, ""))
            second.process.send_signal(signal.SIGHUP)
            eventually(lambda: "IP address mismatch" in state()[0][1], told=[second])
            # Addresses of a name are asked by TLS, too.
            Path(told).write_text(Path(told).read_text() + f'{named}\npeers = ["dns://localhost:{port}"]\n')
            second.process.send_signal(signal.SIGHUP)
        named_only = config(tmp_path, authority, *cas, named, f'peers = ["dns://127.0.0.1:{port}"]', name="b")
        with daemon(tmp_path, "-c", named_only, name="b") as second, second.unix() as local:
            eventually(lambda: state() == [("ok", "")], told=[second])


def test_the_command_line_asks_by_tls(tmp_path, authority):
    authority.issue("node", *NAMES)
    lines = access(tmp_path, "me read certificate:me.test\n")
    told = config(tmp_path, authority, f'tls_client_ca_file = "{authority.file}"', lines)
    me = authority.issue("me", "DNS:me.test")
    with daemon(tmp_path, "-c", told) as running:
        environ = {**os.environ, "FABRICD_URL": running.url, "FABRICD_CA_FILE": str(authority.file)}
        environ |= {"FABRICD_CERTIFICATE_FILE": str(me.certificate_file), "FABRICD_KEY_FILE": str(me.key_file)}

        def nodes(**changed: str) -> subprocess.CompletedProcess[str]:
            command = [program("fabricctl"), "nodes"]
            return subprocess.run(command, env={**environ, **changed}, capture_output=True, text=True, timeout=30)

        assert nodes().returncode == 0
        unknown = nodes(FABRICD_CA_FILE="")
        assert unknown.returncode != 0
        assert "certificate verify failed" in unknown.stderr
        assert "FABRICD_CA_FILE" in unknown.stderr
        plain = nodes(FABRICD_URL=running.url.replace("https://", "http://"))
        assert "if it speaks TLS, its address begins with https://" in plain.stderr
        half = nodes(FABRICD_KEY_FILE="")
        assert "belong together" in half.stderr


def test_the_command_line_says_what_is_wrong_with_a_tls_address(tmp_path, authority):
    authority.issue("node", "DNS:other.test")
    environ = {**os.environ, "FABRICD_CA_FILE": str(authority.file)}

    def nodes(url: str) -> str:
        command = [program("fabricctl"), "nodes", "--from", url]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False).stderr

    with daemon(tmp_path, "-c", config(tmp_path, authority)) as running:
        told = nodes(running.url)
        assert "is not valid for '127.0.0.1'" in told
        assert "ask it by a name or address that its certificate has" in told
    with daemon(tmp_path, name="plain") as plain:
        told = nodes(plain.url.replace("http://", "https://"))
        assert "wrong version number" in told
        assert "if it speaks no TLS, its address begins with http://" in told


def test_a_job_of_two_ranks_over_tls(tmp_path, authority):
    authority.issue("node", *NAMES)
    with daemon(tmp_path, "-c", config(tmp_path, authority)) as running:
        environ = {**os.environ, "FABRICD_URL": running.url, "FABRICD_CA_FILE": str(authority.file)}
        environ["FABRICD_GROUP_SECRET"] = "a-secret-of-one-job-0123456789"
        script = (
            "import fabric_client, numpy\n"
            "with fabric_client.create_communicator(engine='mpi') as comm:\n"
            "    print(comm.all_reduce(numpy.ones(4))[0])\n"
        )
        command = [program("fabricctl"), "run", "-n", "2", "--", program("python"), "-c", script]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr + running.log
        assert done.stdout.count("2.0") == 2


def test_silent_and_failing_handshakes_keep_nobody_out(tmp_path, authority):
    authority.issue("node", *NAMES)
    told = config(tmp_path, authority, "max_connections = 64")
    with daemon(tmp_path, "-c", told) as running:
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        for _ in range(200):  # each fails, and is forgotten
            with socket.create_connection(address) as one:
                one.sendall(b"no TLS at all\r\n\r\n")
        silent = [socket.create_connection(address) for _ in range(60)]
        with https(running, authority) as client:
            eventually(lambda: client.get("/livez").status_code == 200, 3, told=[running])  # long before they time out
        silent += [socket.create_connection(address) for _ in range(200)]
        with running.unix() as local:
            eventually(lambda: local.get("/livez").status_code == 200, told=[running])
        descriptors = len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))
        assert descriptors < 64 + 32 + 60
        for one in silent:
            one.close()
        with https(running, authority) as client:
            eventually(lambda: client.get("/livez").status_code == 200, told=[running])
        assert "Traceback" not in running.log


def test_check_config_tells_until_when_and_what_should_not_stay(tmp_path, authority):
    authority.issue("node", *NAMES, days=5)
    status, said = ended("check-config", config(tmp_path, authority))
    assert status == 0
    assert "valid until" in said
    assert "warning: the certificate" in said


def test_clients_that_break_every_rule_leave_nothing_behind(tmp_path, authority):
    authority.issue("node", *NAMES)
    said = (
        b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n" * 9,
        b"GET /livez HTTP/1.1\r\nHo",
        b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        b"\x00\xff" * 99,
    )

    def misbehave(seed: int) -> None:
        dice = random.Random(seed)
        for _ in range(40):
            with suppress(OSError), socket.create_connection(address, timeout=5) as plain:
                if dice.random() < 0.2:
                    plain.sendall(dice.randbytes(99))
                    continue
                secured = authority.client().wrap_socket(plain, server_hostname="127.0.0.1")
                for _ in range(dice.randrange(4)):
                    secured.sendall(dice.choice(said))
                if dice.random() < 0.5:
                    secured.close()
                else:
                    socket.close(secured.detach())  # without a farewell

    with daemon(tmp_path, "-c", config(tmp_path, authority, "max_connections = 32")) as running:
        address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
        descriptors = Path(f"/proc/{running.process.pid}/fd")
        before = len(list(descriptors.iterdir()))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(misbehave, range(4)))
        eventually(lambda: len(list(descriptors.iterdir())) <= before, 10, told=[running])
        with https(running, authority) as client:
            assert client.get("/livez").status_code == 200
        assert "Traceback" not in running.log
