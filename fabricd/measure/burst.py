"""A burst of bytes through a connection: sent, and timed where it arrives."""

import socket
import time
from dataclasses import dataclass

#: A burst ends when either is reached.
BURST_BYTES = 16 << 20
BURST_SECONDS = 0.5
_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What arrived of a burst."""

    bytes: int
    bytes_per_second: float  #: 0.0: too little arrived to tell


def send_burst(connection: socket.socket) -> None:
    """Send until enough bytes or seconds are over; a receiver that has enough may close before.

    The connection has another timeout afterwards.
    """
    data = memoryview(bytes(_CHUNK))
    end = time.monotonic() + BURST_SECONDS
    left = BURST_BYTES
    while left and (wait := end - time.monotonic()) > 0:
        connection.settimeout(wait)
        try:
            left -= connection.send(data[: min(left, _CHUNK)])
        except TimeoutError:
            break


def take_burst(connection: socket.socket) -> Burst:
    """Receive until enough bytes or seconds are over, counted from the first byte.

    Raises:
        TimeoutError: nothing came within the connection's own timeout, which is another one afterwards.
    """
    buffer = memoryview(bytearray(_CHUNK))
    first = connection.recv_into(buffer)
    begun = time.perf_counter()
    total = first
    samples = [(begun, total)]
    while first and total < BURST_BYTES and (wait := begun + BURST_SECONDS - time.perf_counter()) > 0:
        connection.settimeout(wait)
        try:
            count = connection.recv_into(buffer)
        except TimeoutError:
            count = 0
        if not count:
            samples.append((time.perf_counter(), total))
            break
        total += count
        samples.append((time.perf_counter(), total))
    return Burst(bytes=total, bytes_per_second=steady_rate(samples))


def steady_rate(samples: list[tuple[float, int]]) -> float:
    """Return the rate at which bytes arrived, bytes/s; 0.0 when there are too few to tell.

    The smaller of two rates: over the whole burst, and over the later half of its time. A shaper's token bucket lets
    the first bytes pass as fast as the line is, and slow start holds them back: the later half has neither. A
    receiver that was held up finds the later half waiting in its buffer: over the whole time that evens out.

    Args:
        samples: (time in seconds, bytes so far), at least one.
    """
    (begun, before), (ended, total) = samples[0], samples[-1]
    middle = next(sample for sample in samples if sample[0] >= (begun + ended) / 2)
    rates = [
        (total - seen) / (ended - since) for since, seen in ((begun, before), middle) if ended > since and total > seen
    ]
    return min(rates, default=0.0)
