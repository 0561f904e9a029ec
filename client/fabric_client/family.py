"""Communicators that were made of one another: they share a process's engine, and one fate."""

import time
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from fabric_client.membership import Membership
from fabricd.errors import InputError

if TYPE_CHECKING:
    from fabric_client.runner import Runner


class Family:
    """The open communicators of one engine's start. What breaks one breaks all; the first one's end is that of all.

    Attributes:
        blocked: the operation that each thread waits for, by its identifier, the longest first.
    """

    def __init__(self) -> None:
        self.blocked: dict[int, str] = {}
        self._members: list[Runner] = []

    def add(self, runner: "Runner") -> None:
        """Take in one more."""
        self._members.append(runner)

    def doing(self) -> str:
        """Return the operation that this rank is in, "" for none; of several the oldest, those that block first."""
        pending = (work.what for runner in list(self._members) for work in runner.pending_works())
        return next(chain(list(self.blocked.values()), pending), "")

    def mark_broken(self, error: BaseException) -> None:
        """Let nothing be started any more."""
        for runner in list(self._members):
            runner.mark_broken(error)

    def go(self, say: Callable[[Membership], None], error: BaseException) -> None:
        """End all at once, because of ``error``; say so to each group. Waits for nobody."""
        self.mark_broken(error)
        for runner in list(self._members):
            runner.mark_closed()
            if runner.leads and runner.membership is not None:
                say(runner.membership)
        self._members.clear()

    def settle(self, ending: "Runner", timeout: float | None) -> None:
        """Wait for what is pending in the background; how each ended, its own handle tells.

        Args:
            ending: with all that were made of it.
            timeout: seconds for all together; None: each has its own.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        for runner in self._with_descendants(ending):
            for work in runner.pending_works():
                with suppress(InputError):
                    work.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def shut_down(self, ending: "Runner", timeout: float) -> bool:
        """End one in order, with all that were made of it, after its farewell; tell whether that was done in time.

        Args:
            ending: which.
            timeout: seconds for each engine.
        """
        gone = self._with_descendants(ending)
        for runner in gone:
            runner.mark_closed()
            self._members.remove(runner)
        engines = [ending.engine] if ending.parent is None else [runner.engine for runner in reversed(gone)]
        in_time = [engine.shutdown(timeout=timeout) for engine in engines]
        for runner in gone:
            if runner.leads and runner.membership is not None:
                runner.membership.leave()
        return all(in_time)

    def _with_descendants(self, ending: "Runner") -> list["Runner"]:
        return [runner for runner in self._members if runner.descends_from(ending)]
