"""Every error as problem+json, those of the framework too."""

from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute

from fabricd.api.message import json_response
from fabricd.api.query import parameter_error
from fabricd.errors import BusyError, FabricError, InputError, TokenError
from fabricd.model.problem import MEDIA_TYPE, Problem, problem_of
from fabricd.nearest import nearest
from fabricd.shortage import ShortageError

#: Codes of the errors that HTTP itself knows; the rest is the error tree's.
_HTTP_CODES = {404: "not-found", 405: "method-not-allowed", 413: "too-large", 415: "bad-media-type"}


class PayloadTooLargeError(InputError):
    """The body of a request is longer than this daemon reads."""

    code = "too-large"
    http_status = 413


class TooSlowError(InputError):
    """The body of a request did not come in time."""

    code = "too-slow"
    http_status = 408


class MisdirectedError(FabricError):
    """The Host header names somebody else: a web page's name that was pointed at this address (DNS rebinding)."""

    code = "misdirected"
    http_status = 421


def problem_response(error: FabricError) -> Response:
    """Return the answer that tells an error."""
    headers = {"Cache-Control": "no-store"}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(error.retry_after_seconds)
    if isinstance(error, TokenError):
        headers["WWW-Authenticate"] = 'Bearer realm="fabricd"'
    return json_response(problem_of(error), error.http_status, headers, MEDIA_TYPE)


def install(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """Answer the errors of handlers and framework as problems; what nobody foresaw is the gate's part.

    Args:
        app: the application.
        routes: all of its.
    """

    @app.exception_handler(FabricError)
    async def _fabric(request: Request, error: FabricError) -> Response:
        if isinstance(error, ShortageError):
            request.app.state.services.shortages.note(error.resource, error.message)
        return problem_response(error)

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:
        return problem_response(parameter_error(request, error))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> Response:
        return _http_problem(request, error, routes)


def _http_problem(request: Request, error: HTTPException, routes: Iterable[BaseRoute]) -> Response:
    status = error.status_code
    detail = error.detail
    path = request.scope["path"][:200]  # request.url is made with the Host header, which may hold anything
    if status == 404:
        known = [route.path for route in routes if isinstance(route, APIRoute)]
        detail = f"nothing is at {path}{nearest(path, known)}"
    elif status == 405:
        detail = f"{request.method[:20]} is not possible at {path}"
    headers: dict[str, Any] = dict(error.headers or {})
    if status == 405:
        headers["Allow"] = _methods(request.scope["path"], [*routes, *request.app.routes])
    hint = f"possible: {headers['Allow']}" if "Allow" in headers else "GET /openapi.json lists what there is"
    problem = Problem(
        type=f"urn:fabricd:error:{_HTTP_CODES.get(status, 'http')}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=str(detail),
        code=_HTTP_CODES.get(status, "http"),
        hint=hint if status in (404, 405) else "",
    )
    return json_response(problem, status, headers, MEDIA_TYPE)


def _methods(path: str, routes: Iterable[BaseRoute]) -> str:
    """Return what is possible at a path. The framework tells of the first route there only."""
    here = (route.methods or set() for route in routes if isinstance(route, APIRoute) and route.path_regex.match(path))
    found = set[str]().union(*here)
    return ", ".join(sorted(found | {"HEAD"} if "GET" in found else found))
