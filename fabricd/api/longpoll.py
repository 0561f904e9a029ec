"""Holding an answer back until there is news, bounded in number and time, and ended by the daemon's end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, TypeVar

from fastapi import Query, Request
from starlette.types import Receive

from fabricd.errors import BusyError
from fabricd.shortage import Resource, ShortageError

T = TypeVar("T")

MAX_WAIT_SECONDS = 60.0
#: The parameter ``?wait=`` of every long poll.
Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS, allow_inf_nan=False, description="seconds to wait for news")]


class LongPolls:
    """All answers that are held back, and all streams.

    Args:
        limit: how many may be open at once.
    """

    def __init__(self, limit: int = 8192) -> None:
        self.limit = limit
        self.open = 0
        self.stopping = asyncio.Event()

    def stop(self) -> None:
        """End them all: the daemon stops."""
        self.stopping.set()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Count one long poll or stream while it is open.

        Raises:
            BusyError: too many are open, or the daemon stops.
        """
        if self.stopping.is_set():
            raise BusyError("the daemon is stopping", retry_after_seconds=2)
        if self.open >= self.limit:
            raise ShortageError(Resource.LONG_POLLS, f"{self.limit} long polls are open already")
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1

    async def hold(self, request: Request, news: Callable[[float], Awaitable[T]], seconds: float) -> T | None:
        """Return what ``news(seconds)`` returns; None when the client went away or the daemon stops first.

        ``news`` must end by itself after the given seconds, and stand being cancelled. With 0 seconds it is awaited
        without a slot. The request's body must have been read.

        Raises:
            BusyError: too many long polls are open, or the daemon stops.
        """
        if seconds <= 0:
            return await news(0.0)
        async with self.slot():
            return await first_of(news(seconds), until_gone(request.receive), self.stopping.wait())


async def first_of(main: Awaitable[T], *others: Awaitable[object]) -> T | None:
    """Return the result of ``main``, or None as soon as one of the others ends before it. Nothing is left running."""
    task = asyncio.ensure_future(main)
    rest = [asyncio.ensure_future(other) for other in others]
    everything: list[asyncio.Future[object]] = [task, *rest]  # type: ignore[list-item] # Future is invariant
    try:
        await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for future in everything:
            future.cancel()
        await asyncio.gather(*everything, return_exceptions=True)


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass
