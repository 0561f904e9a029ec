"""Ending connections of this process that nothing else will end: a peer whose cable is cut says no goodbye.

Gloo waits for such a peer until its timeout, 30 minutes by default, and cannot be told to stop. What it reads from,
though, are this process's own sockets.
"""

import contextlib
import ipaddress
import os
import socket
import stat
from collections.abc import Collection, Iterator
from pathlib import Path


def sever(own: str, others: Collection[str], *, spared: Collection[int] = ()) -> int:
    """Shut down this process's TCP connections between an address of its own and those of others.

    Descriptors stay open, for whoever holds them to read the end and close them.

    Args:
        own: IP address.
        others: IP addresses.
        spared: ports of connections that stay, at either end.

    Returns:
        How many there were.
    """
    found = 0
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile, or not connected
            found += _sever(int(entry.name), own, others, spared)
    return found


def own_sockets() -> frozenset[str]:
    """Return the sockets that this process has open, as /proc/self/fd names them: ``socket:[INODE]``."""
    return frozenset(name for _, name in _descriptors() if name.startswith("socket:"))


def shut_down(sockets: Collection[str]) -> None:
    """Shut down connections of this process by their names, see :func:`own_sockets`; listening sockets stay."""
    for number, name in _descriptors():
        if name in sockets:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
                one.getpeername()  # or it is not connected
                one.shutdown(socket.SHUT_RDWR)


def _descriptors() -> Iterator[tuple[int, str]]:
    """Yield this process's descriptors and what they stand for."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield int(entry.name), str(entry.readlink())


def _sever(number: int, own: str, others: Collection[str], spared: Collection[int]) -> bool:
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        return False
    # A descriptor of our own: by the time of the last line the number may stand for something else.
    with socket.socket(fileno=os.dup(number)) as one:
        if one.family not in (socket.AF_INET, socket.AF_INET6) or one.type != socket.SOCK_STREAM:
            return False
        here, there = one.getsockname(), one.getpeername()
        wanted = _plain(here[0]) == own and _plain(there[0]) in others
        if not wanted or here[1] in spared or there[1] in spared:
            return False
        one.shutdown(socket.SHUT_RDWR)
        return True


def _plain(address: str) -> str:
    """Return an IPv4 address that IPv6 stands in for as itself."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
