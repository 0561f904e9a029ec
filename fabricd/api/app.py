"""The application: routers, errors and the gate around them."""

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.routing import BaseRoute

from fabricd import __version__
from fabricd.api import admin, events, export, findings, groups, health, measure, node, page, paths, plans, problem
from fabricd.api.gate import Gate
from fabricd.api.message import json_response, schemas
from fabricd.api.query import KNOWN_NAMES
from fabricd.api.scope import READ, check_routes, describe
from fabricd.api.services import Services

#: All of them, written out; routes are looked through in this order, and those for supervisors are asked most.
ROUTERS: tuple[APIRouter, ...] = (
    health.router,
    node.router,
    events.router,
    paths.router,
    plans.router,
    export.router,
    findings.router,
    page.router,
    groups.router,
    measure.router,
    admin.router,
)


def create_app(services: Services) -> FastAPI:
    """Return the ASGI application that answers with these services."""
    app = FastAPI(
        title="fabricd",
        version=__version__,
        summary="Topology map, path choice and communicators for GPU clusters",
        # The pages would load their scripts from the internet.
        docs_url=None,
        openapi_url=None,  # a route of its own, which needs a scope like every other
        redoc_url=None,
        redirect_slashes=False,
        middleware=[Middleware(Gate, services=services)],
        dependencies=[KNOWN_NAMES],
    )
    app.state.services = services
    problem.install(app, _routes())
    for router in ROUTERS:
        app.include_router(router)

    @app.get("/openapi.json", dependencies=[READ], include_in_schema=False)
    async def openapi() -> Response:
        return json_response(app.openapi())

    check_routes(_routes())
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign] # the way FastAPI documents for own descriptions
    return app


def _routes() -> list[BaseRoute]:
    return [route for router in ROUTERS for route in router.routes]


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the API description, with the schemas of the messages as msgspec reads and writes them."""
    if not app.openapi_schema:
        told = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        told.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        describe(_routes(), told)
        groups.describe(told)
        app.openapi_schema = told
    return app.openapi_schema
