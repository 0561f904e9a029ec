"""Runs a library of a driver in a process of its own, under a deadline. Nothing that it does can reach this process.

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
from collections.abc import Mapping

from fabricd.probe.base import ProbeFailed

_MAX_ANSWER_BYTES = 16 * 2**20  # 64 GPUs with 36 links and 63 peers each fill about 1 MiB
_KILL_WAIT_SECONDS = 1.0


class ProbeProcess:
    """Starts a module for each question; what it writes to standard output is the answer.

    A child that hangs inside the driver may survive SIGKILL until the driver lets go. It is then left behind, and no
    other is started before it has ended: they would pile up.

    Args:
        module: run as ``python -m``; its only argument is this process's id.
        library: its name for people.
        environment: of the child, by default this process's.
    """

    def __init__(self, module: str, library: str, environment: Mapping[str, str] | None = None) -> None:
        self._module = module
        self._library = library
        self._environment = environment
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(self, deadline_seconds: float) -> bytes:
        """Return the child's answer.

        Raises:
            ProbeFailed: the child could not be started, crashed, or did not answer in time.
        """
        if self._stuck is not None and self._stuck.poll() is None:
            raise ProbeFailed(f"an earlier {self._library} process ({self._stuck.pid}) is still stuck in the driver")
        self._stuck = None
        deadline = time.monotonic() + deadline_seconds
        try:
            # -P: a folder that happens to be the working directory must not lend its modules.
            child = subprocess.Popen(  # noqa: S603 - this very interpreter, and a module of this package
                [sys.executable, "-P", "-m", self._module, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=None if self._environment is None else dict(self._environment),
            )
        except OSError as error:
            raise ProbeFailed(f"cannot start the {self._library} process: {error}") from error
        try:
            answer = _read_all(child, deadline)
            if answer is None:
                raise ProbeFailed(
                    f"{self._library} did not answer within {deadline_seconds:g} s; its process was killed"
                )
            if len(answer) > _MAX_ANSWER_BYTES:
                raise ProbeFailed(f"the {self._library} process answered more than {_MAX_ANSWER_BYTES} bytes")
            status = _wait(child, deadline)
            if status is None:
                raise ProbeFailed(f"{self._library} answered, but its process did not end; it was killed")
        finally:
            self._end(child)
        if status:
            raise ProbeFailed(_how_it_ended(self._library, status))
        return answer

    def _end(self, child: "subprocess.Popen[bytes]") -> None:
        """Kill the child unless it has ended, and wait a little for that."""
        child.kill()
        if child.stdout is not None:
            child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_KILL_WAIT_SECONDS)
            return
        self._stuck = child


def _read_all(child: "subprocess.Popen[bytes]", deadline: float) -> bytes | None:
    """Return what the child writes until it closes its output or writes too much; None when the deadline passes."""
    assert child.stdout is not None  # noqa: S101 - it is a pipe, made above
    descriptor, size = child.stdout.fileno(), 0
    parts: list[bytes] = []
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while size <= _MAX_ANSWER_BYTES:
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
