"""TLS before HTTP: each new connection over TCP is secured with the certificates there are at that moment."""

import asyncio
import logging
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import cast

from fabricd.daemon.protocol import HEAD_SECONDS, Protocol

_log = logging.getLogger("fabricd.http")

#: For a client to answer the end of a TLS connection.
_FAREWELL_SECONDS = 3.0
#: asyncio keeps a buffer of this size for each TLS connection, 256 KiB unless told otherwise: 2 GB for 8192 of them.
_READ_BYTES = 16 * 1024


class TlsDoor:
    """Makes protocols for a listener whose clients must speak TLS.

    asyncio's own way would keep the certificates that it began with, and not say how many handshakes are under way.

    Args:
        make: makes the protocol of a connection.
        tls: the context for a new connection.
        full: whether there is no room for another one; takes how many are being secured.
    """

    def __init__(
        self, make: Callable[[], Protocol], tls: Callable[[], ssl.SSLContext], full: Callable[[int], bool]
    ) -> None:
        self._make = make
        self._tls = tls
        self._full = full
        self._handshakes: set[asyncio.Task[None]] = set()
        SSLProtocol.max_size = _READ_BYTES

    def visitor(self) -> asyncio.Protocol:
        """Return what a new connection begins with."""
        return _Visitor(self)

    def greet(self, transport: asyncio.Transport) -> None:
        """Begin to secure a connection, or end it where too many are open to tell it so."""
        if self._full(len(self._handshakes)):
            transport.abort()
            return
        transport.pause_reading()  # until TLS takes what comes
        task = asyncio.get_running_loop().create_task(self._secure(transport))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def close(self) -> None:
        """Give up those that are not done."""
        for task in self._handshakes:
            task.cancel()

    async def _secure(self, transport: asyncio.Transport) -> None:
        protocol = self._make()
        try:
            secured = await asyncio.get_running_loop().start_tls(
                transport,
                protocol,
                self._tls(),
                server_side=True,
                ssl_handshake_timeout=HEAD_SECONDS,
                ssl_shutdown_timeout=_FAREWELL_SECONDS,
            )
        except OSError as error:  # ssl.SSLError is one, and so are a client that left and one that was too slow
            _log.debug("no TLS: %s", error)
            transport.abort()
            return
        if secured is not None:  # None: it is gone again
            protocol.secured(secured)


class _Visitor(asyncio.Protocol):
    def __init__(self, door: TlsDoor) -> None:
        self._door = door

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._door.greet(cast(asyncio.Transport, transport))
