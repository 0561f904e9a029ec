"""Measurements between this node and its peers; who may ask, and for what, stands in ``fabricd.cluster.measuring``."""

import asyncio

from fastapi import APIRouter, Request
from starlette.responses import Response

from fabricd.api.longpoll import first_of, until_gone
from fabricd.api.message import answers, json_response, read_body, takes
from fabricd.api.pass_on import PassedOn, must_pass_on
from fabricd.api.scope import MEASURE
from fabricd.api.services import Services, UsesServices
from fabricd.errors import BusyError, InputError
from fabricd.model.codec import to_json
from fabricd.model.measurement import (
    MAX_PAIRS,
    ListenAnswer,
    ListenRequest,
    Measurement,
    MeasureRequest,
    PairsAnswer,
    PairsRequest,
    Unmeasured,
)

router = APIRouter(prefix="/v1/measure", dependencies=[MEASURE])

#: For the pairs of one question, as many as there may be; and for the question before it to be over.
_PAIRS_SECONDS = 45.0


@router.post("", responses=answers(Measurement), openapi_extra=takes(MeasureRequest))
async def measure(request: Request, services: UsesServices) -> Response:
    """Measure round trip and bandwidth from an address of this node to one of a peer's."""
    body = await read_body(request, MeasureRequest)
    return json_response(await services.measurer.measure(body))


@router.post("/listen", responses=answers(ListenAnswer), openapi_extra=takes(ListenRequest))
async def listen(request: Request, services: UsesServices) -> Response:
    """Be the other end of one measurement, for some seconds."""
    body = await read_body(request, ListenRequest)
    return json_response(await services.measurer.listen(body))


@router.post("/pairs", responses=answers(PairsAnswer), openapi_extra=takes(PairsRequest))
async def measure_pairs(request: Request, services: UsesServices) -> Response:
    """Have pairs of nodes measured, by whichever daemon of each pair can; a node takes part in one at a time.

    One question after the other; ends with the client that asked. An agent passes it on to a map node.
    """
    asked = await read_body(request, PairsRequest)
    if len(asked.pairs) > MAX_PAIRS:
        raise InputError(f"{len(asked.pairs)} pairs: at most {MAX_PAIRS} in one question")
    if len(set(asked.pairs)) < len(asked.pairs):
        raise InputError("a pair is asked for twice")
    if must_pass_on(request, services):
        return PassedOn(request, services, wait=2 * _PAIRS_SECONDS, content=to_json(asked))
    answer = await first_of(_pairs(asked, services), until_gone(request.receive))
    return Response(status_code=499) if answer is None else json_response(answer, headers={"Cache-Control": "no-store"})


async def _pairs(asked: PairsRequest, services: Services) -> PairsAnswer:
    try:
        async with asyncio.timeout(_PAIRS_SECONDS):  # who measures for long comes again and again, and others between
            await services.sweeping.acquire()
    except TimeoutError:
        raise BusyError("pairs are being measured for others", retry_after_seconds=5) from None
    try:
        measured, left = await services.pairs.measure(
            asked.pairs, max_age_seconds=asked.max_age_seconds, seconds=_PAIRS_SECONDS
        )
    finally:
        services.sweeping.release()
    unmeasured = tuple(Unmeasured(pair=pair, reason=reason) for pair, reason in left.items())
    return PairsAnswer(measured=tuple(measured), unmeasured=unmeasured)
