"""What becomes of the other ranks: a thread that holds the group's event stream open.

The open stream is also this rank's sign of life. While the daemon is away the job goes on: the thread connects again
quietly. When the daemon does not know the group any more, the job goes on unwatched.
"""

import contextlib
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable

from fabric_client.rendezvous import Rendezvous
from fabric_client.transport import Answer, TransientError, has_come
from fabricd.errors import (
    FabricError,
    GroupAbortedError,
    GroupConflictError,
    GroupError,
    GroupGoneError,
    RankLostError,
)
from fabricd.model.codec import from_json
from fabricd.model.wire import EVENT_LINES, WatchEvent

_LOG = logging.getLogger("fabric_client")

#: The daemon sends something every 2 s; five beats missed is a dead connection.
_SILENCE_SECONDS = 10.0
#: A member may be away this long before it counts as lost, so the first tries are quick.
_RECONNECT_FIRST_SECONDS, _RECONNECT_MAX_SECONDS = 0.05, 0.5
#: What a rank sent before it left may still be on its way.
_LEFT_GRACE_SECONDS = 1.0
_STOP_SECONDS = 1.0
#: How long a rank that was stopped lets the thread hear what came meanwhile.
_CATCH_UP_SECONDS = 0.5
_GLANCE_SECONDS = 0.001
_LINE_MAX_BYTES = 1 << 20

_live: "weakref.WeakSet[GroupWatch]" = weakref.WeakSet()


class GroupWatch:
    """Knows when ranks are lost.

    Args:
        rendezvous: the group's daemon.
        stream: the event stream, where it is open already.

    Attributes:
        alert: something happened that may concern a pending operation; cheap to read in a loop, from any thread.
        watched: False once the daemon does not know the group any more.
        rolls: how often the roll was called, by whichever rank.
        rolled: when it last was, of ``time.monotonic``.
        doing: tells which operation this rank is in; called in a thread of its own when others wait in vain.
        on_failure: called once, in the watching thread, when the group has failed; for engines that nothing else wakes.
    """

    def __init__(self, rendezvous: Rendezvous, stream: Answer | None = None) -> None:
        self.alert = False
        self.watched = True
        self.rolls, self.rolled = 0, -math.inf
        self.doing: Callable[[], str] = str
        self.on_failure: Callable[[FabricError], None] = lambda error: None
        self._rendezvous = rendezvous
        self._group = rendezvous.member.group
        self._error: FabricError | None = None
        self._left: set[int] = set()
        self._left_at = 0.0
        self._stopped = False
        self._hearing = False  #: events may have been read that are not dealt with yet
        self._stream = stream
        self._socket: socket.socket | None = None if stream is None else stream.socket
        self._connected = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fabricd-watch", daemon=True)
        _live.add(self)

    def start(self, *, timeout: float) -> None:
        """Begin to watch; returns when the daemon sees this rank, or after ``timeout`` seconds."""
        self._thread.start()
        self._connected.wait(timeout)

    def failure(self, during: str) -> FabricError | None:
        """Return why ``during`` cannot end well any more, or None."""
        if self._error is not None:
            if isinstance(self._error, RankLostError):
                return RankLostError(self._group, self._error.ranks, during=during)
            return self._error
        if self._left and time.monotonic() - self._left_at > _LEFT_GRACE_SECONDS:
            error = RankLostError(self._group, sorted(self._left), during=f"{during}: it left the group before")
            error.details["left"] = True
            return error
        return None

    def catch_up(self) -> None:
        """Let the watching thread hear what came while this process did not run; returns at once if nothing has."""
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while not self.alert and (self._has_news() or self._hearing) and time.monotonic() < deadline:
            time.sleep(_GLANCE_SECONDS)

    def _has_news(self) -> bool:
        stream = self._socket
        return stream is not None and stream.fileno() >= 0 and has_come(stream)  # else the daemon is away

    def ignore(self) -> None:
        """Take no notice of what comes from now on, and hold the stream open: this rank is about to go."""
        self._stopped = True

    def stop(self) -> None:
        """Close the stream, which says to the daemon that this rank is gone."""
        self._stopped = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread out of its read
        self._thread.join(_STOP_SECONDS)

    def forget_after_fork(self) -> None:
        """In a forked child: close the inherited descriptor, so that the stream ends with the parent."""
        self._stopped = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                os.close(self._socket.detach())

    def _run(self) -> None:
        pause = _RECONNECT_FIRST_SECONDS
        while not self._stopped and self._error is None:
            opened = time.monotonic()
            try:
                with self._stream or self._opened() as stream:
                    self._stream = None
                    self._follow(stream)
            except TransientError:
                pass  # the daemon is away
            except FabricError as error:
                if not self._stopped:
                    self._ended(error)
                return
            lasted = time.monotonic() - opened > _RECONNECT_MAX_SECONDS
            pause = _RECONNECT_FIRST_SECONDS if lasted else min(_RECONNECT_MAX_SECONDS, pause * 2)
            if not self._stopped:  # or who stops this would wait in vain
                time.sleep(pause)

    def _opened(self) -> Answer:
        rendezvous = self._rendezvous
        return rendezvous.connection.ask("GET", rendezvous.watch_path, accept=EVENT_LINES, seconds=_SILENCE_SECONDS)

    def _follow(self, stream: Answer) -> None:
        self._socket = stream.socket
        self._connected.set()
        self._hearing = True
        try:
            while True:
                if not stream.has_more():
                    self._hearing = False  # what comes from now on is seen at the socket until it is read
                    stream.wait(_SILENCE_SECONDS)
                    self._hearing = True
                line = stream.line(longest=_LINE_MAX_BYTES, seconds=_SILENCE_SECONDS)
                if not line:
                    return
                self._happened(from_json(line, WatchEvent, what="watch event"))
        finally:
            self._hearing = False

    def _happened(self, event: WatchEvent) -> None:
        if event.kind == "lost":
            self._fail(RankLostError(self._group, event.ranks))
        elif event.kind == "left":
            self._left.update(set(event.ranks) - {self._rendezvous.member.rank})
            self._left_at = time.monotonic()
            self.alert = self.alert or bool(self._left)
        elif event.kind == "roll":
            self.rolls, self.rolled = self.rolls + 1, time.monotonic()
            # The daemon may take its time for the answer, and worse may be on its way.
            threading.Thread(target=self._answer_roll, name="fabricd-roll", daemon=True).start()
        elif event.kind == "aborted":
            self._fail(GroupAbortedError(f"group {self._group!r} was aborted: {event.reason or 'no reason given'}"))
        elif event.kind == "fenced":
            self._fail(
                GroupConflictError(
                    f"group {self._group!r} was taken over by a newer incarnation {event.reason}".strip()
                )
            )

    def _answer_roll(self) -> None:
        with contextlib.suppress(FabricError):  # then the others hear that this rank is silent
            self._rendezvous.here(self.doing())

    def _ended(self, error: FabricError) -> None:
        """Judge what the daemon answered instead of a stream."""
        if isinstance(error, RankLostError | GroupError) and not isinstance(error, GroupGoneError):
            self._fail(error)
        else:
            self.watched = False
            self._connected.set()
            _LOG.warning("group %r goes on unwatched, lost ranks will not be noticed: %s", self._group, error)

    def _fail(self, error: FabricError) -> None:
        first = self._error is None
        self._error = self._error or error  # the first is the reason of the others
        self._connected.set()
        self.alert = True
        if first and not self._stopped:
            self.on_failure(error)


def _after_fork() -> None:
    for watch in list(_live):
        watch.forget_after_fork()


os.register_at_fork(after_in_child=_after_fork)
