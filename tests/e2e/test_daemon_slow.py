"""A real daemon under a thousand slow clients and more long polls than it takes."""

import socket
import time
from contextlib import ExitStack

import httpx

from tests.support.certificates import Authority
from tests.support.daemon import RunningDaemon, daemon

SLOW = 1000
HEAD = b"GET /livez HT"
BODY = b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n{"
POLL = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"


def crowd(stack: ExitStack, running: RunningDaemon, count: int, said: bytes) -> list[socket.socket]:
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    found = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(count)]
    for one in found:
        one.sendall(said)
    return found


def memory(running: RunningDaemon) -> int:
    """Return the daemon's resident memory, bytes."""
    with open(f"/proc/{running.process.pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def refused(connections: list[socket.socket]) -> int:
    """Count the connections that were told to come again; says nothing to them itself."""
    count = 0
    for one in connections:
        one.settimeout(0.01)
        try:
            head = one.recv(4096).lower()
        except TimeoutError:
            continue
        except ConnectionResetError:
            continue
        count += head.startswith(b"http/1.1 503") and b"\r\nretry-after: " in head
    return count


def test_a_thousand_slow_clients_and_too_many_polls(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text("max_long_polls = 400\nmax_connections = 1600\nmax_requests = 64\n")
    with daemon(tmp_path, "-c", str(config)) as running, ExitStack() as stack:
        before = memory(running)
        bodies = crowd(stack, running, SLOW // 4, BODY)
        polls = crowd(stack, running, 500, POLL)
        crowd(stack, running, SLOW * 3 // 4, HEAD)
        crowd(stack, running, SLOW, HEAD)  # more than there may be: the first ones make room
        begun = time.monotonic()
        for path in ("/livez", "/readyz", "/v1/node"):
            assert running.get(path, seconds=10).status_code == 200, path
        assert time.monotonic() - begun < 5
        with running.unix() as local:
            told = local.get("/metrics").text
        assert "fabricd_long_polls 400.0" in told
        assert refused(polls) >= 100
        assert refused(bodies) >= SLOW // 4 - 64
        assert memory(running) - before < 96 << 20
        assert "Traceback" not in running.log


def test_slow_clients_keep_nobody_out_of_tls(tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    authority = Authority(folder)
    pair = authority.issue("node", "IP:127.0.0.1")
    lines = [f'tls_certificate_file = "{pair.certificate_file}"', f'tls_key_file = "{pair.key_file}"']
    (tmp_path / "c.toml").write_text("\n".join(lines) + "\n")
    with daemon(tmp_path, "-c", str(tmp_path / "c.toml")) as running, ExitStack() as stack:
        before = memory(running)
        context, address = authority.client(), ("127.0.0.1", int(running.url.rpartition(":")[2]))
        for _ in range(200):  # handshakes take processor time
            plain = stack.enter_context(socket.create_connection(address, timeout=20))
            secured = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            secured.sendall(POLL)
            assert secured.recv(12) == b"HTTP/1.1 200"
        assert (memory(running) - before) / 200 < 128 << 10  # bytes for each
        crowd(stack, running, SLOW, b"\x16\x03\x01")  # the beginning of a hello
        answer = httpx.get(running.url + "/livez", verify=authority.client(), trust_env=False, timeout=20)
        assert answer.status_code == 200
