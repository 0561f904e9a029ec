"""Tells when links or addresses change, by the kernel's own events, so that a daemon can look again at once.

An event only says that the map is old; what is true now is then read from the kernel as a whole. So the messages are
not even decoded, and losing some (the kernel says ENOBUFS when a storm overruns the socket) loses nothing.
"""

import asyncio
import errno
import socket
from dataclasses import dataclass
from types import TracebackType

# Source: kernel include/uapi/linux/rtnetlink.h
_RTMGRP_LINK, _RTMGRP_IPV4_IFADDR, _RTMGRP_IPV6_IFADDR = 0x1, 0x10, 0x100
_GROUPS = _RTMGRP_LINK | _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR
_MAX_READS = 1000  # then the event loop gets its turn


@dataclass(frozen=True, slots=True)
class NetworkChange:
    """Something changed since the one before."""

    messages: int  #: how many events it took; at least 1
    lost: bool  #: the kernel dropped some


class NetworkEvents:
    """An async context manager and iterator over changes of this network namespace; for one event loop and consumer.

    ::

        async with NetworkEvents() as events:
            async for change in events:
                await asyncio.to_thread(runner.refresh, ["netlink"])

    Memory is bounded whatever happens: a burst is one change, and a consumer that is slow finds one change waiting.

    Args:
        quiet_seconds: a burst is over when nothing came for so long.
        spacing_seconds: at most one change in so long, and a burst without end is reported after so long. A link that
            flaps therefore costs two looks a second, and every change is told within this time.
    """

    def __init__(self, *, quiet_seconds: float = 0.05, spacing_seconds: float = 0.5) -> None:
        self._quiet = quiet_seconds
        self._spacing = spacing_seconds
        self._socket: socket.socket | None = None
        self._wake = asyncio.Event()
        self._closed = False
        self._fault: OSError | None = None
        self._messages = 0
        self._lost = False
        self._first = self._latest = 0.0
        self._told = float("-inf")

    async def __aenter__(self) -> "NetworkEvents":
        """Subscribe; what changes from now on is told.

        Raises:
            OSError: this process may not have a netlink socket.
        """
        kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        try:
            kernel.bind((0, _GROUPS))
        except OSError:
            kernel.close()
            raise
        self._socket = kernel
        asyncio.get_running_loop().add_reader(kernel.fileno(), self._drain)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Unsubscribe; a consumer that waits gets the end of the iteration. Idempotent."""
        self._closed = True
        self._wake.set()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def __aiter__(self) -> "NetworkEvents":
        return self

    async def __anext__(self) -> NetworkChange:
        """Return the next change.

        Raises:
            OSError: the socket broke; open new events.
        """
        await self._wake.wait()
        loop = asyncio.get_running_loop()
        while not self._closed and self._fault is None:
            over = min(self._latest + self._quiet, self._first + self._spacing)
            delay = max(over, self._told + self._spacing) - loop.time()
            if delay <= 0:
                break
            await asyncio.sleep(delay)
        if self._fault is not None:
            raise self._fault
        if self._closed:
            raise StopAsyncIteration
        change = NetworkChange(messages=self._messages, lost=self._lost)
        self._messages, self._lost, self._told = 0, False, loop.time()
        self._wake.clear()
        return change

    def _drain(self) -> None:
        """Take what the kernel has for us, and only count it."""
        assert self._socket is not None  # noqa: S101 - the reader is removed with the socket
        now = asyncio.get_running_loop().time()
        for _ in range(_MAX_READS):
            try:
                self._socket.recv(1, socket.MSG_TRUNC)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._lost = True
                else:
                    self._break(error)
                    return
            if not self._wake.is_set():
                self._first = now
                self._wake.set()
            self._latest = now
            self._messages += 1

    def _break(self, error: OSError) -> None:
        assert self._socket is not None  # noqa: S101 - called from _drain
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._fault = error
        self._wake.set()
