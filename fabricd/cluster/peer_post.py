"""A question to a peer's daemon that is no long poll."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import httpx

from fabricd.cluster.peer_client import peer_client, read_body
from fabricd.credentials import PeerAccess
from fabricd.errors import BusyError, FabricError, ParseError, UnreachableError
from fabricd.model.codec import from_json, to_json
from fabricd.model.problem import Problem

T = TypeVar("T")

_MAX_ANSWER_BYTES = 1 << 20


class PeerPost:
    """Posts messages to peers' daemons.

    Args:
        access: how they are asked, at the moment.
    """

    def __init__(self, access: Callable[[], PeerAccess]) -> None:
        self._access = access

    async def __call__(self, url: str, path: str, body: object, kind: type[T], *, seconds: float) -> T:
        """Return the answer.

        Args:
            url: the peer's daemon.
            path: e.g. ``"/v1/measure"``.
            body: a message.
            kind: what the answer must be.
            seconds: for all of it.

        Raises:
            BusyError: not now.
            UnreachableError: no answer, or a refusal; says why.
            ParseError: an answer that is none.
        """
        try:
            async with (
                asyncio.timeout(seconds),
                peer_client(self._access()) as client,
                client.stream(
                    "POST",
                    url + path,
                    content=to_json(body),
                    headers={"Content-Type": "application/json"},
                    timeout=seconds,
                ) as response,
            ):
                answer = await read_body(response, _MAX_ANSWER_BYTES)
        except TimeoutError as error:
            raise UnreachableError(f"{url} did not answer within {seconds:g} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"{url}: {error or type(error).__name__}") from error
        if response.status_code != httpx.codes.OK:
            raise _refusal(url, response.status_code, answer)
        return from_json(answer, kind, what=f"the answer of {url}")


def _refusal(url: str, status: int, answer: bytes) -> FabricError:
    try:
        problem = from_json(answer, Problem)
    except ParseError:
        return UnreachableError(f"{url} answered with status {status}")
    if problem.code == BusyError.code:
        return BusyError(f"{url}: {problem.detail}", hint=problem.hint)
    return UnreachableError(f"{url} refused: {problem.detail}", hint=problem.hint)
