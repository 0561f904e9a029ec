"""A real daemon held against its own API description: requests that fit it and requests that do not.

No answer is a failure of the server, each has a status, type and form that the description tells, and what does not fit
is refused. ``make test-schema`` draws more requests, hundreds for each operation.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import load_all_checks, not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fabricd.api.app import ROUTERS
from fabricd.localview import LocalView
from fabricd.model.codec import to_builtins
from fabricd.model.wire import CLAIM_HEADER, INCARNATION_HEADER, SECRET_HEADER, JoinRequest
from tests.support.daemon import RunningDaemon

load_all_checks()

#: Requests of each kind for each operation.
REQUESTS = int(os.environ.get("SCHEMA_REQUESTS", "5"))
#: An answer must come within this time; a plan is given up after 60 s, and that is told.
_SECONDS = 90
#: Plans are made in a process each.
_DEAR = {"/v1/plans": 5}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPERATIONS = sorted(
    (method, route.path)
    for router in ROUTERS
    for route in router.routes
    if isinstance(route, APIRoute)
    for method in route.methods
)
_GROUP = {"path_parameters": {"group": "g"}}
_HEADERS = {SECRET_HEADER: "0123456789abcdef", CLAIM_HEADER: "ab" * 16}
_MEMBER = {"path_parameters": {"group": "g", "rank": 0}, "headers": _HEADERS}
_FENCE = {"path_parameters": {"group": "g", "number": 0}, "headers": _HEADERS}
_JOIN = to_builtins(JoinRequest(world_size=1, claim="ab" * 16, view=LocalView(hostname="a", boot_id="b")))
#: Requests in order, each with the status of its answer: what the daemon tells is in the form that it says.
STORY: tuple[tuple[str, str, dict[str, Any], int], ...] = (
    ("GET", "/v1/node", {}, 200),
    ("GET", "/v1/node", {"headers": {"If-None-Match": "*"}}, 304),
    ("GET", "/v1/cluster", {"query": {"networks": "1"}}, 200),
    ("GET", "/v1/cluster", {"query": {"summary": "1"}}, 200),
    ("GET", "/v1/nodes/{node}", {"path_parameters": {"node": "h100-0001"}}, 200),
    ("GET", "/v1/nodes/{node}", {"path_parameters": {"node": "nobody"}}, 404),
    ("GET", "/v1/events", {}, 200),
    ("GET", "/v1/paths", {"query": {"src": "gpu0", "dst": "h100-0002/gpu3", "explain": 1, "capacity": 1}}, 200),
    ("GET", "/v1/paths", {"query": {"src": "gpu0", "dst": "gpu1", "policy": "priority"}}, 200),
    ("POST", "/v1/plans", {"body": {"ranks": ["gpu0", "gpu1"], "kind": "trees", "collective": "broadcast"}}, 200),
    ("POST", "/v1/plans", {"body": {"bytes": 0}}, 400),
    ("GET", "/v1/export/{form}", {"path_parameters": {"form": "nccl-topo"}}, 200),
    ("GET", "/v1/export/{form}", {"path_parameters": {"form": "slurm-topology.txt"}}, 200),
    ("PUT", "/v1/groups/{group}/members/{rank}", {**_MEMBER, "body": _JOIN, "query": {"wait": 20}}, 200),
    ("GET", "/v1/groups/{group}", {**_GROUP, "headers": _HEADERS}, 200),
    ("POST", "/v1/groups/{group}/fence/{number}", {**_FENCE, "body": {"rank": 0, "keys": {"a": "b"}}}, 200),
    ("PUT", "/v1/groups/{group}/members/{rank}/doing", {**_MEMBER, "query": {"what": "all_reduce"}}, 204),
    ("POST", "/v1/groups/{group}/members/{rank}/roll", _MEMBER, 200),
    ("DELETE", "/v1/groups/{group}/members/{rank}", _MEMBER, 204),
    ("GET", "/livez", {}, 200),
    ("GET", "/readyz", {}, 200),
    ("GET", "/metrics", {}, 200),
)  # fmt: skip


@pytest.fixture(scope="module")
def api(running: RunningDaemon) -> Any:
    # A value that is too long may make a head that is too long as well: 431.
    refused = {"expected-statuses": [400, 401, 403, 404, 405, 406, 409, 415, 422, 428, 429, 431, "5xx"]}
    config = SchemathesisConfig.from_dict({"checks": {"negative_data_rejection": refused}})
    return schemathesis.openapi.from_url(f"{running.url}/openapi.json", config=config)


def test_the_description_has_every_route(api: Any) -> None:
    told = {(found.ok().method.upper(), found.ok().path) for found in api.get_all_operations()}
    assert told == set(OPERATIONS)


def test_the_description_tells_of_streams(api: Any) -> None:
    for method, path, media_type in (
        ("GET", "/v1/events", "text/event-stream"),
        ("GET", "/v1/groups/{group}/members/{rank}/watch", "application/x-ndjson"),
        ("PUT", "/v1/groups/{group}/members/{rank}", "application/x-ndjson"),
    ):
        assert media_type in api[path][method].definition.raw["responses"]["200"]["content"], path


def test_the_description_tells_which_headers_a_group_needs(api: Any) -> None:
    for method, path in OPERATIONS:
        names = {one["name"] for one in api[path][method].definition.raw.get("parameters", ()) if one["in"] == "header"}
        if path.startswith("/v1/groups"):
            assert names == {SECRET_HEADER, CLAIM_HEADER, INCARNATION_HEADER}


def test_what_is_told_is_in_the_form_that_is_described(api: Any, running: RunningDaemon) -> None:
    for method, path, request, status in STORY:
        case = api[path][method].Case(**request)
        answer = case.call(timeout=_SECONDS)
        assert answer.status_code == status, (method, path, request, answer.text)
        case.validate_response(answer, checks=CHECKS)
    assert "unforeseen" not in running.log


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_fit(api: Any, running: RunningDaemon, method: str, path: str) -> None:
    _draw(api[path][method], GenerationMode.POSITIVE, lambda case: _judge(case, CHECKS))
    assert "unforeseen" not in running.log


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_requests_that_do_not_fit(api: Any, running: RunningDaemon, method: str, path: str) -> None:
    operation = api[path][method]
    if not (operation.query or operation.path_parameters or operation.body):
        return  # there is nothing that could be wrong
    _draw(operation, GenerationMode.NEGATIVE, lambda case: _judge(case, [*CHECKS, negative_data_rejection]))
    assert "unforeseen" not in running.log


def _draw(operation: Any, mode: GenerationMode, judge: Callable[[Case], None]) -> None:
    dear = _DEAR.get(operation.path, 1)

    @settings(max_examples=max(REQUESTS // dear, 1), suppress_health_check=list(HealthCheck), database=None)
    @given(operation.as_strategy(generation_mode=mode))
    def all_drawn(case: Case) -> None:
        judge(case)

    all_drawn()


def _judge(case: Case, checks: list[Any]) -> None:
    wait = (case.query or {}).get("wait")
    if isinstance(wait, int | float) and not isinstance(wait, bool) and 0 < wait <= 60:
        case.query["wait"] = 0.01  # that it holds answers back is tested elsewhere
    case.call_and_validate(checks=checks, timeout=_SECONDS)
