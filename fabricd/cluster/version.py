"""A number that can be waited for."""

import asyncio


class Version:
    """A number that only rises, and can be waited for. Lives in the server's event loop."""

    def __init__(self) -> None:
        self.number = 0
        self._changed = asyncio.Event()

    def advance(self) -> int:
        """Raise the number, wake those who wait, return the new number."""
        self.number += 1
        self._changed.set()
        self._changed = asyncio.Event()
        return self.number

    async def wait_for_change(self, known: int, seconds: float) -> int:
        """Return the number as soon as it is not ``known`` any more, or after so many seconds."""
        if self.number == known:
            try:
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return self.number
