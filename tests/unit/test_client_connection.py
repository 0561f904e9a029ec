"""HTTP answers become the errors that they were."""

import gc
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_client.answer_errors import error_from_answer
from fabric_client.connection import Connection
from fabric_client.locate import parse_address
from fabric_client.transport import TransientError
from fabricd import errors
from fabricd.errors import FabricError, RankLostError
from fabricd.model.codec import to_json
from fabricd.model.problem import Problem, problem_of


def tree(kind=FabricError):
    """Every class of the tree that belongs to fabricd's errors."""
    mine = [kind] if kind.__module__ == errors.__name__ else []
    return mine + [found for child in kind.__subclasses__() for found in tree(child)]


def example(kind):
    match kind.__name__:
        case "RankLostError":
            return kind("job", [3, 1], during="all_reduce")
        case "ConfigError":
            return kind(["one", "two"])
        case "UnknownNameError":
            return kind("node", "a", ["b"])
        case _:
            return kind("what happened", hint="what to do")


@pytest.mark.parametrize("kind", tree(), ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind):
    sent = example(kind)
    came = error_from_answer(kind.http_status, to_json(problem_of(sent)), "daemon")
    assert type(came) is kind
    assert str(came) == str(sent)
    assert came.details == json.loads(to_json(sent.details))
    # Attributes that a class has beside the root's are there, too.
    assert {name: getattr(came, name) for name in vars(sent) if name != "details"} == {
        name: value for name, value in vars(sent).items() if name != "details"
    }


def test_what_a_server_says_is_plain_text():
    problem = Problem(type="", title="", status=503, code="busy", detail="a\x1b[2J\r\n  - b\u202e", hint="\x07c")
    error = error_from_answer(503, to_json(problem), "http://d")
    assert (error.message, error.hint) == ("a\\x1b[2J\\r\n  - b\\u202e", "\\x07c")
    assert "\x1b" not in str(error_from_answer(404, b"<html>\x1b[31m", "http://d"))


def test_errors_of_http_itself_and_of_newer_daemons():
    problem = replace(problem_of(FabricError("no such thing")), code="invented-later")
    assert type(error_from_answer(404, to_json(problem), "d")) is FabricError
    assert type(error_from_answer(403, to_json(problem), "d")) is errors.AccessError
    assert type(error_from_answer(400, to_json(problem), "d")) is errors.InputError


@given(st.integers(400, 599), st.binary(max_size=300))
def test_no_answer_is_too_strange(status, content):
    error = error_from_answer(status, content, "daemon")
    assert isinstance(error, FabricError)
    assert len(str(error)) < 1000


@given(st.dictionaries(st.sampled_from(["group", "ranks"]), st.from_type(type(None)) | st.lists(st.text()) | st.text()))
def test_details_of_any_shape_make_an_error(details):
    problem = replace(problem_of(RankLostError("g", [1])), details=details)
    error = error_from_answer(409, to_json(problem), "daemon")
    assert isinstance(error, RankLostError)
    assert error.ranks == ()


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "unix:/nowhere/at.sock"])
def test_nobody_there_is_transient_and_says_where_the_address_came_from(url):
    connection = Connection(parse_address(url, source="FABRICD_URL"))
    with pytest.raises(TransientError, match="came from FABRICD_URL") as error:
        connection.request("GET", "/livez")
    assert url in str(error.value)
    connection.close()
    del error
    gc.collect()  # a socket that was not closed would warn here


def test_a_proxy_of_the_environment_is_not_for_the_cluster(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    connection = Connection(parse_address("http://127.0.0.1:9"))
    with pytest.raises(TransientError, match=r"127\.0\.0\.1:9"):
        connection.request("GET", "/livez")
    connection.close()
