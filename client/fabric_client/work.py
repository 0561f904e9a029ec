"""``Work``: an operation under way, from ``async_op=True``."""

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from fabric_client.progress import Core, Word, check_timeout, wait_for
from fabricd.errors import CommunicatorError, FabricError, OperationTimeoutError

if TYPE_CHECKING:
    from fabric_client.pending import Pending
    from fabric_client.stats import Tally

T = TypeVar("T")


class Owner(Protocol):
    """The communicator's side of a work: a :class:`fabric_client.runner.Runner`."""

    core: Core
    tally: "Tally"

    def failure(self, what: str) -> FabricError | None:
        """Return why ``what`` cannot end well any more, or None."""
        ...

    def late_word(self, what: str, timeout: float | None) -> Word | None:
        """Return what says of a wait that it lasts; None where nobody can be asked why."""
        ...

    def broken_by(self, error: FabricError, what: str, work: "Work[Any]") -> FabricError:
        """Return what the work ends with, whose engine raised ``error``."""
        ...

    def ended(self, work: "Work[Any]") -> None:
        """Let go of a work that has ended."""
        ...


class Work(Generic[T]):
    """An operation that was started and may not have ended yet.

    The arrays belong to the operation until it ended; the communicator keeps them alive, also when the caller lets go
    of this handle. Data moves while this process waits for, or asks after, any of its operations: a program that
    computes for long asks :meth:`done` now and then. Works may be waited for in any order and from any thread.

    A lost rank, an aborted group or the operation's own deadline (``timeout`` of the call that started it) ends it
    with that error.
    """

    __slots__ = (
        "_arguments", "_began", "_error", "_give", "_lock", "_name", "_nbytes", "_owner", "_pending", "_result",
        "_timeout", "_what",
    )  # fmt: skip

    def __init__(
        self,
        owner: Owner,
        name: str,
        what: str,
        pending: "Pending",
        arguments: tuple[object, ...],
        *,
        nbytes: int,
        timeout: float | None,
        give: Callable[[], Any],
    ) -> None:
        self._owner = owner
        self._name = name
        self._what = what
        self._pending: Pending | None = pending
        self._arguments = arguments
        self._nbytes = nbytes
        self._began = time.monotonic()
        self._timeout = timeout
        self._give = give
        #: Of the thread that has it: who is interrupted in the moment in which it gets it can still go on.
        self._lock = threading.RLock()
        self._result: Any = None
        self._error: FabricError | None = None

    @property
    def what(self) -> str:
        """Name of the operation, as in errors."""
        return self._what

    def done(self) -> bool:
        """Drive the operation on, and tell whether it has ended, well or not. Never blocks on other ranks."""
        if self._pending is None or not self._lock.acquire(blocking=False):  # another thread drives it on
            return self._pending is None
        try:
            return self._pending is None or self._advance(self._pending, 0.0)
        finally:
            self._lock.release()

    def wait(self, timeout: float | None = None) -> T:
        """Return the operation's result, when it has ended.

        Args:
            timeout: seconds to wait from now; None waits until the operation's own deadline. When it passes the
                operation goes on, and may be waited for again.

        Returns:
            What the blocking operation returns.

        Raises:
            InputError: a timeout that is no number.
            OperationTimeoutError: it did not end in time; when the operation's own deadline passed, the communicator
                is broken.
            FabricError: what the operation ended with, as the blocking one would have raised it.
        """
        if timeout is not None:
            check_timeout(timeout)
        began = time.monotonic()
        over = OperationTimeoutError(f"{self._what} has not ended within {timeout or 0:g} s; it goes on")
        patience = -1.0 if timeout is None else min(max(0.0, float(timeout)), threading.TIMEOUT_MAX)
        if not self._lock.acquire(timeout=patience):  # held by one that waits, too
            raise over
        try:
            left = None if timeout is None else max(0.0, began + timeout - time.monotonic())
            if self._pending is not None and not self._advance(self._pending, left):
                raise over
        finally:
            self._lock.release()
        return self.result()

    def result(self) -> T:
        """Return the result of an operation that has ended; does not wait.

        Raises:
            CommunicatorError: it has not ended.
            FabricError: what it ended with.
        """
        if self._error is not None:
            raise self._error
        if self._pending is not None:
            raise CommunicatorError(f"{self._what} has not ended", hint="call wait() first")
        return cast("T", self._result)

    def exception(self) -> FabricError | None:
        """Return the error that the operation ended with; None when it ended well, or has not ended."""
        return self._error

    def _advance(self, pending: "Pending", timeout: float | None) -> bool:
        """Drive it on for so long; tell whether it has ended. What is no FabricError, as Ctrl-C, leaves it pending."""
        left = None if self._timeout is None else self._began + self._timeout - time.monotonic()
        own = timeout is None or (left is not None and left <= timeout)
        try:
            if not pending.test():
                wait_for(
                    pending,
                    lambda: self._owner.failure(self._what),
                    timeout=left if own else timeout,
                    what=self._what,
                    arguments=self._arguments,
                    core=self._owner.core,
                    once=timeout == 0,
                    word=None if timeout == 0 else lambda what, left: self._owner.late_word(what, self._timeout),
                )
        except OperationTimeoutError:
            if not own:
                return False
            error = OperationTimeoutError(f"{self._what} did not end within {self._timeout:g} s")
            self._end(self._owner.broken_by(error, self._what, self))
        except FabricError as error:
            self._end(self._owner.broken_by(error, self._what, self))
        else:
            self._owner.tally.add(self._name, self._nbytes, time.monotonic() - self._began)
            self._result = self._give()
            self._end(None)
        return True

    def _end(self, error: FabricError | None) -> None:
        self._error = error
        self._owner.ended(self)
        if error is None:  # otherwise the engine may still write into the arrays: they stay with this object
            self._arguments = ()
        self._pending = None

    def __repr__(self) -> str:
        state = "pending" if self._pending is not None else "ended" if self._error is None else "failed"
        return f"<Work {self._what}: {state}>"


class UnderWay:
    """The works of a communicator that have not ended, the oldest first. May be used by several threads."""

    def __init__(self) -> None:
        self._works: dict[int, Work[Any]] = {}
        #: Keys of works, in the order in which they are looked after.
        self._turns: deque[int] = deque()

    def add(self, work: Work[Any]) -> None:
        """Take in one that was started."""
        self._works[id(work)] = work
        self._turns.append(id(work))

    def remove(self, work: Work[Any]) -> None:
        """Let go of one that has ended."""
        self._works.pop(id(work), None)

    def all(self) -> list[Work[Any]]:
        """Return them."""
        return list(self._works.values())

    def look_after_some(self) -> None:
        """Drive two on, in turn, so that those nobody waits for do not pile up behind some that last."""
        for _ in range(2):
            try:
                key = self._turns.popleft()
            except IndexError:  # there is none, or another thread was faster
                return
            work, ended = self._works.get(key), False
            try:
                ended = work is None or work.done()
            finally:  # also when Ctrl-C comes
                if not ended:
                    self._turns.append(key)
