"""A group beneath a framework that has engines of its own, PyTorch or JAX: the plan, who is lost, and how to go."""

import atexit
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Self

from fabric_client.endpoints import own_address
from fabric_client.engine.settings import choose_settings
from fabric_client.explain import plan_lines
from fabric_client.joining import Joined
from fabric_client.sever import sever
from fabricd.errors import CommunicatorError, EngineError, FabricError

#: An engine may notice a dead peer before the daemon does, which waits 1.5 s for a member to reconnect.
_VERDICT_SECONDS = 3.0
_FIRST_FENCE, _LAST_FENCE = 0, 1
_LOG = logging.getLogger("fabric_client")
_STATUS = re.compile(r"[A-Z][A-Z_]+: ")


class FrameworkGroup:
    """This process's place in a group whose data a framework moves.

    As a context manager it closes the framework's engine at the end of the block. What the framework raises because a
    rank is lost leaves the block as the typed error that names the rank.

    Attributes:
        rank: in the framework.
        size: number of ranks.
        launcher_rank: as the launcher counts, and the plan.
        settings: environment variables that are set for as long as the group lives.
        lines: for ``explain()``.
        spared: ports whose connections outlive lost ranks.
    """

    def __init__(
        self,
        joined: Joined,
        framework: str,
        *,
        planned_order: bool,
        close_seconds: float,
        ignored: Collection[str] = (),
    ) -> None:
        """Take the plan's settings; nothing is set yet.

        Args:
            joined: a rank in a complete group.
            framework: what moves the data, for messages.
            planned_order: number the ranks as the plan finds best, instead of as the launcher does.
            close_seconds: how long the first rank that closes waits for the others, who may still need what it serves.
            ignored: settings that mean nothing to it.

        Raises:
            EngineError: settings or an order that cannot work here.
        """
        self.joined = joined
        self.framework = framework
        self.rank = self.launcher_rank = joined.answer.rank
        self.size = joined.answer.size
        self.closed = False
        self.spared: set[int] = set()
        self._close_seconds = close_seconds
        self._before: dict[str, str | None] = {}
        self._end: Callable[[bool], None] = lambda peacefully: None
        self._pid = os.getpid()
        try:
            wanted = [setting for setting in joined.part.settings if setting.name not in ignored]
            self.settings, notes = choose_settings(wanted, joined.view, os.environ)
            self.lines = list(notes)
            if joined.answer.plan.order:
                self._reorder(joined.answer.plan.order, planned_order)
        except EngineError as error:
            joined.membership.give_up(f"rank {self.launcher_rank} could not start {framework}", error)
            raise

    def _reorder(self, order: Sequence[int], taken: bool) -> None:
        if sorted(order) != list(range(self.size)):
            raise EngineError(f"the plan's order is none of {self.size} ranks: {str(order)[:80]}")
        new = order.index(self.launcher_rank)
        told = f"here rank {new} instead of {self.launcher_rank}"
        self.lines.append(f"the plan's order of ranks is {'taken' if taken else 'not asked for'}: {told}")
        if taken:
            self.rank = new

    def _failed(self, error: FabricError) -> None:
        """Wake the framework, in the watching thread; that a rank of this host ended it hears from the kernel."""
        _LOG.error("%s: %s", self.framework, error)
        own = self.joined.part.address
        others = {part.address for part in self.joined.answer.plan.ranks} - {own, ""}
        if own and others and not self._is_over():
            sever(own, others, spared=self.spared)

    def own_address(self) -> str:
        """Return this rank's address on the planned network, of the loopback where all ranks are on one host.

        Raises:
            EngineError: it has none.
        """
        joined = self.joined
        return own_address(joined.answer.plan, joined.part, group=joined.identity.group, what=self.framework)

    def start(self, begin: Callable[[], None], end: Callable[[bool], None]) -> None:
        """Set the settings and start the framework's engine.

        Args:
            begin: starts it.
            end: ends it; is told whether all ranks do so in peace.

        Raises:
            FabricError: what became of the group meanwhile.
        """
        self._before = {name: os.environ.get(name) for name in self.settings}
        # They stay: frameworks read them again for each further group of ranks.
        os.environ.update(self.settings)
        watch = self.joined.membership.watch
        watch.on_failure = self._failed
        if watch.alert and (found := self.failure()) is not None:
            self._failed(found)
        try:
            begin()
        except BaseException as error:
            verdict = self._verdict(error)
            self._put_back()
            self.joined.membership.give_up(f"rank {self.launcher_rank} could not start {self.framework}", verdict)
            if verdict is error:
                raise
            raise verdict from error
        self._end = end
        atexit.register(self._end_of_process)

    def meet(self, key: str, value: str | None, *, timeout: float) -> str:
        """Exchange a word over the daemon's authenticated fence, once: one rank gives it, all have it.

        Args:
            key: what it is.
            value: None for those who only ask.
            timeout: seconds to wait for the others.

        Raises:
            EngineError: nobody gave it.
            FabricError: what became of the group.
        """
        keys = {} if value is None else {key: value}
        answer = self.joined.rendezvous.fence(_FIRST_FENCE, keys, timeout=timeout).get(key)
        if answer is None:
            raise EngineError(f"no rank of group {self.joined.identity.group!r} says {key}")
        return answer

    def failure(self) -> FabricError | None:
        """Return why the group cannot go on, or None. Ranks that left in peace are no reason."""
        found = self.joined.membership.failure(self.framework)
        return None if found is None or found.details.get("left") else found

    def check(self) -> None:
        """Raise when the group cannot go on; cheap, to be called between steps.

        Raises:
            RankLostError, GroupError: what became of it.
        """
        found = self.failure()
        if found is not None:
            raise found

    def explain(self) -> str:
        """Return what was planned, why, and what is in force."""
        identity, membership = self.joined.identity, self.joined.membership
        lines = [
            f"group {identity.group}: rank {self.rank} of {self.size} (from {identity.source}), {self.framework}",
            f"rendezvous: {membership.describe()}",
            *plan_lines(membership.plan),
            *self.lines,
        ]
        return "\n".join(lines)

    def close(self) -> None:
        """End the framework's engine together with the other ranks, and leave the group. Safe to repeat."""
        if self._is_over():
            return
        if self.failure() is None:
            with contextlib.suppress(FabricError):  # those that do not come are not waited for
                self.joined.rendezvous.fence(_LAST_FENCE, {}, timeout=self._close_seconds)
        self._finish(peacefully=self.failure() is None)
        self.joined.membership.leave()

    def _finish(self, *, peacefully: bool) -> None:
        self.closed = True
        atexit.unregister(self._end_of_process)
        try:
            self._end(peacefully)
        finally:
            self._put_back()

    def _is_over(self) -> bool:
        return self.closed or os.getpid() != self._pid

    def _put_back(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}

    def _end_of_process(self) -> None:
        """Exit handler. A rank that fails tells the others why; one that ends without closing just leaves."""
        if self._is_over():
            return
        self.closed = True
        failed_with = getattr(sys, "last_value", None) or self.failure()
        if failed_with is not None:
            self._end(False)
            self.joined.membership.give_up(f"rank {self.launcher_rank}", failed_with)
        else:
            self.joined.membership.leave()

    def _verdict(self, error: BaseException) -> BaseException:
        """Return the error to raise: that a rank is lost says more than what the framework saw of it."""
        if isinstance(error, FabricError) or not isinstance(error, Exception):
            return error
        patience = _VERDICT_SECONDS if _is_of_framework(error) else 0.0
        deadline = time.monotonic() + patience
        while (found := self.failure()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        return error if found is None else found

    def __enter__(self) -> Self:
        if self.closed:
            raise CommunicatorError(f"the process group of {self.joined.identity.group!r} is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        if self._is_over():
            return
        verdict = self._verdict(error)
        self._finish(peacefully=False)
        self.joined.membership.give_up(f"rank {self.launcher_rank}", verdict)
        if verdict is not error:
            raise verdict from error


class Current:
    """The group that the functions of a framework's module speak of.

    Args:
        hint: what to call first.
    """

    def __init__(self, hint: str) -> None:
        self.group: FrameworkGroup | None = None
        self._hint = hint

    def get(self) -> FrameworkGroup:
        """Return it.

        Raises:
            CommunicatorError: there is none.
        """
        if self.group is None or self.group.closed:
            raise CommunicatorError("this process is in no group that fabric_client made", hint=self._hint)
        return self.group


def _is_of_framework(error: Exception) -> bool:
    """Tell whether PyTorch or JAX may have raised it: the latter makes ValueErrors of "UNKNOWN: Gloo failed", too."""
    return isinstance(error, RuntimeError) or bool(_STATUS.match(str(error)))
