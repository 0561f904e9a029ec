"""Is the daemon alive, can it answer, and what does it count."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import PlainTextResponse, Response

from fabricd.api.message import in_words
from fabricd.api.scope import OPEN, READ
from fabricd.api.services import UsesServices

router = APIRouter()

#: The loop beats every second; a loop silent for longer than this hangs.
BEAT_LIMIT_SECONDS = 10.0


@router.get("/livez", dependencies=[OPEN], responses=in_words(200, 503))
async def livez(services: UsesServices) -> Response:
    """Say whether the event loop moves: 200 or 503. Answered at all, it mostly does."""
    silent = services.clock() - services.beat_at
    if silent > BEAT_LIMIT_SECONDS:
        return PlainTextResponse(f"the event loop has not moved for {silent:.0f} s\n", 503)
    return PlainTextResponse("alive\n")


@router.get("/readyz", dependencies=[OPEN], responses=in_words(200, 503))
async def readyz(services: UsesServices) -> Response:
    """Say whether this daemon can answer questions: 200, or 503 with the reason in words.

    What it runs short of is told on a second line; then some questions are refused with 503.
    """
    if services.polls.stopping.is_set():
        return PlainTextResponse("the daemon is stopping\n", 503)
    if not services.nodes.ready:
        return PlainTextResponse("the first probe of this machine has not ended\n", 503)
    short = services.shortages.now
    return PlainTextResponse("ready\n" + (f"short of {', '.join(short)}\n" if short else ""))


@router.get("/metrics", dependencies=[READ], responses=in_words(200))
async def metrics(services: UsesServices) -> Response:
    """Return what the daemon counts, in Prometheus' text format."""
    return Response(services.metrics.render(), media_type=CONTENT_TYPE_LATEST)
