"""How many connections there may be, and who goes when there are too many."""

import logging
import os
import resource
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

from fabricd.errors import UnavailableError
from fabricd.shortage import Resource, Shortages

_log = logging.getLogger("fabricd.server")

#: File descriptors that are kept for everything else than connections.
_SPARE_DESCRIPTORS = 128
_LEAST_DESCRIPTORS = 64
#: Connections beyond the limit that may ask whether the daemon lives, and nothing else.
LAST_PLACES = 16
_LEAST = 4
#: Who reads at all has read something within this time.
_READ_SECONDS = 0.5


class Place(Enum):
    """What a new connection gets."""

    ORDINARY = "ordinary"
    LAST = "last"  #: it may ask whether the daemon lives
    NONE = "none"


class Connection(Protocol):
    """What may have to go."""

    def abort(self) -> None:
        """End it at once."""


class Room:
    """Room for connections.

    When there is none, the connection that has waited longest without a request makes room: so many slow clients keep
    nobody else out. Where all have one, the newest gets one of a few last places, so that a supervisor still hears that
    the daemon lives.

    Descriptors may become fewer than they were at the start. A few are kept in reserve for that moment: then there is
    no room for more connections than there are, and those of the reserve are the last places. Nor is there when memory
    comes to its end.

    Args:
        limit: how many connections there may be.
        connections: those that there are, kept by others.
        shortages: told of each that finds no room.
        near_memory_limit: says how near memory is to its end; "" when there is enough.
    """

    def __init__(
        self,
        limit: int,
        connections: set[Connection],
        shortages: Shortages,
        near_memory_limit: Callable[[], str] = lambda: "",
    ) -> None:
        #: Those without a request, in the order in which they began to wait: over TCP, and of processes of this host,
        #: which are ended only when there are no others.
        self.waiting: dict[Connection, None] = {}
        self.waiting_here: dict[Connection, None] = {}
        #: Those whose answers have to wait for their clients to read, and since when, seconds of the loop's clock.
        self.unread: dict[Connection, float] = {}
        self._connections = connections
        self._most = self._limit = limit
        self._shortages = shortages
        self._near_memory_limit = near_memory_limit
        self._reserve: list[int] = []
        self._fill_reserve()

    def full(self, more: int) -> bool:
        """Whether there are so many with ``more`` others that a new one cannot even be told so."""
        return more + len(self._connections) > self._limit + 2 * LAST_PLACES

    def place(self) -> Place:
        """Return what the connection gets that was just added."""
        near = self._near_memory_limit()
        if near:
            self._shortages.note(Resource.MEMORY, near)
            self._limit = max(_LEAST, min(self._limit, len(self._connections) - 1))
        if len(self._connections) <= self._limit:
            return Place.ORDINARY
        self._shortages.note(Resource.CONNECTIONS, f"{self._limit} connections")
        if self._end_longest_waiting() and len(self._connections) <= self._limit:
            return Place.ORDINARY
        return Place.LAST if len(self._connections) <= self._limit + LAST_PLACES else Place.NONE

    def narrow(self, error: OSError) -> bool:
        """Take that no connection could be accepted for want of descriptors; return whether the reserve gave some."""
        self._shortages.note(Resource.DESCRIPTORS, error)
        self._limit = max(_LEAST, min(self._limit, len(self._connections)))
        held, self._reserve = self._reserve, []
        for descriptor in held:
            os.close(descriptor)
        return bool(held)

    def clear_one(self) -> None:
        """End the connection that has waited longest; the loop has to come round before its descriptor is free."""
        self._end_longest_waiting()

    def widen(self) -> None:
        """Go back to what there was room for, once there are descriptors and memory again."""
        if not {Resource.DESCRIPTORS, Resource.MEMORY}.intersection(self._shortages.now):
            self._limit = self._most
            self._fill_reserve()

    def relieve(self, now: float) -> None:
        """End those that do not read their answers, which hold some memory, when that comes to its end.

        To be called every second.

        Args:
            now: seconds of the loop's clock.
        """
        if self._near_memory_limit():
            for connection in [one for one, since in self.unread.items() if now - since > _READ_SECONDS]:
                connection.abort()

    def resize(self, limit: int) -> None:
        """Have room for another number of connections; those that there are stay."""
        self._most = limit
        self.widen()

    def close(self) -> None:
        """Give the reserve back."""
        while self._reserve:
            os.close(self._reserve.pop())

    def _fill_reserve(self) -> None:
        with suppress(OSError):  # the next time
            while len(self._reserve) < LAST_PLACES:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _end_longest_waiting(self) -> bool:
        waiting = self.waiting or self.waiting_here
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        del waiting[oldest]
        self._connections.discard(oldest)
        oldest.abort()
        return True


def check_descriptors() -> None:
    """Refuse to begin where not even a supervisor's question could be answered.

    Raises:
        UnavailableError: RLIMIT_NOFILE is too low.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed != resource.RLIM_INFINITY and allowed < _LEAST_DESCRIPTORS:
        raise UnavailableError(
            f"{allowed} file descriptors (RLIMIT_NOFILE) are too few",
            hint=f"allow {_LEAST_DESCRIPTORS} at least, better 16384: LimitNOFILE= of the unit, or ulimit -n",
        )


def connection_limit(wanted: int) -> int:
    """Return how many connections may be open, after asking the kernel for as many descriptors.

    Args:
        wanted: ``max_connections``.
    """
    descriptors = wanted + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
            soft = allowed
    if soft == resource.RLIM_INFINITY or soft >= descriptors:
        return wanted
    limit = max(16, soft - _SPARE_DESCRIPTORS)
    _log.warning("fewer connections than max_connections: RLIMIT_NOFILE", extra={"facts": {"limit": limit}})
    return limit
