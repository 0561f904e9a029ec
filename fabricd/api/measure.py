"""Measurements between this node and its peers; who may ask, and for what, stands in ``fabricd.cluster.measuring``."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from fabricd.api.message import answers, json_response, read_body, takes
from fabricd.api.scope import MEASURE
from fabricd.api.services import UsesServices
from fabricd.model.measurement import ListenAnswer, ListenRequest, Measurement, MeasureRequest

router = APIRouter(prefix="/v1/measure", dependencies=[MEASURE])


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
