"""The application: routers, errors and the gate around them."""

from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware import Middleware

from fabricd import __version__
from fabricd.api import events, export, groups, health, measure, node, paths, plans, problem
from fabricd.api.gate import Gate
from fabricd.api.message import schemas
from fabricd.api.services import Services

#: All of them, written out.
ROUTERS: tuple[APIRouter, ...] = (
    node.router,
    events.router,
    paths.router,
    plans.router,
    export.router,
    groups.router,
    measure.router,
    health.router,
)


def create_app(services: Services) -> FastAPI:
    """Return the ASGI application that answers with these services."""
    app = FastAPI(
        title="fabricd",
        version=__version__,
        summary="Topology map, path choice and communicators for GPU clusters",
        # The pages would load their scripts from the internet.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        middleware=[Middleware(Gate, services=services)],
    )
    app.state.services = services
    problem.install(app)
    for router in ROUTERS:
        app.include_router(router)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign] # the way FastAPI documents for own descriptions
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """Return the API description, with the schemas of the messages as msgspec reads and writes them."""
    if not app.openapi_schema:
        told = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        told.setdefault("components", {}).setdefault("schemas", {}).update(schemas())
        told["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        told["security"] = [{}, {"token": []}]
        app.openapi_schema = told
    return app.openapi_schema
