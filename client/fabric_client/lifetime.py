"""How a communicator comes to its end: what breaks it, who is told, and why nothing can be started any more."""

import os
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from fabric_client.engine.base import Engine
from fabric_client.membership import NO_NEWS, Membership, News
from fabric_client.work import UnderWay, Work
from fabricd.errors import CommunicatorError, EngineError, FabricError, InputError

#: An engine may notice a dead peer before the daemon does, which waits 1.5 s for a member to reconnect.
_VERDICT_SECONDS = 3.0

_live: "weakref.WeakSet[Lifetime]" = weakref.WeakSet()


class Family:
    """The open communicators of one engine's start. What breaks one breaks all; the first one's end is that of all.

    Attributes:
        blocked: the operation that each thread waits for, by its identifier, the longest first.
    """

    def __init__(self) -> None:
        self.blocked: dict[int, str] = {}
        self._members: list[Lifetime] = []

    def add(self, member: "Lifetime") -> None:
        """Take in one more."""
        self._members.append(member)

    def doing(self) -> str:
        """Return the operation that this rank is in, "" for none; of several the oldest, those that block first."""
        pending = (work.what for member in list(self._members) for work in member.pending_works())
        return next(chain(list(self.blocked.values()), pending), "")

    def mark_broken(self, error: BaseException) -> None:
        """Let nothing be started any more."""
        for member in list(self._members):
            member.mark_broken(error)

    def go(self, say: Callable[[Membership], None], error: BaseException) -> None:
        """End all at once, because of ``error``; say so to each group. Waits for nobody."""
        self.mark_broken(error)
        for member in list(self._members):
            member.mark_closed()
            if member.leads and member.membership is not None:
                say(member.membership)
        self._members.clear()

    def settle(self, ending: "Lifetime", timeout: float | None) -> None:
        """Wait for what is pending in the background; how each ended, its own handle tells.

        Args:
            ending: with all that were made of it.
            timeout: seconds for all together; None: each has its own.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for member in self._with_descendants(ending):
            for work in member.pending_works():
                with suppress(InputError):
                    work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def shut_down(self, ending: "Lifetime", timeout: float) -> bool:
        """End one in order, with all that were made of it, after its farewell; tell whether that was done in time.

        Args:
            ending: which.
            timeout: seconds for each engine.
        """
        gone = self._with_descendants(ending)
        for member in gone:
            member.mark_closed()
            self._members.remove(member)
        engines = [ending.engine] if ending.parent is None else [member.engine for member in reversed(gone)]
        in_time = [engine.shutdown(timeout=timeout) for engine in engines]
        for member in gone:
            if member.leads and member.membership is not None:
                member.membership.leave()
        return all(in_time)

    def _with_descendants(self, ending: "Lifetime") -> list["Lifetime"]:
        return [member for member in self._members if member.descends_from(ending)]


class Lifetime:
    """Whether a communicator can be used. The first failure breaks it for good, because its peers are out of step.

    Args:
        engine: moves the data.
        membership: the group, or None where a launcher looks after the ranks.
        group: name, for errors.
        parent: what it was made of; None for the first.

    Attributes:
        parent: what it was made of.
        closed: nothing can be started any more, for this communicator was ended.
    """

    def __init__(
        self, engine: Engine, membership: Membership | None, group: str, *, parent: "Lifetime | None" = None
    ) -> None:
        self.engine = engine
        self.membership = membership
        self.group = group
        self.closed = False
        self.parent = parent
        self._family: Family = Family() if parent is None else parent._family
        self._news: News = NO_NEWS if membership is None else membership.watch
        #: One look before each operation: neither closed, nor broken, nor in a forked child.
        self._usable = True
        self._forked = False
        self._started = time.monotonic()  #: the latest operation
        self._broken: BaseException | None = None
        #: Pending in the background. What was pending when it broke stays: the engine may still write there.
        self._works = UnderWay()
        self._orphans: list[object] = []
        if self.leads and membership is not None:
            membership.watch.doing = self._family.doing
        _live.add(self)

    def failure(self, what: str) -> FabricError | None:
        """Return why ``what`` cannot end well any more, or None. Cheap while all is well."""
        told = None if self.membership is None else self.membership.failure(what)
        return told if told is not None or self._usable else self._why_unusable(what)

    def _look_up(self, now: float, what: str) -> None:
        """Raise what the group has come to, before an operation is started."""
        since, self._started = self._started, now
        error = None if self.membership is None else self.membership.before_start(now, since, what)
        if error is not None:
            raise error

    def _why_unusable(self, what: str) -> CommunicatorError:
        """Return why nothing may be started: another process's, closed, or broken."""
        if self._forked:
            return CommunicatorError(
                f"{what}: this process is a fork of rank {self.engine.rank}, and MPI does not survive a fork",
                hint="use the communicator in the process that created it, or start workers by spawn",
            )
        if self.closed:
            return CommunicatorError(f"{what}: the communicator of group {self.group!r} is closed")
        return CommunicatorError(
            f"{what}: the communicator of group {self.group!r} is broken since {self._broken}",
            hint="restart the job or form a new group",
        )

    def abort(self, reason: str) -> None:
        """End the group for all ranks at once."""
        if not self.closed and not self._forked:
            self._family.go(lambda membership: membership.abort(reason), CommunicatorError(f"aborted: {reason}"))

    def give_up(self, error: BaseException) -> None:
        """Go, because of ``error``, and wait for nobody."""
        if self._forked:  # a child that ends is no rank, and has nothing to say
            return
        self._family.go(lambda membership: membership.give_up(f"rank {self.engine.rank}", error), error)

    def mark_broken(self, error: BaseException) -> None:
        """Let nothing be started any more, because of ``error``; the first one counts."""
        if self._broken is None:
            self._broken, self._usable = error, False
            self._orphans.extend(self._works.all())
            self.engine.abandon()

    def mark_closed(self) -> None:
        """Let nothing be started any more: it was ended."""
        self.closed, self._usable = True, False

    def pending_works(self) -> list[Work[Any]]:
        """Return what is under way in the background, the oldest first."""
        return self._works.all()

    def descends_from(self, other: "Lifetime") -> bool:
        """Tell whether this one was made of the other, or is it."""
        return self is other or (self.parent is not None and self.parent.descends_from(other))

    @property
    def usable(self) -> bool:
        """Whether an operation could be started."""
        return self._usable

    @property
    def made_of(self) -> str:
        """The group of the first communicator of its family, where it is not that one itself, else ""."""
        return "" if self.parent is None else self.parent.made_of or self.parent.group

    @property
    def leads(self) -> bool:
        """Whether its membership is its own, and not that of what it was made of."""
        return self.parent is None or self.membership is not self.parent.membership

    def _break(
        self, error: BaseException, what: str, arguments: Sequence[object], pending: object = None
    ) -> BaseException:
        """Mark as broken; return the error to raise: that a rank is lost says more than what MPI saw of it."""
        self._orphans.append((pending, arguments))
        if isinstance(error, EngineError) and error.details.get("peer_may_be_lost"):
            error = self._verdict(what) or _with_own_part(error, what, arguments)
        elif self.membership is not None:
            self.membership.explain(error, what)
        self._family.mark_broken(error)
        return error

    def _verdict(self, what: str) -> FabricError | None:
        deadline = time.monotonic() + (_VERDICT_SECONDS if self.membership is not None else 0.0)
        verdict = self.failure(what)
        while verdict is None and time.monotonic() < deadline:
            time.sleep(0.02)
            verdict = self.failure(what)
        return verdict


def _with_own_part(error: EngineError, what: str, arguments: Sequence[object]) -> EngineError:
    """Add to what an engine says, where no rank is lost, what the others may not agree with."""
    if not error.hint:  # an engine that knows better has one
        from fabric_client.arrays import describe  # needs NumPy

        passed = (
            describe(one.shape, one.dtype) for one in arguments if hasattr(one, "shape") and hasattr(one, "dtype")
        )
        array = next(passed, None)
        error.message = f"{what}{f', here of {array}' if array else ''}: {error.message}"
        error.hint = "no rank is known to be lost. Do all call the same, with arrays of the same shape and dtype? " + (
            "FABRICD_CHECK_CALLS=1 tells which rank calls what"
        )
    return error


def _after_fork() -> None:
    for lifetime in list(_live):
        lifetime._forked, lifetime._usable = True, False


os.register_at_fork(after_in_child=_after_fork)
