"""Time a TCP connection between two addresses: round trips, and a burst in each direction.

One end listens (``serve``), the other connects twice (``measure``)::

    connection 1   token "U"   1 byte to and fro, ROUND_TRIPS times   "b"   burst ------->   <- Burst as 2 doubles
    connection 2   token "D"   <------- burst

Bytes are counted and timed where they arrive, so a sender's buffers do not count as a network. Blocking: run it in
threads of its own; every wait is bounded.
"""

import errno
import hmac
import math
import secrets
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from fabricd.errors import UnavailableError
from fabricd.measure.burst import Burst, send_burst, take_burst

ROUND_TRIPS = 30
CONNECT_SECONDS = 2.0
#: Until the other end has connected, and for all it does.
SERVE_SECONDS = 8.0
#: Beyond these times nothing comes any more.
_STEP_SECONDS = 2.0
#: For what the other end says of the burst: it waits for one step, and then says that nothing came.
_VERDICT_SECONDS = 2 * _STEP_SECONDS
_ROUND_TRIPS_SECONDS = 0.3
_TOKEN_BYTES = 32
_CHUNK = 256 * 1024
_RESULT = struct.Struct("!Qd")
_STRANGERS = 16
_LARGE_LOST = "small packets pass and large ones do not: do the MTUs agree?"
_TIMED_OUT = "timed out: the connection was made, and then an end did not answer in time: it is very busy, or stopped"
_NO_LINGER = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a connection showed."""

    reachable: bool
    reason: str = ""  #: why not reachable
    #: The connection was made, and then an end did not do its part, or not in time: measure again. With ``up``, the
    #: other end had answered before, so a second time that means ``reason``; without, that there was no measuring.
    busy: bool = False
    round_trip_seconds: float | None = None  #: the smallest
    up: Burst | None = None
    down: Burst | None = None


def new_token() -> str:
    """Return what the connecting end must say first."""
    return secrets.token_hex(_TOKEN_BYTES // 2)


def listen(address: str, interface: str) -> socket.socket:
    """Return a socket that listens at a free port of an address, only on its interface where that is allowed.

    Raises:
        UnavailableError: the address is not of this host any more.
    """
    listener = _bound(address, interface)
    listener.listen(4)
    return listener


def _bound(address: str, interface: str) -> socket.socket:
    """Return a socket that sends from one address, by its own interface whatever the routes say."""
    found = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    with suppress(PermissionError):  # kernels before 5.7 want privilege; the address alone decides in most networks
        found.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode() + b"\0")
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        found.bind((address, 0))
    except OSError as error:
        found.close()
        raise UnavailableError(f"{address} is not on {interface} any more: {error.strerror}") from error
    return found


def serve(listener: socket.socket, token: str, client_address: str) -> None:
    """Be the other end of one measurement, then close the listener; ends in time whatever happens.

    Args:
        listener: from ``listen``.
        token: what the client must say first.
        client_address: who may connect.
    """
    end = time.monotonic() + SERVE_SECONDS
    expected = ip_address(client_address)
    waiting = {b"U": _serve_up, b"D": _serve_down}
    with listener:
        for _ in range(_STRANGERS):
            left = end - time.monotonic()
            if not waiting or left <= 0:
                return
            listener.settimeout(left)
            try:
                connection, peer = listener.accept()
            except OSError:  # nobody came, or the daemon ends
                return
            with connection, suppress(OSError):
                connection.settimeout(_STEP_SECONDS)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                said = _exactly(connection, _TOKEN_BYTES + 1) if ip_address(peer[0]) == expected else b""
                if hmac.compare_digest(said[:-1], token.encode()) and said[-1:] in waiting:
                    waiting.pop(said[-1:])(connection)


def _serve_up(connection: socket.socket) -> None:
    """Echo, take the burst, tell what arrived."""
    for _ in range(ROUND_TRIPS):
        said = _exactly(connection, 1)
        if said != b"p":
            break
        connection.sendall(said)
    else:
        said = _exactly(connection, 1)
    if said != b"b":
        return
    try:
        burst = take_burst(connection)
    except TimeoutError:  # said by a small packet: large ones are lost
        burst = Burst(bytes=0, bytes_per_second=0.0)
    connection.settimeout(_STEP_SECONDS)
    connection.sendall(_RESULT.pack(burst.bytes, burst.bytes_per_second))
    _until_closed(connection)


def _serve_down(connection: socket.socket) -> None:
    send_burst(connection)
    _until_closed(connection)


def measure(
    src_address: str,
    interface: str,
    dst_address: str,
    port: int,
    token: str,
    *,
    connect_seconds: float = CONNECT_SECONDS,
) -> Timing:
    """Measure towards a ``serve``.

    Args:
        src_address: to send from.
        interface: that has it.
        dst_address: where the other end listens.
        port: there.
        token: the other end's.
        connect_seconds: without an answer for so long, there is no way.

    Raises:
        UnavailableError: the address to send from is not of this host any more.
    """
    try:
        with _connected(src_address, interface, dst_address, port, connect_seconds) as connection:
            connection.sendall(token.encode() + b"U")
            round_trip = _round_trips(connection)
            connection.sendall(b"b")
            send_burst(connection)
            connection.settimeout(_VERDICT_SECONDS)
            arrived, rate = _RESULT.unpack(_exactly(connection, _RESULT.size))
            if not 0.0 <= rate < math.inf:
                raise ConnectionError(errno.EPROTO, f"the other end says that {rate} bytes/s arrived")
            up = Burst(bytes=arrived, bytes_per_second=rate)
        if not up.bytes:
            return Timing(reachable=False, reason=_LARGE_LOST)
        with _connected(src_address, interface, dst_address, port, connect_seconds) as connection:
            connection.sendall(token.encode() + b"D")
            try:
                down = take_burst(connection)
            except TimeoutError:  # a busy end, or one whose large packets are lost: measuring again will tell
                return Timing(reachable=False, busy=True, reason=_LARGE_LOST, up=up)
    except _ConnectError as error:
        return Timing(reachable=False, reason=_reason(error, connect_seconds))
    except TimeoutError:
        return Timing(reachable=False, busy=True, reason=_TIMED_OUT)
    except OSError as error:  # as an end does that has waited in vain
        reason = f"the connection was made and then broke: {error.strerror or error}"
        return Timing(reachable=False, busy=True, reason=reason)
    if not down.bytes:
        return Timing(reachable=False, reason=_LARGE_LOST)
    return Timing(reachable=True, round_trip_seconds=round_trip, up=up, down=down)


class _ConnectError(OSError):
    """The connection could not be made; ``errno`` says why, None for a timeout."""


def _connected(src: str, interface: str, dst: str, port: int, seconds: float) -> socket.socket:
    connection = _bound(src, interface)
    connection.settimeout(seconds)
    try:
        connection.connect((dst, port))
    except OSError as error:
        connection.close()
        raise _ConnectError(error.errno, error.strerror) from error
    connection.settimeout(_STEP_SECONDS)
    # Closing drops what a slow network has not taken yet, rather than pour it out for seconds.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    return connection


def _reason(error: _ConnectError, connect_seconds: float) -> str:
    if error.errno == errno.ECONNREFUSED:
        return "refused: packets arrive, but a firewall or another host answers"
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return f"unreachable: {error.strerror}"
    if error.errno in (None, errno.ETIMEDOUT):
        return f"no answer within {connect_seconds:g} s: nothing comes back, or a firewall drops it"
    return f"cannot connect: {error.strerror}"


def _round_trips(connection: socket.socket) -> float:
    """Return the smallest of several round trips, seconds."""
    best = float("inf")
    begun = time.perf_counter()
    for _ in range(ROUND_TRIPS):
        sent = time.perf_counter()
        connection.sendall(b"p")
        _exactly(connection, 1)
        now = time.perf_counter()
        best = min(best, now - sent)
        if now - begun > _ROUND_TRIPS_SECONDS:
            break
    return best


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError(errno.ECONNRESET, "the other end closed it")
        data += part
    return data


def _until_closed(connection: socket.socket) -> None:
    """Read on until the other end closes: closing before would take from it what it has not read."""
    end = time.monotonic() + _STEP_SECONDS
    connection.settimeout(_STEP_SECONDS)
    while connection.recv(_CHUNK) and time.monotonic() < end:
        pass
