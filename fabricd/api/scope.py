"""Which scope a route needs: named beside the route, told in the API description, and never forgotten."""

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import Request, params
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from fabricd.api.auth import Caller, caller, identify
from fabricd.errors import AccessError
from fabricd.scopes import Grants, Scope

#: Name of the bearer token in the API description.
_SCHEME = "bearer"


class ScopeError(AccessError):
    """The caller is known, and may not ask this."""

    code = "scope-missing"


class _Needs:
    """A dependency that lets only those in who have a scope; with None everybody, strangers too."""

    def __init__(self, scope: Scope | None) -> None:
        self.scope = scope

    async def __call__(self, request: Request) -> None:
        asker = await caller(request)
        if self.scope is not None:
            _check(asker, self.scope)


def check_still(request: Mapping[str, Any], grants: Grants, scope: Scope) -> None:
    """Refuse to go on with a stream whose client may not ask for it any more: its token may have been taken back.

    Args:
        request: the ASGI scope that it began with.
        grants: of now.
        scope: that it needs.

    Raises:
        TokenError, ScopeError: it may not.
    """
    _check(identify(request, grants), scope)


def _check(asker: Caller, scope: Scope) -> None:
    if scope not in asker.scopes:
        raise ScopeError(
            f"{asker} has not the scope {scope.value!r}",
            hint=f"it has: {', '.join(sorted(asker.scopes)) or 'none'}; the daemon's access_file gives scopes",
            details={"scope": scope.value},
        )


#: Dependencies of routers and routes.
READ, PLAN, JOIN, MEASURE, ADMIN = (params.Depends(_Needs(scope)) for scope in Scope)
#: That of routes that tell nothing of the machine, for supervisors, which hold no token.
OPEN = params.Depends(_Needs(None))


def check_routes(routes: Iterable[BaseRoute]) -> None:
    """Make sure that each route says who may ask.

    Raises:
        RuntimeError: one does not, or says it twice.
    """
    for route in routes:
        if not isinstance(route, APIRoute) or len(_needs_of(route)) != 1:
            raise RuntimeError(f"the route {route} must name one scope")


def describe(routes: Iterable[BaseRoute], told: dict[str, Any]) -> None:
    """Add to an API description which scope each operation needs."""
    told.setdefault("components", {})["securitySchemes"] = {
        _SCHEME: {"type": "http", "scheme": "bearer", "description": "a token of the daemon; local callers need none"},
        "certificate": {"type": "mutualTLS", "description": "a client certificate that access_file names"},
    }
    for route in routes:
        if isinstance(route, APIRoute):
            (scope,) = _needs_of(route)
            ways = [] if scope is None else [{_SCHEME: [scope.value]}, {"certificate": [scope.value]}]
            for method in route.methods or ():
                operation = told["paths"].get(route.path_format, {}).get(method.lower())
                if operation is not None:
                    operation["security"] = ways


def _needs_of(route: APIRoute) -> list[Scope | None]:
    calls = [dependency.dependency for dependency in route.dependencies]
    return [call.scope for call in calls if isinstance(call, _Needs)]
