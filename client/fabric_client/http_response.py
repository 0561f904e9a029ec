"""An answer that has to come to an end in time, not only to go on: a byte now and then must not keep who reads.

Standard library only, as all of a rank's way to its daemon.
"""

import http.client
import io
import socket
import time
from typing import Any


class Response(http.client.HTTPResponse):
    """http.client's, whose head is whole within the time that the connection may be silent.

    Attributes:
        reader: of head and body; when it stops may be changed.
    """

    def __init__(self, connected: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(connected, *args, **kwargs)
        self.reader = Reader(self.fp.detach(), time.monotonic() + (connected.gettimeout() or 0.0))
        self.fp = io.BufferedReader(self.reader)


class Reader(io.RawIOBase):
    """What comes over a connection, until a moment.

    Attributes:
        until: that moment, of ``time.monotonic``.
    """

    def __init__(self, raw: io.RawIOBase, until: float) -> None:
        self.until = until
        self._raw = raw

    def readable(self) -> bool:
        """Return that it is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read as a socket does.

        Raises:
            OSError: as a socket raises it; TimeoutError also when the moment has passed.
        """
        if time.monotonic() > self.until:
            raise TimeoutError("timed out: it comes too slowly")
        found: int | None = self._raw.readinto(buffer)
        return found

    def close(self) -> None:
        """Let go of the connection."""
        self._raw.close()
        super().close()
