"""Parameters of requests: names that no route has are refused, and values that cannot be are told in words."""

import typing
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from fastapi import Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

from fabricd.api.scope import OPEN
from fabricd.errors import InputError
from fabricd.nearest import nearest

_SHOWN = 40
_MAX_FAULTS = 20


async def _known_names(request: Request) -> None:  # FastAPI runs plain functions in threads, which costs more
    """Refuse parameters that the route does not have: without them the answer would be one to another question.

    Raises:
        InputError: names them, and what the route takes.
    """
    route = request.scope.get("route")
    if not request.scope["query_string"] or not isinstance(route, APIRoute) or OPEN in route.dependencies:
        return  # supervisors add what they like
    known = [field.alias for field in route.dependant.query_params]
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        faults = [f"no parameter is called {name[:_SHOWN]!r}{nearest(name, known)}" for name in unknown[:_MAX_FAULTS]]
        hint = f"{request.method} {route.path} takes {', '.join(known) or 'no parameters'}"
        raise InputError("; ".join(faults), hint=hint, details={"faults": faults, "valid": known})


#: Dependency of the whole application.
KNOWN_NAMES = params.Depends(_known_names)


def parameter_error(request: Request, error: RequestValidationError) -> InputError:
    """Return which parameters are wrong, what was found and what could be."""
    fields = dict(_fields(request.scope.get("route")))
    faults, hints = [], []
    for item in error.errors()[:_MAX_FAULTS]:
        where, name = str(item["loc"][0]), str(item["loc"][-1])
        field = fields.get((where, name))
        faults.append(f"{name} {_fault(item, where, _expected(field) if field else 'what it should be')}")
        if field is not None and field.description:
            hints.append(f"{name}: {field.description}")
    return InputError("; ".join(faults), hint="; ".join(dict.fromkeys(hints)), details={"faults": faults})


def _fields(route: object) -> Iterator[tuple[tuple[str, str], Any]]:
    """Yield what a route declares of its parameters, by where they stand and name."""
    if isinstance(route, APIRoute):
        declared = route.dependant
        groups = {"query": declared.query_params, "path": declared.path_params, "header": declared.header_params}
        for where, group in groups.items():
            yield from (((where, field.alias), field.field_info) for field in group)


def _fault(item: Mapping[str, Any], where: str, expected: str) -> str:
    if item["type"] == "missing":
        return "is missing"
    if where == "header":  # what it holds is not repeated: of headers it may be a secret
        return f"(a header) is not {expected}"
    shown = str(item["input"])
    return f"is {shown if len(shown) <= _SHOWN else shown[:_SHOWN] + '...'!r}, not {expected}"


def _expected(field: Any) -> str:
    """Return in words what a parameter may be."""
    kinds = [kind for kind in typing.get_args(field.annotation) or (field.annotation,) if kind is not type(None)]
    bounds = {
        name: found
        for part in field.metadata
        for name in ("ge", "le", "min_length", "max_length")
        if (found := getattr(part, name, None)) is not None
    }
    span = f" from {bounds['ge']:g} to {bounds['le']}" if {"ge", "le"} <= bounds.keys() else ""
    kind = kinds[0]
    if kind is bool:
        return "1 or 0 (true or false)"
    if kind in (int, float):
        return ("a whole number" if kind is int else "a number") + span
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(str(one.value) for one in kind)}"
    return f"a text of {bounds.get('min_length', 0)} to {bounds.get('max_length', 'any number of')} characters"
