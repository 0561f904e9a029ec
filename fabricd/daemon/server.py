"""uvicorn's server, with this daemon's own way to begin, beat and end."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from fabricd.daemon.acceptor import Acceptor
from fabricd.daemon.protocol import HEAD_MAX_BYTES, IDLE_SECONDS, Protocol
from fabricd.daemon.room import Connection, Room
from fabricd.daemon.tidy import Tidier
from fabricd.daemon.tls_door import TlsDoor
from fabricd.shortage import Shortages

_log = logging.getLogger("fabricd.server")

#: Answers under way may take this long after the daemon was told to stop.
DRAIN_SECONDS = 0.5
_BEAT_SECONDS = 1.0
#: A loop that was away for longer than this is worth a warning.
_LATE_SECONDS = 1.0


class Server(uvicorn.Server):
    """Serves until ``stopping`` is set, then ends within ``DRAIN_SECONDS`` and a little, whatever clients do.

    Args:
        app: the application.
        stopping: set by the signals' handlers.
        max_connections: how many may be open.
        shortages: told of connections for which there is no room.
        near_memory_limit: says how near memory is to its end; "" when there is enough.
        beat: called every second from the loop.
        tls: what a new connection over TCP is secured with, at the moment; None: TCP without TLS.
    """

    def __init__(
        self,
        app: ASGIApp,
        stopping: asyncio.Event,
        max_connections: int,
        shortages: Shortages,
        beat: Callable[[], None],
        *,
        near_memory_limit: Callable[[], str] = lambda: "",
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # who asks is decided by the connection, not by what a header says
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            h11_max_incomplete_event_size=HEAD_MAX_BYTES,
        )
        super().__init__(config)
        self._stopping = stopping
        self._beat = beat
        connections = cast(set[Connection], self.server_state.connections)
        self.room = Room(max_connections, connections, shortages, near_memory_limit)
        self._near_memory_limit = near_memory_limit
        self._door = TlsDoor(self._protocol, tls, self.room.full) if tls else None
        self._acceptors: list[Acceptor] = []
        self._tidier = Tidier()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to the daemon: uvicorn would raise them again at its end."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen: with TLS over TCP, without it on Unix sockets."""
        for listener in sockets or []:
            over_tcp = listener.family != socket.AF_UNIX
            make = self._door.visitor if self._door is not None and over_tcp else self._protocol
            self._acceptors.append(Acceptor(listener, make, self.room))
        self.started = True

    def _protocol(self) -> Protocol:
        return Protocol(config=self.config, server_state=self.server_state, app_state={}, room=self.room)

    async def main_loop(self) -> None:
        """Beat every second until the daemon is to stop."""
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            await self.on_tick(0)  # sets the Date header
            self._beat()
            self.room.relieve(loop.time())
            self.room.widen()
            self._tidier.look(len(self.server_state.connections), short=bool(self._near_memory_limit()))
            begun = loop.time()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BEAT_SECONDS):
                    await self._stopping.wait()
            late = loop.time() - begun - _BEAT_SECONDS
            if late > _LATE_SECONDS:
                _log.warning("the event loop was held up", extra={"facts": {"seconds": round(late, 2)}})

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let answers under way end, then end the rest."""
        for acceptor in self._acceptors:
            acceptor.close()
        self.room.close()
        if self._door is not None:
            self._door.close()
        for listener in sockets or []:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                # uvicorn's sets tell nobody when they become empty
                while state.connections or state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        if state.connections or state.tasks:
            _log.info("ending connections that do not end", extra={"facts": {"connections": len(state.connections)}})
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        for connection in list(state.connections):
            if isinstance(connection, Protocol):  # they all are
                connection.abort()
        if tasks:
            await asyncio.wait(tasks, timeout=0.1)
