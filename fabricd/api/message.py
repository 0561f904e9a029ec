"""Bodies in and out, by msgspec; and how the API description tells of them."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from fabricd.errors import ParseError
from fabricd.model.cluster import ClusterStatus, NodeStatus
from fabricd.model.codec import from_json, to_line
from fabricd.model.collective import CollectivePlan
from fabricd.model.event import EventPage
from fabricd.model.finding import Findings
from fabricd.model.measurement import (
    ListenAnswer,
    ListenRequest,
    Measurement,
    MeasureRequest,
    PairsAnswer,
    PairsRequest,
)
from fabricd.model.path import PathAnswer
from fabricd.model.plan_request import PlanRequest
from fabricd.model.problem import MEDIA_TYPE, Problem
from fabricd.model.snapshot import Snapshot
from fabricd.model.wire import FenceAnswer, FenceRequest, GroupStatus, JoinAnswer, JoinRequest, RollAnswer, WatchEvent

T = TypeVar("T")

#: Everything that a request or an answer may be; the API description holds their schemas.
WIRE_TYPES: tuple[type, ...] = (
    Snapshot,
    ClusterStatus,
    NodeStatus,
    EventPage,
    PathAnswer,
    Findings,
    PlanRequest,
    CollectivePlan,
    Problem,
    JoinRequest,
    JoinAnswer,
    GroupStatus,
    FenceRequest,
    FenceAnswer,
    WatchEvent,
    RollAnswer,
    MeasureRequest,
    Measurement,
    ListenRequest,
    ListenAnswer,
    PairsRequest,
    PairsAnswer,
)
#: Of a route whose answers bear an ETag.
UNCHANGED: dict[int | str, dict[str, Any]] = {304: {"description": "what If-None-Match names is still so"}}
_REF = "#/components/schemas/{name}"


async def read_body(request: Request, kind: type[T]) -> T:
    """Return the request's body, decoded and validated.

    Raises:
        ParseError: not JSON, or not of that shape; says where.
        PayloadTooLargeError, TooSlowError: from the gate.
    """
    body = await request.body()
    hint = f"send a {kind.__name__} in JSON; GET /openapi.json has its schema"
    if not body.strip():
        raise ParseError("the request has no body", hint=hint)
    try:
        return from_json(body, kind, what="the request's body")
    except ParseError as error:
        raise ParseError(error.message, hint=hint) from error


def json_response(
    value: Any, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = "application/json"
) -> Response:
    """Return the answer that holds a model."""
    return Response(to_line(value), status, headers, media_type)


def answers(*kinds: type, **by_status: type) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route: its answer with status 200, others by ``_202=KIND``; the rest are problems.

    Examples:
        ``answers(Snapshot)``; ``answers(JoinAnswer, _202=GroupStatus)``; ``answers()`` for a 204.
    """
    told: dict[int | str, dict[str, Any]] = {
        "default": {"description": "an error", "content": {MEDIA_TYPE: _schema(Problem)}}
    }
    statuses = [(200, kind) for kind in kinds] + [(int(name[1:]), kind) for name, kind in by_status.items()]
    for status, kind in statuses:
        told[status] = {"description": _first_line(kind), "content": {"application/json": _schema(kind)}}
    return told


def streams(kind: type, media_type: str) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that answers with a stream without end, of messages that are a ``kind``."""
    return {200: {"description": f"a stream of: {_first_line(kind)}", "content": {media_type: _schema(kind)}}}


def either(
    one: Mapping[int | str, dict[str, Any]], other: Mapping[int | str, dict[str, Any]]
) -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that answers with 200 either way, by what ``Accept`` says."""
    content = {**one[200]["content"], **other[200]["content"]}
    return {**one, 200: {**one[200], "content": content}}


def in_words(*statuses: int, media_type: str = "text/plain") -> dict[int | str, dict[str, Any]]:
    """Return the ``responses`` of a route that answers with a text, with these statuses; the rest are problems."""
    content = {media_type: {"schema": {"type": "string"}}}
    refused = {MEDIA_TYPE: _schema(Problem)}  # the gate may refuse with the same status
    told = {
        status: {"description": "the text", "content": content | (refused if status >= 400 else {})}
        for status in statuses
    }
    return answers() | told


def takes(kind: type) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route whose body is a ``kind``."""
    return {"requestBody": {"required": True, "content": {"application/json": _schema(kind)}}}


def schemas() -> dict[str, Any]:
    """Return the JSON schema of every wire type and of what they hold, by name."""
    return msgspec.json.schema_components(WIRE_TYPES, ref_template=_REF)[1]


def _schema(kind: type) -> dict[str, Any]:
    return {"schema": {"$ref": _REF.format(name=kind.__name__)}}


def _first_line(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().partition("\n")[0]
