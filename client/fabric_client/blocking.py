"""Calls into libraries that may not return: in a thread of their own, left alone when they do not."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fabricd.errors import FabricError, OperationTimeoutError

T = TypeVar("T")

_POLL_SECONDS = 0.02


class BlockingCall(Generic[T]):
    """A call under way in a thread that ends with the process at the latest.

    Args:
        function: what to call.
        what: its name, for errors.
    """

    def __init__(self, function: Callable[[], T], what: str) -> None:
        self._function = function
        self._what = what
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=f"fabricd-{what}", daemon=True).start()

    def ended(self, seconds: float = 0.0) -> bool:
        """Wait so long for its end; tell whether it has ended, well or not."""
        return self._ended.wait(seconds)

    def result(self) -> T:
        """Return what the function returned, or raise what it raised; it must have ended."""
        if self._error is not None:
            raise self._error
        return self._results[0]

    def wait(self, check: Callable[[], FabricError | None], *, deadline: float) -> T:
        """Wait for its end and return its result. Signals are heard meanwhile.

        Args:
            check: why it cannot end well any more, or None.
            deadline: of ``time.monotonic``.

        Raises:
            FabricError: what ``check`` returned.
            OperationTimeoutError: it did not return in time.
        """
        while not self.ended(_POLL_SECONDS):
            error = check()
            if error is not None:
                raise error
            if time.monotonic() > deadline:
                raise OperationTimeoutError(
                    f"{self._what} did not return in time", hint="are all ranks alive and do they reach each other?"
                )
        return self.result()

    def _run(self) -> None:
        try:
            self._results.append(self._function())
        except BaseException as error:  # noqa: BLE001 - handed to who asks for the result
            self._error = error
        del self._function  # who made this call may be what it is a method of, and shall go when nobody needs it
        self._ended.set()
