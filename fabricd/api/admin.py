"""The daemon itself."""

from fastapi import APIRouter
from starlette.responses import Response

from fabricd.api.message import answers
from fabricd.api.scope import ADMIN
from fabricd.api.services import UsesServices
from fabricd.errors import UnavailableError

router = APIRouter(dependencies=[ADMIN])


@router.post("/v1/reload", status_code=204, responses=answers())
async def reload(services: UsesServices) -> Response:
    """Read the configuration, tokens and certificates again, as SIGHUP does; one with faults changes nothing.

    204 when it counts; 400 with every fault in ``details``.
    """
    if services.reload is None:
        raise UnavailableError("this daemon was started without a configuration that can be read again")
    await services.reload()
    return Response(status_code=204)
