"""Ending connections of this process that nothing else will end: a peer whose cable is cut says no goodbye.

Gloo waits for such a peer until its timeout, 30 minutes by default, and cannot be told to stop. What it reads from,
though, are this process's own sockets.
"""

import contextlib
import ipaddress
import os
import socket
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
    return sum(_sever(one, own, others, spared) for _, one in tcp_sockets())


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


def tcp_sockets() -> Iterator[tuple[str, socket.socket]]:
    """Yield this process's TCP sockets with their names, see :func:`own_sockets`.

    Each has a descriptor of its own, which is closed when the next one is asked for: by then the number that it was
    found by may stand for something else.
    """
    for number, name in _descriptors():
        if name.startswith("socket:"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:  # or closed meanwhile
                if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                    yield name, one


def _descriptors() -> Iterator[tuple[int, str]]:
    """Yield this process's descriptors and what they stand for."""
    for entry in list(Path("/proc/self/fd").iterdir()):
        with contextlib.suppress(OSError):  # closed meanwhile
            yield int(entry.name), str(entry.readlink())


def _sever(one: socket.socket, own: str, others: Collection[str], spared: Collection[int]) -> bool:
    with contextlib.suppress(OSError):  # not connected
        here, there = one.getsockname(), one.getpeername()
        if _plain(here[0]) == own and _plain(there[0]) in others and not {here[1], there[1]} & {*spared}:
            one.shutdown(socket.SHUT_RDWR)
            return True
    return False


def _plain(address: str) -> str:
    """Return an IPv4 address that IPv6 stands in for as itself."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)
