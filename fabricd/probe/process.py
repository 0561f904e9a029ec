"""Runs a library of a driver, or a program, in a process of its own, under a deadline. Nothing there reaches this one.

A thread would not do: such libraries crash, and bindings that hold Python's lock during a call that hangs would stop
the whole daemon.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from fabricd.probe.base import ProbeFailed

_KILL_WAIT_SECONDS = 1.0


class Program:
    """Starts a program for each question; what it writes to standard output is the answer.

    A child that hangs inside a driver may survive SIGKILL until the driver lets go. It is then left behind, and no
    other is started before it has ended: they would pile up.

    Args:
        command: what to start.
        name: for people.
        environment: of the child, by default this process's.
        silent: drop what the child says on standard error; else it goes where this process's goes.
        max_bytes: of an answer.
    """

    def __init__(
        self,
        command: Sequence[str],
        name: str,
        environment: Mapping[str, str] | None = None,
        *,
        silent: bool = True,
        max_bytes: int = 16 * 2**20,  # 64 GPUs with 36 links and 63 peers each fill about 1 MiB
    ) -> None:
        self._command = tuple(command)
        self._name = name
        self._environment = environment
        self._silent = silent
        self._max_bytes = max_bytes
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(self, deadline_seconds: float) -> bytes:
        """Return the child's answer.

        Raises:
            ProbeFailed: the child could not be started, crashed, or did not answer in time.
        """
        if self._stuck is not None and self._stuck.poll() is None:
            raise ProbeFailed(f"an earlier {self._name} process ({self._stuck.pid}) is still stuck in the driver")
        self._stuck = None
        deadline = time.monotonic() + deadline_seconds
        child = self._start()
        try:
            answer = _read_all(child, deadline, self._max_bytes)
            if answer is None:
                raise ProbeFailed(f"{self._name} did not answer within {deadline_seconds:g} s; its process was killed")
            if len(answer) > self._max_bytes:
                raise ProbeFailed(f"the {self._name} process answered more than {self._max_bytes} bytes")
            status = _wait(child, deadline)
            if status is None:
                raise ProbeFailed(f"{self._name} answered, but its process did not end; it was killed")
        finally:
            self._end(child)
        if status:
            raise ProbeFailed(_how_it_ended(self._name, status))
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        try:
            return subprocess.Popen(  # noqa: S603 - a command that this package has written out
                self._arguments(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL if self._silent else None,
                env=None if self._environment is None else dict(self._environment),
            )
        except OSError as error:
            raise ProbeFailed(f"cannot start the {self._name} process: {error}") from error

    def _arguments(self) -> Sequence[str]:
        return self._command

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        """Kill the child unless it has ended, and wait a little for that."""
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_WAIT_SECONDS)
            return
        self._stuck = child


class ProbeProcess(Program):
    """A module of this package that asks a library and ends.

    Args:
        module: run as ``python -m``; its only argument is this process's id.
        library: its name for people.
        environment: of the child, by default this process's.
    """

    def __init__(self, module: str, library: str, environment: Mapping[str, str] | None = None) -> None:
        # -P: a folder that happens to be the working directory must not lend its modules.
        super().__init__((sys.executable, "-P", "-m", module), library, environment)

    def _arguments(self) -> Sequence[str]:
        return (*self._command, str(os.getpid()))


def _read_all(child: "subprocess.Popen[bytes]", deadline: float, max_bytes: int) -> bytes | None:
    """Return what the child writes until it closes its output or writes too much; None when the deadline passes."""
    assert child.stdout is not None  # noqa: S101 - it is a pipe, made above
    descriptor, size = child.stdout.fileno(), 0
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while size <= max_bytes:
        remaining = deadline - time.monotonic()
        if remaining <= 0 or not poll.poll(remaining * 1000):
            return None
        part = os.read(descriptor, 2**16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _wait(child: "subprocess.Popen[bytes]", deadline: float) -> int | None:
    try:
        return child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _how_it_ended(library: str, status: int) -> str:
    if status > 0:
        return f"the {library} process ended with status {status} without an answer"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"{library} crashed its process ({name})"
