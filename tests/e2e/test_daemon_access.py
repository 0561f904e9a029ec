"""Who may ask a real daemon, from where, and as whom."""

import os
import signal
from pathlib import Path

import httpx
import pytest

from demo.hosts import NetworkSpec, make_hosts
from demo.namespaces import Namespaces
from tests.support.daemon import RunningDaemon, daemon, ended, eventually

TOKEN = "correct-horse-battery-staple"
#: A proxy on this host passes a request on: then it is no local one.
PROXIED = {"X-Forwarded-For": "203.0.113.7"}


def token_file(folder: Path, token: str = TOKEN, mode: int = 0o600) -> str:
    path = folder / "token"
    path.write_text(token + "\n")
    path.chmod(mode)
    return str(path)


def status(running: RunningDaemon, token: str | None, path: str = "/v1/node", scheme: str = "Bearer") -> int:
    headers = PROXIED if token is None else {**PROXIED, "Authorization": f"{scheme} {token}"}
    return running.get(path, headers=headers).status_code


def test_a_request_from_elsewhere_needs_the_token(tmp_path):
    with daemon(tmp_path, "--token-file", token_file(tmp_path)) as running:
        assert running.get("/v1/node").status_code == 200  # of this host
        refusal = running.get("/v1/node", headers=PROXIED)
        assert (refusal.status_code, refusal.json()["code"]) == (401, "token-required")
        assert refusal.headers["WWW-Authenticate"].startswith("Bearer")
        assert status(running, TOKEN) == 200
        assert status(running, TOKEN, scheme="bearer") == 200
        for wrong in ("x", TOKEN[:-1], TOKEN + "x", TOKEN.upper()):
            assert status(running, wrong) == 401, wrong
        assert status(running, TOKEN, scheme="Basic") == 401
        assert status(running, None, "/livez") == 200
        assert status(running, None, "/readyz") == 200
        assert status(running, None, "/metrics") == 401
        assert status(running, None, "/openapi.json") == 401
        assert TOKEN not in running.log


def test_a_wrong_token_is_refused_on_loopback_too(tmp_path):
    with daemon(tmp_path, "--token-file", token_file(tmp_path)) as running:
        assert running.get("/v1/node", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_two_authorization_headers_are_no_credential(tmp_path):
    with daemon(tmp_path, "--token-file", token_file(tmp_path)) as running:
        both = [("X-Forwarded-For", "1.2.3.4"), ("Authorization", "Bearer wrong"), ("Authorization", f"Bearer {TOKEN}")]
        assert httpx.get(running.url + "/v1/node", headers=both, trust_env=False).status_code == 401


def test_without_a_token_nobody_from_elsewhere_gets_in(tmp_path):
    with daemon(tmp_path) as running:
        assert status(running, None) == 401
        assert status(running, "anything") == 401
        # A client of a cluster whose token this lone daemon does not know is a local one all the same.
        assert running.get("/v1/node", headers={"Authorization": "Bearer anything"}).status_code == 200


def test_reload_changes_the_token_at_once(tmp_path):
    with daemon(tmp_path, "--token-file", token_file(tmp_path)) as running:
        token_file(tmp_path, "another-token")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: status(running, "another-token") == 200, told=[running])
        assert status(running, TOKEN) == 401


def test_a_token_that_others_can_read_is_no_secret(tmp_path):
    code, said = ended("serve", "--port", "0", "--socket", "", "--token-file", token_file(tmp_path, mode=0o644))
    assert code == 2
    assert "chmod 600" in said
    assert TOKEN not in said


def test_what_can_be_no_token_is_told_without_being_shown(tmp_path):
    code, said = ended("serve", "--port", "0", "--socket", "", "--token-file", token_file(tmp_path, "two words"))
    assert code == 2
    assert "token_file" in said
    assert "two words" not in said


def test_the_unix_socket_needs_neither_token_nor_host(tmp_path):
    with daemon(tmp_path, "--token-file", token_file(tmp_path)) as running, running.unix() as client:
        assert client.get("/v1/node", headers={"Host": "evil.example"}).status_code == 200
        assert client.get("/v1/node", headers=PROXIED).status_code == 200
        assert Path(running.socket).stat().st_mode & 0o777 == 0o666


@pytest.mark.root
def test_another_host_gets_in_with_the_token_only(tmp_path):
    with make_hosts(2, [NetworkSpec("net", "10.9.0.0/24")]) as (server, client):

        def start(command, output):
            return server.popen(command, stdout=output, stderr=output)

        arguments = ["--host", "0.0.0.0", "--port", "7470", "--token-file", token_file(tmp_path)]
        with daemon(tmp_path, *arguments, start=start) as running:
            url = f"http://{server.link('net').address}:7470/v1/node"

            def ask(space: Namespaces, *options: str) -> str:
                return space.run(
                    ["curl", "-s", "-o", os.devnull, "-w", "%{http_code}", *options, url], timeout=20
                ).stdout

            assert ask(client.namespaces) == "401"
            assert ask(client.namespaces, "-H", f"Authorization: Bearer {TOKEN}") == "200"
            assert ask(client.namespaces, "-H", f"Authorization: Bearer {TOKEN}x") == "401"
            assert (
                ask(client.namespaces, "-H", "Host: name-of.example", "-H", f"Authorization: Bearer {TOKEN}") == "200"
            )
            assert ask(client.namespaces, "-H", "Host: localhost") == "401"
            assert running.url == "http://127.0.0.1:7470"
