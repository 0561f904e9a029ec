"""Waiting for an operation: spin first, back off later, and look up for lost ranks, deadlines and Ctrl-C."""

import os
import time
from collections.abc import Callable

from fabric_client.engine.base import Pending
from fabricd.errors import FabricError, OperationTimeoutError

#: Tests before anything else is looked at; a small message is over by then. Where every rank has a core, looking up
#: (and giving the core away) only costs; where ranks share cores, the peer needs this one to answer at all.
_SPINS_ON_OWN_CORE, _SPINS_ON_SHARED_CORE = 1000, 16
#: MPI moves data only inside a test, so a loop that sleeps slows a transfer down (by a third at 16 MiB). Nobody
#: transfers for longer than this at a worthwhile rate: a longer wait is for a peer that computes.
_SPIN_SECONDS = 1.0
_SLOWEST_BYTES_PER_SECOND = 100e6
_NAP_SECONDS = 0.0002


def spins_for(ranks_on_host: int) -> int:
    """Return how often to test before looking up, where so many ranks share this process's cores."""
    return _SPINS_ON_OWN_CORE if ranks_on_host <= len(os.sched_getaffinity(0)) else _SPINS_ON_SHARED_CORE


def wait_for(
    pending: Pending,
    failure: Callable[[], FabricError | None],
    *,
    timeout: float | None,
    what: str,
    transfer_bytes: int = 0,
    spins: int = _SPINS_ON_SHARED_CORE,
) -> None:
    """Return when ``pending`` has ended. Python's signal handlers run meanwhile.

    Args:
        pending: the operation.
        failure: cheap; why it cannot end well any more, or None.
        timeout: seconds after which to give up; None: never.
        what: for the error.
        transfer_bytes: how much this rank moves.
        spins: tests before anything else is looked at, see :func:`spins_for`.

    Raises:
        OperationTimeoutError: ``timeout`` passed.
        FabricError: what ``failure`` returned.
        EngineError: the operation failed.
    """
    test = pending.test
    for _ in range(spins):
        if test():
            return
    started = time.monotonic()
    nap_after = started + _SPIN_SECONDS + transfer_bytes / _SLOWEST_BYTES_PER_SECOND
    while not test():
        error = failure()
        if error is not None:
            raise error
        now = time.monotonic()
        if timeout is not None and now - started > timeout:
            raise OperationTimeoutError(f"{what} did not end within {timeout:g} s")
        if now < nap_after:
            os.sched_yield()  # a peer may need this very core
        else:
            time.sleep(_NAP_SECONDS)
