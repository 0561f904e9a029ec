"""Connections from a listener, also when there are no descriptors for them."""

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

from fabricd.daemon.room import Room
from fabricd.shortage import shortage_of

_log = logging.getLogger("fabricd.server")

#: Connections that wait in the kernel, and those that are accepted before anything else gets its turn: accepting takes
#: little, and one that waits in the kernel cannot be told that the daemon is busy.
BACKLOG = 2048
_AT_ONCE = 512
#: Without a descriptor nothing is accepted for so long.
_PAUSE_SECONDS = 0.05
#: What the kernel takes beyond that which is on its way, of an answer that is not read as fast as it is written. Left
#: to itself it takes megabytes, which count as this daemon's memory (tcp(7), TCP_NOTSENT_LOWAT).
_UNSENT_BYTES = 1 << 15


class Acceptor:
    """Accepts connections until it is closed.

    asyncio's own way answers a want of descriptors with a line in the log for each connection that waits, and with a
    second in which nobody is let in, however important.

    Args:
        listener: listens, and does not block.
        make: makes the protocol of a connection.
        room: how many there may be.
    """

    def __init__(self, listener: socket.socket, make: Callable[[], asyncio.BaseProtocol], room: Room) -> None:
        self._listener = listener
        self._make = make
        self._room = room
        self._loop = asyncio.get_running_loop()
        self._short = False  #: the latest try found no descriptor
        self._pause: asyncio.TimerHandle | None = None
        self._begun: set[asyncio.Task[None]] = set()
        listener.setblocking(False)
        listener.listen(BACKLOG)
        self._loop.add_reader(listener, self._accept)

    def close(self) -> None:
        """Accept no more."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        for task in self._begun:
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                connection, _address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if shortage_of(error) is None:
                    raise
                if self._room.narrow(error):
                    continue
                # At the first time those that were just accepted get the moment that they need to say what they want.
                if self._short:
                    self._room.clear_one()
                self._short = True
                self._wait()
                return
            self._short = False
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                with suppress(OSError):  # it is gone again
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            task = self._loop.create_task(self._begin(connection))
            self._begun.add(task)
            task.add_done_callback(self._begun.discard)

    def _wait(self) -> None:
        self._loop.remove_reader(self._listener)
        self._pause = self._loop.call_later(_PAUSE_SECONDS, self._go_on)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listener, self._accept)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection)
        except OSError as error:
            _log.debug("a connection did not begin: %s", error)
            connection.close()
