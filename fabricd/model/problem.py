"""Errors on the wire: RFC 9457 problem details with the error's stable code."""

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fabricd.errors import FabricError

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error as the HTTP interface tells it."""

    type: str  #: "urn:fabricd:error:" and the code
    title: str  #: the status in words
    status: int
    detail: str  #: what was tried, what was found
    code: str  #: stable; names the error class
    hint: str = ""  #: the next step, or the valid choices
    details: dict[str, Any] = field(default_factory=dict)  #: machine-readable facts


def problem_of(error: FabricError) -> Problem:
    """Return what goes over the wire for an error."""
    return Problem(
        type=f"urn:fabricd:error:{error.code}",
        title=HTTPStatus(error.http_status).phrase,
        status=error.http_status,
        detail=error.message,
        code=error.code,
        hint=error.hint,
        details=error.details,
    )
