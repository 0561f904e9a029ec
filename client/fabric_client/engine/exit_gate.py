"""Holding up the end of this process: a C library that fails may call ``exit``, and Python code would not know why.

MPICH does so when it cannot start, in the thread that starts it. Exit handlers run in that thread; one of ours waits
in it until the program has dealt with the error and ends by itself.
"""

import atexit
import ctypes
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fabricd.errors import FabricError

#: Since then a second call of ``exit`` waits for the first one to end. Source: glibc's NEWS, version 2.41.
_ONE_EXIT_SINCE = (2, 41)
#: At least a pthread_mutex_t or sem_t, whose first value is zeros.
_BYTES = 128


class ExitGate:
    """While it is closed, calls of ``exit`` in other threads do not get through. Closed at first.

    The end of the program itself opens it, also that of a forked child: whoever closed it may be a thread that is not
    waited for, and in the child is none.
    """

    def __init__(self) -> None:
        self._libc = libc = ctypes.CDLL(None)
        libc.calloc.restype = ctypes.c_void_p  # never freed: they must outlive Python
        self._mutex, self._bell = ctypes.c_void_p(libc.calloc(1, _BYTES)), ctypes.c_void_p(libc.calloc(1, _BYTES))
        libc.sem_init(self._bell, 0, 0)
        libc.pthread_mutex_lock(self._mutex)
        for function, argument in ((libc.pthread_mutex_lock, self._mutex), (libc.sem_post, self._bell)):
            _call_at_exit(libc, function, argument)  # the last one is called first
        atexit.register(self.open)

    def is_waited_at(self) -> bool:
        """Tell whether another thread has called ``exit`` since this was last asked."""
        return bool(self._libc.sem_trywait(self._bell) == 0)

    def open(self) -> None:
        """Let through whoever comes, or has come."""
        atexit.unregister(self.open)
        self._libc.pthread_mutex_unlock(self._mutex)

    def open_when_program_ends(self) -> None:
        """Leave a thread that waits there alone until the program has told its error and ends.

        The status is the program's, or from glibc 2.41 on what that thread called ``exit`` with.
        """
        atexit.unregister(self.open)
        if _waits_for_first_exit():
            atexit.register(self._give_way)

    def _give_way(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        self.open()
        while True:  # the process ends meanwhile
            time.sleep(1.0)


@contextmanager
def held_up(
    failure: Callable[[], FabricError | None], why_ended: Callable[[], FabricError]
) -> Iterator[Callable[[], FabricError | None]]:
    """Hold up the end of the process while a library is called; yield what to ask meanwhile.

    Args:
        failure: why the call cannot end well any more, or None.
        why_ended: what it means that the library calls ``exit``.
    """
    gate, ended = ExitGate(), False

    def check() -> FabricError | None:
        nonlocal ended
        ended = gate.is_waited_at()
        return why_ended() if ended else failure()

    try:
        yield check
    finally:
        gate.open_when_program_ends() if ended else gate.open()


def _call_at_exit(libc: ctypes.CDLL, function: object, argument: ctypes.c_void_p) -> None:
    """Register a handler; outside of the class, in which Python would take the name for a private one's."""
    libc.__cxa_atexit(function, argument, None)


def _waits_for_first_exit() -> bool:
    try:
        version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1]
        return tuple(int(part) for part in version.split(".")[:2]) >= _ONE_EXIT_SINCE
    except (ValueError, OSError, IndexError):
        return True  # another C library: the careful way
