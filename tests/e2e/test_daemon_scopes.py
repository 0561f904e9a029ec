"""Every route of a real daemon against every scope."""

import secrets
import signal
import time

import httpx
import pytest

from fabricd.model.codec import to_builtins
from fabricd.scopes import Scope
from tests.e2e.test_daemon_access import PROXIED, TOKEN, token_file
from tests.support.daemon import daemon, eventually
from tests.support.nodes import node
from tests.support.odd_server import answer, odd_server

TOKENS = {scope: secrets.token_hex(16) for scope in Scope}
#: What supervisors ask, who hold no token.
OPEN = {("get", "/livez"), ("get", "/readyz")}


def write(folder, tokens) -> None:
    path = folder / "access"
    path.touch(mode=0o600)
    path.write_text("".join(f"only-{scope} {scope} {token}\n" for scope, token in tokens.items()))


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scopes")
    write(folder, TOKENS)
    (folder / "c.toml").write_text(f'access_file = "{folder}/access"\ntoken_file = "{token_file(folder)}"\n')
    with daemon(folder, "-c", str(folder / "c.toml")) as found:
        yield found


@pytest.fixture(scope="module")
def ask(running):
    """Ask as somebody from elsewhere, with a token or none."""
    with httpx.Client(base_url=running.url, trust_env=False, timeout=20) as client:

        def ask(method: str, path: str, token: str | None) -> httpx.Response:
            headers = PROXIED if token is None else {**PROXIED, "Authorization": f"Bearer {token}"}
            return client.request(method, path.replace("{", "").replace("}", ""), headers=headers)

        yield ask


def test_each_scope_opens_its_own_routes_and_no_others(running, ask):
    described = running.get("/openapi.json").json()
    schemes = described["components"]["securitySchemes"]
    seen = set()
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            ways = operation["security"]  # every operation has it
            needed = {scope for way in ways for scopes in way.values() for scope in scopes}
            assert all(set(way) <= set(schemes) for way in ways)
            if (method, path) in OPEN:
                assert ways == []
                assert ask(method, path, None).status_code == 200
                continue
            (scope,) = needed
            seen.add(scope)
            assert ask(method, path, None).json()["code"] == "token-required", path
            for held, token in TOKENS.items():
                code = ask(method, path, token).json().get("code") if held != scope else ""
                assert code == ("scope-missing" if held != scope else ""), (method, path, held)
            assert _code(ask(method, path, TOKENS[Scope(scope)])) not in ("scope-missing", "token-required")
    assert seen == set(Scope)


def _code(answer: httpx.Response) -> str:
    told = answer.headers.get("content-type", "")
    return answer.json().get("code", "") if told.startswith("application/problem+json") else ""


def test_the_description_itself_needs_the_scope_to_read(ask):
    assert ask("get", "/openapi.json", TOKENS[Scope.READ]).status_code == 200
    assert ask("get", "/openapi.json", TOKENS[Scope.PLAN]).status_code == 403


def test_a_refusal_names_the_caller_the_scope_and_what_it_has(ask):
    told = ask("post", "/v1/plans", TOKENS[Scope.READ]).json()
    assert told["detail"] == "token only-read has not the scope 'plan'"
    assert told["hint"].startswith("it has: read;")
    assert told["details"] == {"scope": "plan"}


def test_the_clusters_one_token_opens_everything(ask):
    assert ask("post", "/v1/reload", TOKEN).status_code == 204
    assert ask("get", "/v1/node", TOKEN).status_code == 200


def test_local_callers_may_all_but_administer_unless_the_kernel_vouches_for_them(running):
    assert httpx.post(running.url + "/v1/reload", trust_env=False).json()["code"] == "scope-missing"
    assert running.get("/v1/node").status_code == 200
    with running.unix() as client:
        assert client.post("/v1/reload").status_code == 204  # the daemon's own user


def test_a_stream_ends_when_its_token_is_taken_back(tmp_path):
    def respond(_what, headers, _connection):
        if "if-none-match" in headers:
            time.sleep(5)
        made = to_builtins(node("other")) | {"instance": "i", "content_hash": "h", "generation": 1}
        return answer(made, ETag='"1"')

    write(tmp_path, TOKENS)
    (tmp_path / "peers").touch()
    (tmp_path / "c.toml").write_text(f'access_file = "{tmp_path}/access"\npeers_file = "{tmp_path}/peers"\n')
    with odd_server(respond) as url, daemon(tmp_path, "-c", str(tmp_path / "c.toml")) as found:
        headers = {**PROXIED, "Authorization": f"Bearer {TOKENS[Scope.READ]}", "Accept": "text/event-stream"}
        with httpx.stream("GET", f"{found.url}/v1/events", headers=headers, trust_env=False, timeout=20) as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event: ")) == "event: node_joined"
            write(tmp_path, {Scope.READ: secrets.token_hex(16)})
            (tmp_path / "peers").write_text(url)  # which is news
            found.process.send_signal(signal.SIGHUP)
            with pytest.raises(httpx.RemoteProtocolError):
                next(line for line in lines if "other" in line)
        eventually(lambda: "an answer broke off path=/v1/events" in found.log, 5, told=[found])


def test_a_reload_that_is_asked_for_tells_every_fault_and_changes_nothing(running):
    folder = running.log_file.parent
    config = folder / "c.toml"
    good = config.read_text()
    config.write_text(good + 'prot = 1\nlog_level = "loud"\n')
    with running.unix() as client:
        answer = client.post("/v1/reload")
        assert (answer.status_code, answer.json()["code"]) == (400, "config-error")
        faults = answer.json()["details"]["faults"]
        assert len(faults) == 2
        assert "did you mean 'port'" in faults[0]
        config.write_text(good)
        assert client.post("/v1/reload").status_code == 204


def test_a_token_that_is_taken_out_opens_nothing_from_then_on(running, ask):
    folder = running.log_file.parent
    header = {**PROXIED, "Authorization": f"Bearer {TOKENS[Scope.READ]}"}
    with httpx.Client(base_url=running.url, headers=header, trust_env=False) as client:
        assert client.get("/v1/node").status_code == 200
        write(folder, {scope: token for scope, token in TOKENS.items() if scope is not Scope.READ})
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: client.get("/v1/node").status_code == 401, told=[running])  # on the same connection
        (folder / "access").write_text("nonsense\n")
        running.process.send_signal(signal.SIGHUP)
        eventually(lambda: "line 1: 1 words" in running.log, told=[running])
        assert ask("post", "/v1/plans", TOKENS[Scope.PLAN]).status_code == 400  # the body, not the scope
        write(folder, TOKENS)
        eventually(lambda: client.get("/v1/node").status_code == 200, 15, told=[running])  # by itself
    assert not any(token in running.log for token in TOKENS.values())
