"""What this daemon may run short of; which errors say so; and what is told of it.

A shortage ends nothing: what needs the resource is refused or tried again, and the rest goes on. It is told in the log
when it begins and when it is over, in ``/readyz``, and in the metrics.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from fabricd.errors import BusyError

_log = logging.getLogger("fabricd.shortage")

#: A shortage that nothing has met for so long is over.
OVER_SECONDS = 10.0
#: What failed for a shortage begins anew after so long.
_AGAIN_SECONDS = 2.0


class Resource(StrEnum):
    """What there may be too little of: of the machine, or of what the configuration allows."""

    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    THREADS = "threads"  #: and processes
    STORAGE = "storage"  #: of what a restarted daemon must know
    CONNECTIONS = "connections"  #: ``max_connections``, or as many as there are descriptors for
    REQUESTS = "requests"  #: ``max_requests``
    LONG_POLLS = "long_polls"  #: ``max_long_polls``
    LOG = "log"  #: nobody reads it: of the pipe, or the journal


_BY_ERRNO = {
    errno.EMFILE: Resource.DESCRIPTORS,
    errno.ENFILE: Resource.DESCRIPTORS,
    errno.ENOMEM: Resource.MEMORY,
    errno.ENOBUFS: Resource.MEMORY,
    errno.EAGAIN: Resource.THREADS,  # of fork(2); sockets' are dealt with where they are read
}


class ShortageError(BusyError):
    """Not now: there is too little of something.

    Attributes:
        resource: of what.
    """

    def __init__(
        self, resource: Resource, message: str, *, hint: str = "ask again later", retry_after_seconds: int = 5
    ) -> None:
        self.resource = resource
        super().__init__(message, hint=hint, retry_after_seconds=retry_after_seconds)


def shortage_of(error: BaseException) -> Resource | None:
    """Return what an error says that there is too little of; None: it says something else."""
    if isinstance(error, BaseExceptionGroup):
        found = [shortage_of(one) for one in error.exceptions]
        return None if None in found else found[0]
    if isinstance(error, ShortageError):
        return error.resource
    if isinstance(error, MemoryError):
        return Resource.MEMORY
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0)
    # CPython's threads say no more than this.
    return Resource.THREADS if isinstance(error, RuntimeError) and "can't start new thread" in str(error) else None


def _first_of(error: BaseException) -> BaseException:
    """Return what a group of errors is about; how many tasks met it says nothing."""
    return _first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


@dataclass(slots=True)
class _Spell:
    """One shortage, as long as it lasts."""

    begun_at: float
    met_at: float
    times: int = 0


class Shortages:
    """What this daemon runs short of at the moment. For the event loop's thread only.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._spells: dict[Resource, _Spell] = {}
        self.met: dict[Resource, int] = dict.fromkeys(Resource, 0)  #: how often each was met since the start

    def note(self, resource: Resource, told: object = "") -> None:
        """Remember that there was too little of a resource.

        Args:
            resource: of what.
            told: what came of it; logged when it is the first time.
        """
        now = self._clock()
        if resource not in self._spells:
            self._spells[resource] = _Spell(begun_at=now, met_at=now)
            _log.warning("short of %s", resource, extra={"facts": {"met": told} if told else {}})
        spell = self._spells[resource]
        spell.met_at = now
        spell.times += 1
        self.met[resource] += 1

    def settle(self) -> None:
        """Let go of what is over."""
        now = self._clock()
        for resource, spell in list(self._spells.items()):
            if now - spell.met_at > OVER_SECONDS:
                del self._spells[resource]
                facts = {"times": spell.times, "seconds": round(spell.met_at - spell.begun_at, 1)}
                _log.info("no longer short of %s", resource, extra={"facts": facts})

    @property
    def now(self) -> tuple[Resource, ...]:
        """What there is too little of."""
        return tuple(sorted(self._spells))

    async def outlast(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        """Do work, and begin it anew whenever it ends for a shortage.

        Args:
            work: begins it.
            name: of it, for the log.
        """
        while True:
            try:
                return await work()
            except Exception as error:
                lacking = shortage_of(error)
                if lacking is None:
                    raise
                self.note(lacking, f"{name}: {_first_of(error)}")
            await asyncio.sleep(_AGAIN_SECONDS)
