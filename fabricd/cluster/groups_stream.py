"""What one member's event stream has to say."""

import asyncio
from collections.abc import Sequence

from fabricd.model.wire import WatchEvent

#: How often a stream says that it lives. Clients take five silent beats for a dead connection.
HEARTBEAT_SECONDS = 2.0
_ALIVE = WatchEvent(kind="alive")


class WatchStream:
    """Events for one member, in order.

    Ranks that left are told of with the next beat or event, together: at the end of a large job every rank leaves,
    and nobody waits for that news.

    Args:
        number: unique in this process.
        left: ranks that left, a sequence that grows.
    """

    def __init__(self, number: int, left: Sequence[int]) -> None:
        self.number = number
        self._events = [WatchEvent(kind="hello")]
        self._left = left
        self._left_told = 0
        self._ended = False
        self._news = asyncio.Event()
        self._news.set()

    def put(self, event: WatchEvent) -> None:
        """Add an event."""
        self._events.append(event)
        self._news.set()

    def end(self) -> None:
        """Let the reader finish what is there, and stop."""
        self._ended = True
        self._news.set()

    async def next(self) -> list[WatchEvent]:
        """Return what there is to say, at the latest after one beat; nothing when the stream ends."""
        if not self._ended:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._news.wait()
            except TimeoutError:
                pass
        told, self._events = self._events, []
        if self._ended:
            return told
        self._news.clear()
        news = self._left[self._left_told :]
        if news:
            told.append(WatchEvent(kind="left", ranks=tuple(sorted(news))))
            self._left_told += len(news)
        return told or [_ALIVE]
