"""Waiting for an operation: spin first, back off later, and look up for lost ranks, deadlines and Ctrl-C."""

import math
import os
import time
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Protocol

from fabric_client.pending import Pending
from fabricd.errors import FabricError, InputError, OperationTimeoutError

#: Tests before anything else is looked at and the core is offered to others; a small message is over by then. Where
#: every rank has a core, that is rarely worth it; where ranks share cores, the peer needs this one to answer at all.
_SPINS_ON_OWN_CORE, _SPINS_ON_SHARED_CORE = 1000, 16
#: MPI moves data only inside a test, so a loop that sleeps slows a transfer down (by a third at 16 MiB). Nobody
#: transfers for longer than this at a worthwhile rate: a longer wait is for a peer that computes.
_SPIN_SECONDS = 1.0
_SLOWEST_BYTES_PER_SECOND = 100e6
_NAP_SECONDS = 0.0002
#: A yield that takes so long has let a process run that does not just wait, too.
_WANTED_SECONDS = 0.0005
#: For so long others are taken to want the core then; and how long a wait gives it away meanwhile.
_SHARING_SECONDS, _BLINK_SECONDS = 0.25, 0.000001
#: Who waits longer says so. A rank may well compute for as long while the others wait.
PATIENCE_SECONDS = 60.0


class Word(Protocol):
    """What is to be said of a wait that lasts."""

    def look(self, waited: float) -> float:
        """Say it, if it is time to. Returns after how many seconds of the wait to look again."""


class Core:
    """The core that a rank waits on, offered to others.

    By a yield, where nobody else wants it or only those who wait as well. Beside processes that compute, who yields is
    charged for the time slice that it has not used: seen with Linux 6.18, it gets a tenth of what one gets that spins.
    Who sleeps, be it for a moment, is not. So where ranks outnumber CPUs, and only there, for sleeping costs small
    messages more than others win by it, a yield that took long is followed by sleeps.

    Args:
        ranks_on_host: that wait here; None where nobody has counted them: then a wait looks up as often as where they
            share cores, for what it waits for may take a moment to be tested (an MPI that starts in another thread).

    Attributes:
        spins: how often to test before anything else is looked at.
    """

    def __init__(self, ranks_on_host: int | None = None) -> None:
        alone = ranks_on_host is not None and ranks_on_host <= len(os.sched_getaffinity(0))
        self.spins = _SPINS_ON_OWN_CORE if alone else _SPINS_ON_SHARED_CORE
        # Not those of this rank alone, which may be bound to one that is its own.
        self._outnumbered = ranks_on_host is not None and ranks_on_host > (os.cpu_count() or 1)
        self._shared_until = 0.0

    def offer(self, now: float) -> None:
        """Let others run; ``now`` is of ``time.monotonic``."""
        if now < self._shared_until:
            time.sleep(_BLINK_SECONDS)
            return
        os.sched_yield()
        if self._outnumbered and time.monotonic() - now > _WANTED_SECONDS:
            self._shared_until = now + _SHARING_SECONDS


def check_timeout(timeout: object, what: str = "timeout") -> None:
    """Refuse what is no number of seconds; one below zero has passed already. None is for the caller to know.

    Raises:
        InputError: text, a truth value, an array, or nan, which nothing is ever later than.
    """
    if not isinstance(timeout, (float, int, Real)) or isinstance(timeout, bool) or math.isnan(timeout):
        raise InputError(f"{what} {timeout!r:.100} is not a number of seconds", hint="valid: numbers, and None")


def check_time_to_join(timeout: object) -> None:
    """Refuse what is no number of seconds in which ranks could come.

    Raises:
        InputError: none at all, or none above 0.
    """
    if not isinstance(timeout, (float, int, Real)) or isinstance(timeout, bool) or not float(timeout) > 0:
        raise InputError(f"timeout {timeout!r:.100} is not a number of seconds above 0")


def wait_for(
    pending: Pending,
    failure: Callable[[], FabricError | None],
    *,
    timeout: float | None,
    what: str,
    arguments: Sequence[object] = (),
    core: Core | None = None,
    once: bool = False,
    word: Callable[[str, float | None], Word | None] | None = None,
) -> None:
    """Return when ``pending`` has ended. Python's signal handlers run meanwhile.

    Args:
        pending: the operation.
        failure: cheap; why it cannot end well any more, or None.
        timeout: seconds after which to give up; None: never.
        what: for the error.
        arguments: of the operation; the longer the arrays among them take, the later a wait counts as idle.
        core: that it waits on; by default one that others share.
        once: test only once before anything else is looked at.
        word: given ``what`` and ``timeout``, makes what says that it lasts, once it has for ``PATIENCE_SECONDS``.

    Raises:
        OperationTimeoutError: ``timeout`` passed.
        FabricError: what ``failure`` returned.
        EngineError: the operation failed.
    """
    test = pending.test
    core = core or Core()
    spins = 1 if once else core.spins
    started = nap_after = 0.0
    look_at = math.inf if word is None else PATIENCE_SECONDS
    said: Word | None = None
    while True:
        for _ in range(spins):
            if test():
                return
        error = failure()
        if error is not None:
            raise error
        now = time.monotonic()
        if not started:
            moved = sum(getattr(argument, "nbytes", 0) for argument in arguments)
            started, nap_after = now, now + _SPIN_SECONDS + moved / _SLOWEST_BYTES_PER_SECOND
        if timeout is not None and now - started > timeout:
            raise OperationTimeoutError(f"{what} did not end within {timeout:g} s")
        if now - started > look_at and word is not None:
            said = said or word(what, timeout)
            look_at = math.inf if said is None else said.look(now - started)
        if now < nap_after:
            core.offer(now)
        else:
            spins = 1
            time.sleep(_NAP_SECONDS)
