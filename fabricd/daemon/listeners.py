"""The sockets that the daemon listens at."""

import errno
import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path

from fabricd.errors import UnavailableError
from fabricd.sockets import KEEPALIVE

_BACKLOG = 2048
_PEERCRED = struct.Struct("3i")


def listen_tcp(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket.

    Raises:
        UnavailableError: the address is not of this host, or the port is in use or not allowed.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends at once only over connections that say that they are TCP: else the second part of an answer waits
    # 40 ms for the client to acknowledge the first.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        for level, option, value in KEEPALIVE:
            listener.setsockopt(level, option, value)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        hints = {
            errno.EADDRINUSE: "another program listens there, perhaps another daemon: choose a port with --port",
            errno.EADDRNOTAVAIL: "no interface of this host has that address",
            errno.EACCES: "ports below 1024 need privilege",
        }
        raise UnavailableError(
            f"cannot listen at {host} port {port}: {error.strerror}", hint=hints.get(error.errno or 0, "")
        ) from error
    return listener


class UnixListener:
    """A listening Unix socket, and the lock that says whose path it is.

    The lock is the kernel's: it ends with the process, however that dies, so a socket file without its lock is a
    leftover and may be replaced, and two daemons that start at once cannot take each other's.

    Args:
        path: of the socket; the lock lies beside it.

    Raises:
        UnavailableError: a live daemon has that path, or it cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            self._lock = os.open(
                path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise _cannot(path, error) from error
        try:
            self._take_lock()
            self.socket = self._bind()
        except BaseException:
            os.close(self._lock)
            raise
        self._inode = path.stat().st_ino

    def close(self) -> None:
        """Stop listening and remove the file, unless somebody replaced it."""
        self.socket.close()
        with suppress(OSError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        os.close(self._lock)

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _in_use(self.path, os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()) from error
        with suppress(OSError):  # the lock holds without the pid, which is for people: the disk may be full
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def _bind(self) -> socket.socket:
        _remove_stale(self.path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(self.path))
            # Every process of this host may connect, as it may to the loopback port: here the kernel tells who it is
            # (SO_PEERCRED), and each request is judged by that. A closed socket would only send users to the port,
            # where nobody can tell one from the other.
            self.path.chmod(0o666)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise _cannot(self.path, error) from error
        return listener


def peer_credentials(connection: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the process at the other end of a Unix socket, as they were when it connected."""
    pid, uid, gid = _PEERCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size))
    return pid, uid, gid


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens at.

    Raises:
        UnavailableError: somebody listens, or the path is no socket.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise UnavailableError(f"{path} is there and no socket", hint="remove it, or choose another with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError as error:
            raise _cannot(path, error) from error
        raise _in_use(path, str(peer_credentials(probe)[0]))


def _in_use(path: Path, told: str) -> UnavailableError:
    """Return the error that names who listens.

    Args:
        path: where.
        told: its pid, as the lock's file has it: perhaps another program's; 0 for one of another PID namespace.
    """
    pid = int(told) if told.isascii() and told.isdigit() else 0
    who = f"process {pid}" if pid else "another process"
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()[:200].replace(b"\0", b" ").decode("utf-8", "replace")
        who += f" ({command.strip()})"
    return UnavailableError(f"{who} listens at {path} already", hint="stop it, or choose another socket with --socket")


def _cannot(path: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"cannot listen at {path}: {error.strerror or error}",
        hint='choose another socket with --socket, or --socket "" for none',
    )
