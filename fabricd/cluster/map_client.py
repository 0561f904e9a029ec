"""Questions of an agent, which holds no map, to the daemons that do."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus

import httpx

from fabricd.cluster.peer_client import peer_client, read_body
from fabricd.credentials import PeerAccess
from fabricd.errors import BusyError, FabricError, ParseError, TokenError, UnreachableError
from fabricd.model.codec import from_json
from fabricd.model.problem import Problem

_log = logging.getLogger("fabricd.agent")

#: Marks a question that was passed on: whoever holds no map either refuses it, so that none goes round in circles.
PASSED_ON_HEADER = "X-Fabricd-Passed-On"
_CONNECT_SECONDS = 2.0
_MAX_PROBLEM_BYTES = 1 << 16
#: What whoever asked is told; the rest another map node need not say, or no daemon says.
_ANSWERS = frozenset({200, 304, *(one.value for one in HTTPStatus if 400 <= one < 500)} - {401, 403, 421, 429})


class NoMapError(FabricError):
    """A question that was passed on came to a daemon that holds no map either."""

    code = "no-map"
    http_status = 508


class MapClient:
    """Asks the map nodes, first the one that answered last.

    Args:
        urls: of the map nodes, at the moment.
        access: how daemons are asked, at the moment.
        name: of this daemon, in the mark of what it passes on.
    """

    def __init__(self, urls: Callable[[], Sequence[str]], access: Callable[[], PeerAccess], name: str) -> None:
        self._urls = urls
        self._access = access
        self._name = name
        self._best = ""

    @asynccontextmanager
    async def ask(
        self, path: str, *, seconds: float, headers: Mapping[str, str] | None = None, content: bytes | None = None
    ) -> AsyncIterator[tuple[str, httpx.Response]]:
        """Yield the URL of a map node and its answer, whose body has not been read.

        Args:
            path: with the query.
            seconds: for each wait for data.
            headers: of the question.
            content: JSON to post; without it, the question is a GET.

        Raises:
            UnreachableError: no map node answers, says what each did; or an answer breaks off while it is read.
            BusyError: they all do, and are busy.
        """
        urls = sorted(self._urls(), key=lambda url: url != self._best)
        faults: list[FabricError] = []
        method, kind = ("GET", {}) if content is None else ("POST", {"Content-Type": "application/json"})
        async with peer_client(self._access()) as client:
            for url in urls:
                request = client.build_request(
                    method,
                    url + path,
                    content=content,
                    headers={**(headers or {}), **kind, PASSED_ON_HEADER: self._name},
                    timeout=httpx.Timeout(seconds, connect=_CONNECT_SECONDS),
                )
                try:
                    response = await self._send(client, request, url)
                except FabricError as error:
                    faults.append(error)
                    continue
                self._best = url
                try:
                    yield url, response
                except httpx.HTTPError as error:
                    raise UnreachableError(f"{url}: its answer broke off: {error or type(error).__name__}") from error
                finally:
                    await response.aclose()
                return
        told = "; ".join(error.message for error in faults)
        if faults and all(isinstance(error, BusyError) for error in faults):
            raise BusyError(f"the map nodes are busy: {told}")
        raise UnreachableError(f"no map node answers: {told}", hint="see map_nodes")

    async def _send(self, client: httpx.AsyncClient, request: httpx.Request, url: str) -> httpx.Response:
        """Return an answer that is one.

        Raises:
            FabricError: none, or one that another map node need not give.
        """
        begun = time.monotonic()
        try:
            response = await client.send(request, stream=True)
        except httpx.HTTPError as error:
            _log.info("no answer", extra={"facts": {"url": url, "seconds": round(time.monotonic() - begun, 1)}})
            raise UnreachableError(f"{url}: {error or type(error).__name__}") from error
        if response.status_code in _ANSWERS:
            return response
        try:
            problem = await _problem(response)
        finally:
            await response.aclose()
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise TokenError(f"{url} refuses this daemon's token")
        if problem is not None and problem.code == BusyError.code:
            raise BusyError(f"{url}: {problem.detail}")
        raise UnreachableError(f"{url}: {problem.detail if problem else f'status {response.status_code}'}")


async def _problem(response: httpx.Response) -> Problem | None:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            return from_json(await read_body(response, _MAX_PROBLEM_BYTES), Problem)
    except (TimeoutError, httpx.HTTPError, ParseError):
        return None
