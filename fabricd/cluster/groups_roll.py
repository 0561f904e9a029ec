"""A roll call: which members of a running group answer, and what each is doing.

A connection that is open says that a host lives and holds it; a process that was stopped, or whose host hangs, keeps it
open, too. When ranks wait in vain for others, the question is asked of all of them, once for all who want to know.
"""

import asyncio
from collections.abc import Iterable

from fabricd.model.wire import RollAnswer

#: Within this time whoever lives answers.
ANSWER_SECONDS = 2.0
#: Who asks so soon afterwards gets the same answer.
KEPT_SECONDS = 5.0


class RollCall:
    """One call.

    Args:
        ranks: who is called.
        now: monotonic seconds.
    """

    def __init__(self, ranks: Iterable[int], now: float) -> None:
        self._silent = set(ranks)
        self._doing: dict[int, str] = {}
        self._complete = asyncio.Event()
        self._until = now + KEPT_SECONDS

    def is_kept(self, now: float) -> bool:
        """Tell whether it still stands for how things are."""
        return now < self._until

    def here(self, rank: int, doing: str) -> None:
        """Take a member's answer; who was not called, or answers twice, changes nothing."""
        if rank in self._silent:
            self._silent.remove(rank)
            self._doing[rank] = doing
        if not self._silent:
            self._complete.set()

    async def answer(self) -> RollAnswer:
        """Return who has answered, when all have, or the time is over."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._complete.wait()
        except TimeoutError:
            pass
        return RollAnswer(
            silent=tuple(sorted(self._silent)), doing={str(rank): what for rank, what in self._doing.items()}
        )
