"""Linux namespaces that this process makes, enters, and takes along when it ends.

A set of namespaces is held by one process, ``cat``, that reads a pipe whose other end is ours. When the pipe closes
(we closed it, or we ended, by whatever signal), ``cat`` ends; it is PID 1 of its PID namespace, so the kernel kills
every process in there, and with the last one the namespaces, their network interfaces and their mounts go. So there is
nothing to clean up after a crash, and no name on this machine that two runs could both want.
"""

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntFlag
from pathlib import Path
from typing import IO, TypeVar

from fabricd.errors import UnavailableError

T = TypeVar("T")


class Kind(IntFlag):
    """Kinds of namespaces. Source: linux/sched.h, CLONE_NEW*."""

    MOUNT = 0x00020000
    UTS = 0x04000000
    IPC = 0x08000000
    PID = 0x20000000
    NET = 0x40000000


#: Everything that makes processes think they are on one host, but for users and time.
WHOLE_HOST = Kind.MOUNT | Kind.UTS | Kind.IPC | Kind.PID | Kind.NET

_CLONE_FS = 0x00000200  # linux/sched.h: a thread that enters a mount namespace may not share its root and cwd
_READY = "ready"
_STOP_SECONDS = 5.0
#: coreutils' env makes PID 1 ignore SIGCHLD: the kernel then reaps orphans, which nobody else there would.
_HOLD = f"echo {_READY}; exec env --ignore-signal=CHLD cat"


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # os.setns and os.unshare exist from Python 3.12 on only


def _in_thread(function: Callable[[], T]) -> T:
    """Run in a thread of its own: namespaces belong to a thread, and end here with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


def why_not() -> str:
    """Say why this process cannot make namespaces of the kind ``WHOLE_HOST``; "" when it can."""
    if not sys.platform.startswith("linux"):
        return f"needs Linux instead of {sys.platform}"
    if os.geteuid() != 0:
        return "needs root"
    try:
        _in_thread(lambda: _check(_libc().unshare(WHOLE_HOST), "unshare"))
    except OSError as error:
        return f"may not make namespaces although it is root ({error.strerror})"
    return ""


class Namespaces:
    """New namespaces, and the processes started in them.

    Threads may share an instance. Python code run by ``inside`` must not start threads of its own: the kernel refuses
    threads to a thread that starts its children in another PID namespace.
    """

    def __init__(self, kind: Kind, setup: str = "", arguments: Sequence[str] = ()) -> None:
        """Make the namespaces.

        Args:
            kind: which.
            setup: shell commands run inside first; the first one that fails ends it.
            arguments: ``$1``, ``$2``, ... of the setup.

        Raises:
            UnavailableError: the kernel refuses, or the setup fails; carries what it said.
        """
        self.kind = kind
        self._children: list[subprocess.Popen[str]] = []
        command = ["sh", "-ec", f"{setup}\n{_HOLD}", "holder", *arguments]
        try:
            self._holder = _in_thread(lambda: self._hold(command))
            self._pidfd = os.pidfd_open(self._holder.pid)
        except OSError as error:
            raise UnavailableError(f"cannot make namespaces: {error}", hint="needs root on Linux") from error
        self._await_ready()

    @property
    def pid(self) -> int:
        """The process that holds the namespaces, as this process sees it."""
        return self._holder.pid

    def _hold(self, command: Sequence[str]) -> subprocess.Popen[str]:
        _check(_libc().unshare(self.kind), "unshare")
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True)

    def _await_ready(self) -> None:
        holder = self._holder
        assert holder.stdout is not None  # noqa: S101 - it is a pipe, made above
        assert holder.stderr is not None  # noqa: S101
        line = holder.stdout.readline().strip()
        holder.stdout.close()
        said = "" if line == _READY else holder.stderr.read().strip()
        holder.stderr.close()
        if line != _READY:
            self.close()
            raise UnavailableError(f"cannot set up namespaces: {said or 'the holder ended'}")

    def inside(self, function: Callable[[], T]) -> T:
        """Run a function in a thread that is inside the namespaces, and return what it returns."""

        def enter() -> T:
            libc = _libc()
            if self.kind & Kind.MOUNT:
                _check(libc.unshare(_CLONE_FS), "unshare")
            _check(libc.setns(self._pidfd, self.kind), "setns")
            return function()

        return _in_thread(enter)

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin: int | IO[str] | None = subprocess.DEVNULL,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[str]:
        """Start a program inside. It is our own child, so its ``pid``, signals and ``returncode`` are the real ones.

        It is in a session of its own, so that a Ctrl-C at the terminal reaches this process alone.

        Args:
            command: program and arguments.
            env: the whole environment; None is this process's.
            cwd: working directory; None is this process's.
            stdin: as in ``subprocess.Popen``; nothing to read by default.
            stdout: as in ``subprocess.Popen``.
            stderr: as in ``subprocess.Popen``.
            pass_fds: file descriptors to keep open.
        """
        where = cwd or str(Path.cwd())  # entering a mount namespace leaves the thread at its root

        def start() -> subprocess.Popen[str]:
            child = subprocess.Popen(
                command,
                env=env,
                cwd=where,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=pass_fds,
                text=True,
                start_new_session=True,
            )
            self._children.append(child)  # here, so that an interrupt of the waiting thread cannot lose it
            return child

        return self.inside(start)

    def run(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        stdin_text: str = "",
        timeout: float = 60.0,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end; its output is captured.

        Raises:
            subprocess.CalledProcessError: it failed; the message includes what it said.
            subprocess.TimeoutExpired: it was killed after ``timeout`` seconds.
        """
        pipe = subprocess.PIPE
        with self.popen(command, env=env, cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe) as child:
            try:
                out, err = child.communicate(stdin_text, timeout=timeout)
            except BaseException:
                child.kill()
                raise
        if child.returncode != 0:
            error = subprocess.CalledProcessError(child.returncode, list(command), out, err)
            error.add_note(f"stderr: {err.strip()}")
            raise error
        return subprocess.CompletedProcess(list(command), 0, out, err)

    def close(self) -> None:
        """End every process inside, and with them the namespaces. Idempotent."""
        holder = self._holder
        if holder.stdin is not None and not holder.stdin.closed:
            holder.stdin.close()
        # The kernel lets PID 1 end only when all others of its PID namespace have been waited for, so we go first.
        for child in self._children:
            child.kill()
            child.wait(_STOP_SECONDS)
        self._children.clear()
        try:
            holder.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            holder.kill()
            holder.wait(_STOP_SECONDS)
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
