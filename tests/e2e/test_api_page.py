"""docs/api.md: every example is run, and every route is there."""

import re
from collections.abc import Iterator

import httpx
import pytest
from typer.testing import CliRunner

from fabric_client.cli.main import app
from fabricd import daemon as _whole_daemon  # noqa: F401 - all errors that it knows
from fabricd.errors import FabricError
from tests.support.daemon import daemon
from tests.support.doc_examples import DOCS, blocks, differences

PAGE = DOCS / "api.md"
_ROW = re.compile(r"^\| `([A-Z]+) (/\S*)` \| (\w*) ?\|", re.MULTILINE)
_CODES = re.compile(r"^\| (\d{3}) \| (.*) \|$", re.MULTILINE)
#: Of the client's own side, and of a daemon that does not start.
_NEVER_ANSWERED = {"communicator-error", "operation-timeout", "engine-error", "config-error"}
_METHODS = re.compile(r"-X ([A-Z]+)")


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """The daemons that the page speaks of; as what stands in the page, and what is meant."""
    folder = tmp_path_factory.mktemp("page")
    options = ["-t", "h100", "-n", "3", "--leaf", "2", "-o", str(folder / "c.jsonl.gz")]
    assert CliRunner().invoke(app, ["simulate", *options]).exit_code == 0
    with (
        daemon(folder, "--replay", str(folder / "c.jsonl.gz"), "--name", "h100-0000") as replay,
        daemon(folder, name="b", socket=False) as far,
        daemon(folder, "--peer", far.url, name="a", socket=False) as near,
    ):
        urls = {"7470": replay, "7471": far, "7472": near}
        found = {f"localhost:{port}": one.url.removeprefix("http://") for port, one in urls.items()}
        yield found | {"/run/fabricd/fabricd.sock": replay.socket}


def test_every_example_prints_what_the_page_says(places, tmp_path):
    wrong = [text for block in blocks(PAGE) for text in differences(block, tmp_path, {}, places)]
    assert not wrong, "\n\n".join(wrong)


def test_the_page_has_every_route_with_its_scope_and_an_example(places):
    described = httpx.get(f"http://{places['localhost:7470']}/openapi.json", trust_env=False).json()["paths"]
    routes = {
        (method.upper(), path): {scope for way in told["security"] for scopes in way.values() for scope in scopes}
        for path, methods in described.items()
        for method, told in methods.items()
    }
    listed = {(method, path): {scope} - {""} for method, path, scope in _ROW.findall(PAGE.read_text())}
    assert listed == routes
    asked = {_asked(example.command) for block in blocks(PAGE) for example in block.examples}
    missing = [
        route
        for route in routes
        if not any(method == route[0] and _pattern(route[1]).fullmatch(path) for method, path in asked)
    ]
    assert not missing


def test_the_page_has_every_code_with_its_status():
    told = {
        (int(status), code)
        for status, codes in _CODES.findall(PAGE.read_text())
        for code in re.findall("`([a-z-]+)`", codes)
    }
    tree = {(one.http_status, one.code) for one in _tree(FabricError) if one.__module__.startswith("fabricd.")}
    of_http = {(404, "not-found"), (405, "method-not-allowed")}
    assert told == {(status, code) for status, code in tree | of_http if code not in _NEVER_ANSWERED}


def _tree(kind: type[FabricError]) -> Iterator[type[FabricError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from _tree(one)


def _asked(command: str) -> tuple[str, str]:
    """Return method and path of a command line, empty for none."""
    found = re.search(r"(?:localhost(?::\d+)?|\$group)(/[^ '\"?]*)?", command)
    if "curl" not in command or found is None:
        return "", ""
    method = _METHODS.search(command)
    path = ("/v1/groups/g" if "$group" in found[0] else "") + (found[1] or "")
    return method[1] if method else "POST" if " -d " in command else "GET", path


def _pattern(route: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{\w+\}", "[^/]+", route))
