"""One communicator of NCCL, guarded: what is under way on it ends when the group is lost.

A call to NCCL may wait for other ranks, and so may the kernel that it starts; only an abort ends either. A thread
looks after them while anything is under way, also when nobody waits for it.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from fabric_client.blocking import BlockingCall
from fabric_client.engine.device import Device, Event
from fabric_client.engine.nccl_errors import map_error
from fabricd.errors import CommunicatorError, EngineError, FabricError, OperationTimeoutError

#: How soon a loss is noticed that nobody waits for.
_LOOK_SECONDS = 0.1
#: An abort takes milliseconds, unless the driver itself is stuck.
_ABORT_SECONDS = 5.0


class Watchdog:
    """The thread that looks after the communicators of one group.

    Args:
        failure: why an operation of that name cannot end well any more, or None; cheap.
        call_limit: seconds that a call to NCCL may take; None is without limit.
    """

    def __init__(self, failure: Callable[[str], FabricError | None], *, call_limit: float | None) -> None:
        self.failure = failure
        self.call_limit = call_limit
        self._comms: weakref.WeakSet[NcclComm] = weakref.WeakSet()
        self._busy = threading.Event()
        threading.Thread(target=self._run, name="fabricd-nccl-watch", daemon=True).start()

    def add(self, comm: "NcclComm") -> None:
        """Look after one more."""
        self._comms.add(comm)

    def wake(self) -> None:
        """Something begins, or has ended."""
        if not self._busy.is_set():
            self._busy.set()

    def _run(self) -> None:
        alive = True
        while alive:
            self._busy.wait()
            self._busy.clear()
            time.sleep(_LOOK_SECONDS)
            comms = list(self._comms)
            under_way = [comm.look() for comm in comms]
            if any(under_way):
                self._busy.set()
            alive = any(comm.alive for comm in comms)


class NcclPending:
    """An operation on a stream; see :class:`fabric_client.pending.Pending`."""

    __slots__ = ("_after", "_comm", "_event", "keep", "what")

    def __init__(
        self, comm: "NcclComm", what: str, event: Event, after: Callable[[], None] | None, keep: tuple[object, ...]
    ) -> None:
        self.what = what
        self.keep = keep  #: arrays that only the operation needs
        self._comm = comm
        self._event = event
        self._after = after

    def reached(self) -> bool:
        """Tell whether the stream has come to its end."""
        return self._event.done()

    def test(self) -> bool:
        """See the protocol."""
        if not self._event.done():
            self._comm.check(self.what)
            return False
        self._comm.check_end()  # an abort lets the streams go on, with garbage
        self._comm.ended(self)
        if self._after is not None:
            self._after()
        return True


class NcclComm:
    """A communicator of CuPy's binding.

    Args:
        binding: the module ``cupy.cuda.nccl``.
        raw: its NcclCommunicator.
        device: what it is on.
        watchdog: of the group.
    """

    def __init__(self, binding: Any, raw: Any, device: Device, watchdog: Watchdog) -> None:
        self.binding = binding
        self.device = device
        self.watchdog = watchdog
        self._raw = raw
        self._calls = threading.Lock()  # NCCL takes one call of a communicator at a time
        self._call: tuple[str, float] | None = None  # the one under way, and since when
        self._pending: set[NcclPending] = set()
        self._end_lock = threading.Lock()
        self._end: FabricError | None = None
        watchdog.add(self)

    @property
    def alive(self) -> bool:
        """Whether it has not ended, in order or not."""
        return self._end is None

    def start(
        self,
        what: str,
        call: Callable[[Any], None],
        stream: int,
        *,
        after: Callable[[], None] | None = None,
        keep: tuple[object, ...] = (),
    ) -> NcclPending:
        """Give a stream an operation.

        Args:
            what: its name, for errors.
            call: makes the calls, given the binding's communicator.
            stream: whose turn it waits for.
            after: called when it has ended.
            keep: arrays that must live so long.

        Raises:
            EngineError: NCCL refused.
            FabricError: why the communicator has ended.
        """
        self.device.use()
        with self._under_way(what):
            call(self._raw)
            pending = NcclPending(self, what, self.device.record(stream), after, keep)
            self._pending.add(pending)
        return pending

    def call(self, what: str, function: Callable[[Any], Any]) -> Any:
        """Make a call that waits for other ranks, and return what it returns; to be made in a thread of its own."""
        self.device.use()
        with self._under_way(what):
            return function(self._raw)

    @contextmanager
    def _under_way(self, what: str) -> Iterator[None]:
        with self._calls:
            self.check(what)
            self._call = (what, time.monotonic())
            self.watchdog.wake()
            try:
                yield
            except (self.binding.NcclError, KeyError) as error:
                raise self._end or map_error(error, what) from error
            finally:
                self._call = None

    @contextmanager
    def group(self) -> Iterator[None]:
        """Make the calls inside one operation."""
        self.binding.groupStart()
        try:
            yield
        except BaseException:
            with suppress(self.binding.NcclError, KeyError):  # the first error says more
                self.binding.groupEnd()
            raise
        self.binding.groupEnd()

    def settled(self) -> bool:
        """Tell whether the streams have come to the end of all that was started."""
        return all(pending.reached() for pending in list(self._pending))

    def ended(self, pending: NcclPending) -> None:
        """Let go of an operation that has ended."""
        self._pending.discard(pending)

    def check_end(self) -> None:
        """Raise what has ended the communicator, if it has ended.

        Raises:
            FabricError: why nothing will end well any more.
        """
        if self._end is not None:
            raise self._end

    def check(self, what: str) -> None:
        """Raise what has ended the communicator, or what NCCL has noticed by itself meanwhile.

        Raises:
            FabricError: why nothing will end well any more.
        """
        self.check_end()
        error = self._asynchronous(what)
        if error is not None:
            self.end(error)
            raise self._end or error  # the first is the reason of the others

    def _asynchronous(self, what: str) -> EngineError | None:
        with self._end_lock:  # so that it is not freed meanwhile
            if self._end is not None:
                return None
            try:
                self._raw.check_async_error()
            except (self.binding.NcclError, KeyError) as error:
                return map_error(error, what)
        return None

    def look(self) -> bool:
        """Tell whether anything is under way that can still end well; end it when it cannot."""
        if self._end is not None:
            return False
        try:
            for pending in list(self._pending):
                if pending.reached():
                    self._pending.discard(pending)
            error = self._why_not()
        except EngineError as failed:  # the device
            error = failed
        if error is not None:
            self.end(error)
        return error is None and (self._call is not None or bool(self._pending))

    def _why_not(self) -> FabricError | None:
        call, pending = self._call, next(iter(list(self._pending)), None)
        if call is None and pending is None:
            return None
        what = call[0] if call is not None else pending.what if pending is not None else ""
        limit = self.watchdog.call_limit
        if call is not None and limit is not None and time.monotonic() - call[1] > limit:
            return OperationTimeoutError(f"{what}: the call to NCCL did not return within {limit:g} s")
        return self.watchdog.failure(what) or self._asynchronous(what)

    def end(self, error: FabricError) -> None:
        """Abort it, because of ``error``: calls return, and streams go on. Repeated calls do nothing."""
        with self._end_lock:
            if self._end is not None:
                return
            self._end = error
        self.watchdog.wake()
        # The thread keeps the handle: while the abort lasts nothing may free it, not even the interpreter's end.
        BlockingCall(self._raw.abort, "ncclCommAbort").ended(_ABORT_SECONDS)

    def destroy(self, *, timeout: float) -> bool:
        """End it in order, when nothing is under way; tell whether that was done in time."""
        with self._end_lock:
            if self._end is not None:
                return True
            self._end = CommunicatorError("the communicator is closed")
        self.watchdog.wake()
        return BlockingCall(self._raw.destroy, "ncclCommDestroy").ended(timeout)
