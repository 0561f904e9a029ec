"""Parse and print quantities. Inside the project everything is in SI base units (bytes/s, s, bytes).

Conversions happen once, at the edge: here.
"""

import re
from collections.abc import Iterable

from fabricd.errors import ParseError

# Data rate of one PCIe lane by signalling rate, bytes/s in each direction, after line coding: 8b/10b for 2.5
# and 5 GT/s, 128b/130b for 8 to 32 GT/s, FLIT with PAM4 at 64 GT/s (242 of 256 bytes carry data).
# Source: PCI Express Base Specification.
_PCIE_LANE_BYTES_PER_SECOND = {
    2.5: 250_000_000,
    5.0: 500_000_000,
    8.0: 8_000_000_000 * 128 // 130 // 8,
    16.0: 16_000_000_000 * 128 // 130 // 8,
    32.0: 32_000_000_000 * 128 // 130 // 8,
    64.0: 64_000_000_000 * 242 // 256 // 8,
}
# Signalling rate of one InfiniBand lane, bytes/s in each direction: what the kernel, too, calls a port's rate.
# Source: kernel drivers/infiniband/core/sysfs.c, rate_show.
_IB_LANE_BYTES_PER_SECOND = {
    "SDR": 312_500_000,
    "DDR": 625_000_000,
    "QDR": 1_250_000_000,
    "FDR10": 1_250_000_000,
    "FDR": 1_750_000_000,
    "EDR": 3_125_000_000,
    "HDR": 6_250_000_000,
    "NDR": 12_500_000_000,
    "XDR": 25_000_000_000,
}
_NUMBER = r"^\s*(\d{1,18}(?:\.\d+)?)\s*"  # longer ones are none that anything here has, and may be no float
_IB_RATE = re.compile(_NUMBER + r"Gb/sec\b")
_GT = re.compile(_NUMBER + r"GT/s\b")
_SIZE = re.compile(_NUMBER + r"([KMGTP]?)(i?)(B?)\s*$", re.IGNORECASE)
_PREFIXES = ("", "K", "M", "G", "T", "P")


def parse_port_rate(text: str) -> int:
    """Return an InfiniBand-class port's nominal rate in bytes/s.

    Args:
        text: contents of ``ports/<n>/rate``, e.g. ``"400 Gb/sec (4X NDR)"``.

    Raises:
        ParseError: the text does not begin with ``<number> Gb/sec``.

    Source: kernel Documentation/ABI/stable/sysfs-class-infiniband.
    """
    match = _IB_RATE.match(text)
    if match is None:
        raise ParseError(f"not a port rate: {text[:80]!r}", hint='expected e.g. "400 Gb/sec (4X NDR)"')
    return int(float(match.group(1)) * 125_000_000)


def infiniband_rate(speed: str, lanes: int) -> int | None:
    """Return the nominal rate of an InfiniBand link in bytes/s, each direction; None for a speed of no known name.

    Args:
        speed: of each lane, ``"SDR"`` to ``"XDR"``.
        lanes: the link's width.
    """
    lane = _IB_LANE_BYTES_PER_SECOND.get(speed)
    return None if lane is None else lane * lanes


def parse_transfer_rate(text: str) -> float:
    """Return a PCIe signalling rate in GT/s from sysfs text such as ``"16.0 GT/s PCIe"``.

    Raises:
        ParseError: the text holds no rate (sysfs says ``"Unknown"`` for devices without a link).

    Source: kernel Documentation/ABI/testing/sysfs-bus-pci.
    """
    match = _GT.match(text)
    if match is None:
        raise ParseError(f"not a PCIe transfer rate: {text[:80]!r}", hint='expected e.g. "16.0 GT/s PCIe"')
    return float(match.group(1))


def pcie_bandwidth(gigatransfers_per_second: float, width: int) -> int:
    """Return what a PCIe link carries in each direction, bytes/s, after line coding.

    Args:
        gigatransfers_per_second: 2.5, 5, 8, 16, 32 or 64.
        width: lanes, 1 to 32.

    Raises:
        ParseError: a rate or width that PCIe does not have.
    """
    lane = _PCIE_LANE_BYTES_PER_SECOND.get(gigatransfers_per_second)
    if lane is None or not 1 <= width <= 32:
        raise ParseError(f"no such PCIe link: {gigatransfers_per_second} GT/s x{width}")
    return lane * width


def parse_size(text: str) -> int:
    """Return bytes from ``"64"``, ``"1K"``, ``"16M"``, ``"1GiB"``; every prefix is a power of 1024.

    That is what ``nccl-tests`` and the OSU benchmarks mean by K, M and G.

    Raises:
        ParseError: not a size.
    """
    match = _SIZE.match(text)
    if match is None:
        raise ParseError(f"not a size: {text[:40]!r}", hint="expected e.g. 1024, 1K, 16M, 1GiB")
    return int(float(match.group(1)) * 1024 ** _PREFIXES.index(match.group(2).upper()))


def format_size(count: int) -> str:
    """Return bytes in the largest binary unit that divides them: ``"16M"``, ``"1000"``."""
    for power in range(len(_PREFIXES) - 1, 0, -1):
        if count and count % 1024**power == 0:
            return f"{count // 1024**power}{_PREFIXES[power]}"
    return str(count)


def format_bandwidth(bytes_per_second: float | None) -> str:
    """Return a bandwidth for people, in GB/s (10^9 bytes/s, one direction), or ``"?"`` when unknown."""
    if bytes_per_second is None:
        return "?"
    value = bytes_per_second / 1e9
    return f"{value:.0f} GB/s" if value >= 100 else f"{value:.3g} GB/s"


def format_least(bandwidths: Iterable[float | None]) -> str:
    """Return the least, and whether there are others: ``"25 GB/s and more"``; ``"?"`` where none is known."""
    told = set(bandwidths)
    least = min((one for one in told if one), default=None)
    return format_bandwidth(least) + (" and more" if least and len(told) > 1 else "")


def format_latency(seconds: float | None) -> str:
    """Return a latency for people, in microseconds, from 1 ms on in milliseconds, or ``"?"`` when unknown."""
    if seconds is None:
        return "?"
    return f"{seconds * 1e6:.3g} us" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def format_time(seconds: float | None) -> str:
    """Return a duration for people, in the unit that fits: ``"21.5 ms"``, or ``"?"`` when unknown."""
    return format_latency(seconds) if seconds is None or seconds < 1 else f"{seconds:.3g} s"


def natural_order(text: str) -> tuple[tuple[int, str], ...]:
    """Return a key by which texts stand as people count: ``mlx5_9`` before ``mlx5_10``. Case does not matter."""
    parts = re.split(r"([0-9]{1,18})", text.casefold())
    return tuple((int(part), "") if place % 2 else (-1, part) for place, part in enumerate(parts))


def format_count(count: int, what: str) -> str:
    """Return a number of things: ``"1 ring"``, ``"8 rings"``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def format_names(names: Iterable[object], most: int = 8, *, separator: str = ", ") -> str:
    """Return names for people, not too many: ``"a, b and 3 more"``; "" for none.

    Args:
        names: what is told of each.
        most: that are told.
        separator: between two.
    """
    told = [str(name) for name in names]
    return separator.join(told[:most]) + (f" and {len(told) - most} more" if len(told) > most else "")


def format_ranges(numbers: Iterable[int]) -> str:
    """Return numbers in the kernel's list form: ``"0-3,8,10-11"``; "" for none."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges)
