"""Tell systemd how the daemon is (sd_notify(3)); does nothing where nobody asked."""

import logging
import os
import socket
import time
from collections.abc import Mapping

_log = logging.getLogger("fabricd.notify")


class Notifier:
    """The supervisor's socket.

    Args:
        environ: holds ``NOTIFY_SOCKET`` and ``WATCHDOG_USEC`` if a supervisor wants to know.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        self._address = environ.get("NOTIFY_SOCKET", "")
        self._beat_at = 0.0
        self._beat_seconds = _watchdog_seconds(environ) / 2

    def ready(self) -> None:
        """The daemon answers questions."""
        self._send("READY=1")

    def reloading(self) -> None:
        """The configuration is being read again; ``ready`` ends that."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """The daemon ends."""
        self._send("STOPPING=1")

    def beat(self) -> None:
        """The event loop moves. May be called as often as one likes."""
        now = time.monotonic()
        if self._beat_seconds and now - self._beat_at >= self._beat_seconds:
            self._beat_at = now
            self._send("WATCHDOG=1")

    def _send(self, state: str) -> None:
        if not self._address.startswith(("/", "@")):
            return
        # "@" stands for the zero byte of an abstract name.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(state.encode(), address)
        except OSError as error:
            _log.warning("cannot notify the supervisor", extra={"facts": {"error": error}})


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """Return the supervisor's patience; 0 when it has no watchdog for this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isascii() and text.isdigit() else 0.0
