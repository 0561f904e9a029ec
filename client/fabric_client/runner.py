"""Runs the operations of one communicator, with deadlines, until something breaks it."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

from fabric_client.engine.base import Engine, PendingEngine
from fabric_client.lifetime import Lifetime
from fabric_client.membership import PAUSE_SECONDS, Membership
from fabric_client.pending import ENDED, Pending
from fabric_client.progress import Core, Word, check_timeout, wait_for
from fabric_client.stats import Tally
from fabric_client.work import Work
from fabricd.errors import EngineError, FabricError, InputError, OperationTimeoutError, RankLostError

_LOG = logging.getLogger("fabric_client")
#: How long a rank that ends without close() waits for the others to end, too.
_EXIT_SECONDS = 2.0
#: And in all, where some of what it has sent has not come to them: less than the 30 s after which Slurm and Kubernetes
#: kill what they have asked to end, for handlers of others run after this.
_DELIVERY_SECONDS, _GLANCE_SECONDS = 20.0, 0.1
#: All ranks have said farewell when the engine is ended: what is left takes milliseconds.
_SHUTDOWN_SECONDS = 10.0


class Runner(Lifetime):
    """What all operations share.

    Args:
        engine: moves the data.
        membership: the group, or None where a launcher looks after the ranks.
        group: name, for errors.
        timeout: default seconds for an operation; None is without limit.
        ranks_on_host: how many ranks share this host's cores.
        parent: what it was made of; None for the first.

    Attributes:
        collectives: held by a blocking collective, and while one in the background is started, so that those of several
            threads run one after another.
        core: that operations are waited for on.
        tally: counts what ended well.
    """

    def __init__(
        self,
        engine: Engine,
        membership: Membership | None,
        group: str,
        *,
        timeout: float | None,
        ranks_on_host: int,
        parent: "Runner | None" = None,
    ) -> None:
        super().__init__(engine, membership, group, parent=parent)
        self.timeout = timeout
        self.ranks_on_host = ranks_on_host
        self.core = Core(ranks_on_host)
        self.tally = Tally()
        self.collectives = threading.Lock()
        self._family.add(self)

    def run(
        self,
        name: str,
        what: str,
        timeout: float | None,
        nbytes: int,
        start: Callable[..., Pending],
        arguments: tuple[object, ...] = (),
    ) -> None:
        """Start an operation and wait for its end.

        Args:
            name: counts as this.
            what: its name in errors.
            timeout: seconds; None takes the communicator's.
            nbytes: counts as so many.
            start: starts it, given ``arguments``.
            arguments: kept when the operation fails, because the engine may still write into the arrays among them.
        """
        # Small messages pay for each line before the first test: it ends them when their peers were first.
        if timeout is not None:
            check_timeout(timeout)
        if not self._usable:
            raise self._why_unusable(what)
        pending: Pending | None = None
        began = time.monotonic()
        try:
            if self._news.alert or began - self._started > PAUSE_SECONDS:
                self._look_up(began, what)
            self._started = began
            pending = start(*arguments)
            if pending is not ENDED and not pending.test():
                self._wait(pending, what, timeout, arguments)
        except InputError:
            raise  # noticed before anything was sent, or after all was received: nobody is out of step
        except BaseException as error:
            verdict = self._break(error, what, arguments, pending)
            if verdict is error:
                raise
            raise verdict from error
        self.tally.add(name, nbytes, time.monotonic() - began)

    def _wait(self, pending: Pending, what: str, timeout: float | None, arguments: tuple[object, ...]) -> None:
        blocked, thread = self._family.blocked, get_ident()
        blocked[thread] = what
        try:
            wait_for(
                pending,
                lambda: self.failure(what),
                timeout=self.timeout if timeout is None else timeout,
                what=what,
                arguments=arguments,
                core=self.core,
                word=self.late_word,
            )
        except OperationTimeoutError as error:
            if self.membership is not None:  # now, for the others ask as well, and this rank is still in it
                self.membership.explain(error, what)
            raise
        finally:
            blocked.pop(thread, None)

    def late_word(self, what: str, timeout: float | None) -> Word | None:
        """Return what says of a wait that it lasts; None where nobody can be asked why. See ``wait_for``.

        Args:
            what: the operation.
            timeout: its seconds; None is without limit.
        """
        if self.membership is None:
            return None
        by = " (operation_timeout)" if timeout == self.timeout else ""
        return self.membership.late_word(
            what, "no timeout ends it" if timeout is None else f"it ends after {timeout:g} s{by}"
        )

    def work(
        self,
        name: str,
        what: str,
        timeout: float | None,
        nbytes: int,
        give: Callable[[], Any],
        start: Callable[..., Pending],
        arguments: tuple[object, ...] = (),
    ) -> Work[Any]:
        """Start an operation in the background; see :meth:`run`.

        Args:
            name: counts as this.
            what: its name in errors.
            timeout: seconds from now; None takes the communicator's.
            nbytes: counts as so many.
            give: makes the result, when it has ended.
            start: starts it, given ``arguments``.
            arguments: kept until it has ended.
        """
        if timeout is not None:
            check_timeout(timeout)
        self._works.look_after_some()
        if not self._usable:
            raise self._why_unusable(what)
        try:
            self._look_up(time.monotonic(), what)
            pending = start(*arguments)
        except InputError:
            raise
        except BaseException as error:
            verdict = self._break(error, what, arguments)
            if verdict is error:
                raise
            raise verdict from error
        own = self.timeout if timeout is None else timeout
        work: Work[Any] = Work(self, name, what, pending, arguments, nbytes=nbytes, timeout=own, give=give)
        self._works.add(work)
        return work

    def derive(
        self,
        what: str,
        color: int | None,
        key: int,
        timeout: float | None,
        *,
        group: str,
        membership: Membership | None = None,
    ) -> "Runner | None":
        """Make the runner of a communicator of those of this one's ranks that pass the same color; see ``split``.

        Args:
            what: for errors and counts.
            color: of this rank; None is in none.
            key: orders the new ranks.
            timeout: seconds; None takes the communicator's.
            group: the new one's name.
            membership: its own, which it leaves at its end; None: that of this one.
        """
        made: list[PendingEngine] = []

        def start() -> PendingEngine:
            made.append(self.engine.split(color, key))
            return made[0]

        with self.collectives:
            self.run(what, what, timeout, 0, start)
        engine = made[0].engine()
        if engine is None:
            return None
        beside = min(self.ranks_on_host, engine.size)
        member = self.membership if membership is None else membership
        return Runner(engine, member, group, timeout=self.timeout, ranks_on_host=beside, parent=self)

    def ended(self, work: Work[Any]) -> None:
        """Let go of a work that has ended."""
        self._works.remove(work)

    def broken_by(self, error: FabricError, what: str, work: Work[Any]) -> FabricError:
        """Return what a work ends with, whose engine raised ``error``; see :meth:`run`."""
        if isinstance(error, InputError):
            return error
        if not self._usable:  # what an engine sees of a break says less than what broke it
            return (self.failure(what) or error) if isinstance(error, EngineError) else error
        verdict = self._break(error, what, work._arguments, work)
        return verdict if isinstance(verdict, FabricError) else error

    def close(self, timeout: float | None) -> None:
        """End in order with the other ranks. Safe to repeat."""
        if timeout is not None:
            check_timeout(timeout)
        if self.closed or self._forked:
            return
        if self._broken is not None:
            self.give_up(self._broken)
            return
        try:
            self._family.settle(self, timeout)
            with self.collectives:
                self.run("close", "close", timeout, 0, self.engine.farewell)
        except RankLostError as error:
            self.give_up(error)
            if not error.details.get("left"):
                raise
            return
        except BaseException as error:
            self.give_up(error)
            raise
        if not self._family.shut_down(self, _SHUTDOWN_SECONDS):
            raise EngineError(f"the engine of group {self.group!r} did not end within {_SHUTDOWN_SECONDS:g} s")

    def end_of_process(self, undelivered: Callable[[], int] = lambda: 0) -> None:
        """Exit handler. A rank that fails tells the others; one that ends early gives them a moment.

        Args:
            undelivered: how many bytes would be lost by ending now; they are worth a longer moment.
        """
        if self.closed or self._forked:
            return
        failed_with = self._broken or getattr(sys, "last_value", None)
        if failed_with is not None:
            self.give_up(failed_with)
            return
        try:
            self._wait_for_others(undelivered)
        except BaseException as error:  # Ctrl-C, too
            # The others go on without this rank; whether they need it is theirs to find out.
            self._family.go(lambda membership: membership.leave(), error)
            if not isinstance(error, FabricError):
                raise
        else:
            self._family.shut_down(self, _EXIT_SECONDS)

    def _wait_for_others(self, undelivered: Callable[[], int]) -> None:
        farewell: Pending | None = None
        patience, latest, who = _EXIT_SECONDS, time.monotonic() + _DELIVERY_SECONDS, f"rank {self.engine.rank}"
        while True:
            try:
                self._family.settle(self, patience)
                farewell = farewell or self.engine.farewell()
                wait_for(farewell, lambda: self.failure("exit"), timeout=patience, what="exit")
            except OperationTimeoutError:
                nbytes, left = undelivered(), latest - time.monotonic()
                if not nbytes:
                    raise
                if left < 0:
                    _LOG.warning("%s ends: %d bytes that it has sent are lost", who, nbytes)
                    raise
                if patience == _EXIT_SECONDS:
                    told = (
                        "%s ends without close(): waits up to %.0f s for the others to take %d bytes that it has sent"
                    )
                    _LOG.warning(told, who, left, nbytes)
                patience = _GLANCE_SECONDS
            else:
                return
