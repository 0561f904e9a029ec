"""Runs the operations of one communicator: one after another, with deadlines, until something breaks it."""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVarTuple

from fabric_client.engine.base import Engine, Pending
from fabric_client.membership import Membership
from fabric_client.progress import spins_for, wait_for
from fabricd.errors import CommunicatorError, EngineError, FabricError, InputError, RankLostError

Arguments = TypeVarTuple("Arguments")

#: An engine may notice a dead peer before the daemon does, which waits 1.5 s for a member to reconnect.
_VERDICT_SECONDS = 3.0
#: How long a rank that ends without close() waits for the others to end, too.
_EXIT_SECONDS = 2.0
#: All ranks have said farewell when the engine is ended: what is left takes milliseconds.
_SHUTDOWN_SECONDS = 10.0


class Runner:
    """What all operations share. The first failure breaks it for good, because its peers are out of step.

    Args:
        engine: moves the data.
        membership: the group, or None where a launcher looks after the ranks.
        group: name, for errors.
        timeout: default seconds for an operation; None is without limit.
        ranks_on_host: how many ranks share this host's cores.
    """

    def __init__(
        self,
        engine: Engine,
        membership: Membership | None,
        group: str,
        *,
        timeout: float | None,
        ranks_on_host: int,
    ) -> None:
        self.engine = engine
        self.membership = membership
        self.group = group
        self.timeout = timeout
        self.closed = False
        self._spins = spins_for(ranks_on_host)
        self._pid = os.getpid()
        self._broken: BaseException | None = None
        #: What was pending when it broke: MPI may still write there.
        self._orphans: list[object] = []
        self._collectives = threading.Lock()

    def collective(
        self, what: str, timeout: float | None, start: Callable[[*Arguments], Pending], *arguments: *Arguments
    ) -> None:
        """Run a collective; those of one communicator run one at a time, also from several threads."""
        with self._collectives:
            self._run(what, timeout, start, arguments)

    def run(
        self, what: str, timeout: float | None, start: Callable[[*Arguments], Pending], *arguments: *Arguments
    ) -> None:
        """Start an operation and wait for its end.

        Args:
            what: its name, for errors.
            timeout: seconds; None takes the communicator's.
            start: starts it, given ``arguments``.
            arguments: kept when the operation fails, because MPI may still write into the arrays among them.
        """
        self._run(what, timeout, start, arguments)

    def _run(
        self,
        what: str,
        timeout: float | None,
        start: Callable[[*Arguments], Pending],
        arguments: tuple[*Arguments],
    ) -> None:
        # Small messages pay for each line before the first test: it ends them when their peers were first.
        if self.closed or self._broken is not None or os.getpid() != self._pid:
            raise self._unusable(what)
        pending: Pending | None = None
        try:
            pending = start(*arguments)
            if not pending.test():
                wait_for(
                    pending,
                    lambda: self._failure(what),
                    timeout=self.timeout if timeout is None else timeout,
                    what=what,
                    arguments=arguments,
                    spins=self._spins,
                )
        except InputError:
            raise  # noticed before anything was sent, or after all was received: nobody is out of step
        except BaseException as error:
            self._orphans.append((pending, arguments))
            verdict = self._break(error, what)
            if verdict is error:
                raise
            raise verdict from error

    def _unusable(self, what: str) -> CommunicatorError:
        """Return why nothing may be started: closed, broken, or another process's."""
        if self.closed:
            return CommunicatorError(f"{what}: the communicator of group {self.group!r} is closed")
        if self._broken is not None:
            return CommunicatorError(
                f"{what}: the communicator of group {self.group!r} is broken since {self._broken}",
                hint="restart the job or form a new group",
            )
        return CommunicatorError(
            f"{what}: this process is a fork of rank {self.engine.rank}, and MPI does not survive a fork",
            hint="use the communicator in the process that created it, or start workers by spawn",
        )

    def close(self, timeout: float | None) -> None:
        """End in order with the other ranks. Safe to repeat."""
        if self.closed or os.getpid() != self._pid:
            return
        if self._broken is None:
            try:
                self.collective("close", timeout, self.engine.farewell)
            except RankLostError as error:
                self.give_up(error)
                if not error.details.get("left"):
                    raise
                return
            except BaseException as error:
                self.give_up(error)
                raise
            if not self._shut_down(_SHUTDOWN_SECONDS):
                raise EngineError(f"the engine of group {self.group!r} did not end within {_SHUTDOWN_SECONDS:g} s")
        else:
            self.give_up(self._broken)

    def abort(self, reason: str) -> None:
        """End the group for all ranks at once."""
        if self.closed or os.getpid() != self._pid:
            return
        self.closed = True
        self.engine.abandon()
        if self.membership is not None:
            self.membership.abort(reason)

    def end_of_process(self) -> None:
        """Exit handler. A rank that fails tells the others; one that ends early gives them a moment."""
        if self.closed or os.getpid() != self._pid:
            return
        failed_with = self._broken or getattr(sys, "last_value", None)
        if failed_with is not None:
            self.give_up(failed_with)
            return
        try:
            wait_for(self.engine.farewell(), lambda: self._failure("exit"), timeout=_EXIT_SECONDS, what="exit")
        except FabricError:
            # The others go on without this rank; whether they need it is theirs to find out.
            self.closed = True
            self.engine.abandon()
            if self.membership is not None:
                self.membership.leave()
        else:
            self._shut_down(_EXIT_SECONDS)

    def _shut_down(self, timeout: float) -> bool:
        self.closed = True
        ended = self.engine.shutdown(timeout=timeout)
        if self.membership is not None:
            self.membership.leave()
        return ended

    def _failure(self, what: str) -> FabricError | None:
        return None if self.membership is None else self.membership.failure(what)

    def _break(self, error: BaseException, what: str) -> BaseException:
        """Mark as broken; return the error to raise: that a rank is lost says more than what MPI saw of it."""
        if isinstance(error, EngineError) and error.details.get("peer_may_be_lost"):
            error = self._verdict(what) or error
        self._broken = error
        self.engine.abandon()
        return error

    def _verdict(self, what: str) -> FabricError | None:
        deadline = time.monotonic() + (_VERDICT_SECONDS if self.membership is not None else 0.0)
        verdict = self._failure(what)
        while verdict is None and time.monotonic() < deadline:
            time.sleep(0.02)
            verdict = self._failure(what)
        return verdict

    def give_up(self, error: BaseException) -> None:
        """Go, because of ``error``, and wait for nobody."""
        self.closed = True
        self.engine.abandon()
        if self.membership is not None:
            self.membership.give_up(f"rank {self.engine.rank}", error)
