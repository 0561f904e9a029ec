"""Parameters that no route has, values that cannot be, bodies that are none: each is told what could be."""

import httpx
import pytest

from fabricd.model.codec import from_json
from fabricd.model.problem import Problem
from tests.schema.test_openapi import OPERATIONS
from tests.support.daemon import RunningDaemon


def refused(answer: httpx.Response, status: int = 400) -> Problem:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    told = from_json(answer.content, Problem)
    assert (answer.status_code, told.status) == (status, status)
    return told


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        (
            "/v1/paths?src=gpu0&dest=gpu1&byts=3",
            "no parameter is called 'dest'; did you mean 'dst'?; no parameter is called 'byts'; did you mean 'bytes'?",
        ),
        ("/v1/node?summary=1", "no parameter is called 'summary'"),
        ("/v1/node?=1", "no parameter is called ''"),
        ("/openapi.json?pretty", "no parameter is called 'pretty'"),
        ("/v1/paths", "src is missing; dst is missing"),
        ("/v1/paths?src=&dst=lo", "src is '', not a text of 1 to 512 characters"),
        ("/v1/paths?src=a&dst=b&bytes=1M", "bytes is '1M', not a whole number from 1 to 1152921504606846976"),
        ("/v1/paths?src=a&dst=b&policy=best", "policy is 'best', not one of fastest, priority"),
        ("/v1/paths?src=a&dst=b&explain=maybe", "explain is 'maybe', not 1 or 0 (true or false)"),
        ("/v1/node?wait=nan", "wait is 'nan', not a number from 0 to 60.0"),
        ("/v1/node?generation=-1", "generation is '-1', not a whole number from 0 to 9007199254740992"),
        ("/v1/groups/g/members/first/watch", "rank is 'first', not a whole number from 0 to 2147483648"),
        (f"/v1/nodes/{'n' * 300}", f"node is '{'n' * 40}...', not a text of 1 to 255 characters"),
    ],
)
def test_parameters(running: RunningDaemon, path: str, detail: str) -> None:
    assert refused(running.get(path)).detail == detail


def test_a_refusal_tells_what_there_is(running: RunningDaemon) -> None:
    told = refused(running.get("/v1/cluster?sumary=1"))
    assert told.hint == "GET /v1/cluster takes wait, generation, summary, networks"
    assert told.details["valid"] == ["wait", "generation", "summary", "networks"]
    assert "eth0" in refused(running.get("/v1/paths?dst=lo")).hint


def test_headers_are_not_repeated(running: RunningDaemon) -> None:
    told = refused(running.get("/v1/events", headers={"Last-Event-ID": "s3cret" * 20}))
    assert told.detail == "last-event-id (a header) is not a text of 0 to 64 characters"


@pytest.mark.parametrize("path", ["/livez?verbose=1", "/readyz?verbose"])
def test_supervisors_may_add_what_they_like(running: RunningDaemon, path: str) -> None:
    assert running.get(path).status_code == 200


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"", "the request has no body"),
        (b" \n", "the request has no body"),
        (b"{", "the request's body is not a valid PlanRequest: Input data was truncated"),
        (b'{"bytes":"1M"}', "the request's body is not a valid PlanRequest: Expected `int`, got `str` - at `$.bytes`"),
    ],
)
def test_bodies(running: RunningDaemon, body: bytes, detail: str) -> None:
    told = refused(httpx.post(f"{running.url}/v1/plans", content=body, trust_env=False))
    assert (told.detail, told.hint) == (detail, "send a PlanRequest in JSON; GET /openapi.json has its schema")


@pytest.mark.parametrize("path", sorted({path for _, path in OPERATIONS} | {"/openapi.json"}))
def test_a_method_that_is_not_there_is_told_all_that_are(running: RunningDaemon, path: str) -> None:
    there = {method for method, one in [*OPERATIONS, ("GET", "/openapi.json")] if one == path}
    there |= {"HEAD"} if "GET" in there else set()
    place = path.format(node="n", form="dot", group="g", rank=0, number=0)
    for method in {"PATCH", "OPTIONS", "TRACE", "PUT", "DELETE", "POST"} - there:
        answer = httpx.request(method, running.url + place, trust_env=False)
        assert refused(answer, 405).hint == f"possible: {', '.join(sorted(there))}"
        assert answer.headers["allow"] == ", ".join(sorted(there))
