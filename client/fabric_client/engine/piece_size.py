"""How large the pieces of a reduction are, by facts of the machine and the network. ``docs/mpi.md`` has the figures."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from fabricd.model.path import Transport
from fabricd.model.plan import NetworkChoice
from fabricd.smallfile import read_bytes
from fabricd.units import format_bandwidth, format_count, format_latency, format_size

_BY_TCP = (Transport.ETHERNET, Transport.INTERNET)
#: Half of what the C library maps anew, so that a buffer and what else a rank takes stay in memory that it has.
FEWEST_SWITCHES_BYTES = 16 << 20
#: Of a rank's share of the cache: source, result, MPI's buffer and the way between, of this piece and of the next.
_PIECES_IN_CACHE = 8
#: Below, starting a piece costs more than the cache saves.
_LEAST_BYTES = 512 << 10
_ASSUMED_BYTES = 1 << 20
#: Of a CPU's own cache: source, result, what is received and what the kernel holds of it, by TCP.
_PIECES_IN_OWN_CACHE = 4
_OWN_CACHE_LEVEL = 2
_ASSUMED_OWN_BYTES = 256 << 10
#: Each step of a piece begins with one message's way through the network, in which nothing moves: that is a
#: sixteenth of the time at most.
_WAYS_IN_PIECE = 16
_MAX_CACHES = 16


@dataclass(frozen=True, slots=True)
class PieceSize:
    """Up to how much is reduced in one go, and why."""

    nbytes: int
    because: str


def choose_piece_size(
    size: int, ranks_on_host: int, network: NetworkChoice | None = None, *, sys_root: Path = Path("/sys")
) -> PieceSize:
    """Return the size of piece that suits this rank.

    Args:
        size: ranks in all.
        ranks_on_host: how many of them share this one's host.
        network: what joins the hosts, where a plan says.
        sys_root: where sysfs is mounted. Source: kernel Documentation/ABI/testing/sysfs-devices-system-cpu.
    """
    cpus = os.sched_getaffinity(0)
    if size > ranks_on_host:
        return _between_hosts(size, network, sys_root / f"devices/system/cpu/cpu{min(cpus)}/cache")
    if ranks_on_host > len(cpus):
        why = f"{ranks_on_host} ranks share {len(cpus)} CPUs, which each piece switches between"
        return PieceSize(FEWEST_SWITCHES_BYTES, why)
    cache = max(_caches(sys_root / f"devices/system/cpu/cpu{min(cpus)}/cache"), default=None)
    if cache is None:
        return PieceSize(_ASSUMED_BYTES, "the cache's size is unknown")
    level, nbytes, sharing = cache
    ranks = max(1, math.ceil(ranks_on_host * min(sharing, len(cpus)) / len(cpus)))
    piece = min(FEWEST_SWITCHES_BYTES, max(_LEAST_BYTES, nbytes // ranks // _PIECES_IN_CACHE))
    return PieceSize(piece, f"an L{level} cache of {format_size(nbytes)} for {format_count(ranks, 'rank')}")


def _between_hosts(size: int, network: NetworkChoice | None, caches: Path) -> PieceSize:
    """Return what suits TCP, whose every byte the CPU copies: out of its own cache, if the network is not too far."""
    if network is None or network.transport not in _BY_TCP:
        return PieceSize(FEWEST_SWITCHES_BYTES, "ranks on other hosts: as few pieces as memory is reused with")
    bandwidth, latency = network.bandwidth_bytes_per_second, network.latency_seconds
    if not bandwidth or latency is None:
        return PieceSize(FEWEST_SWITCHES_BYTES, f"how fast {network.network} is is not known")
    own = max((nbytes for level, nbytes, _ in _caches(caches) if level == _OWN_CACHE_LEVEL), default=0)
    cached = max(_ASSUMED_OWN_BYTES, own // _PIECES_IN_OWN_CACHE)
    far = latency * bandwidth * _WAYS_IN_PIECE * math.ceil(math.log2(size))
    if far <= cached:
        why = f"an L2 cache of {format_size(own)}" if own else "the L2 cache's size is unknown"
        return PieceSize(min(FEWEST_SWITCHES_BYTES, cached), why)
    told = f"{format_latency(latency)} at {format_bandwidth(bandwidth)} over {network.network}"
    return PieceSize(min(FEWEST_SWITCHES_BYTES, 1 << math.ceil(math.log2(far))), told)


def _caches(directory: Path) -> list[tuple[int, int, int]]:
    """Return level, bytes and number of CPUs of each cache whose sizes are told."""
    found = []
    for number in range(_MAX_CACHES):
        try:
            level, size, cpus = (
                read_bytes(directory / f"index{number}" / name).decode().strip()
                for name in ("level", "size", "shared_cpu_map")
            )
            found.append((int(level), int(size.removesuffix("K")) << 10, int(cpus.replace(",", ""), 16).bit_count()))
        except (OSError, ValueError):
            continue  # no such cache, or not told, as in some virtual machines
    return [cache for cache in found if cache[1] > 0 and cache[2] > 0]
