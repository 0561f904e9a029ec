"""Runs the NVML child under a deadline. Nothing that NVML does can reach this process."""

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


class NvmlProcess:
    """Starts ``fabricd.probe.nvml_child`` for each question.

    A child that hangs inside the driver may survive SIGKILL until the driver lets go. It is then left behind, and no
    other is started before it has ended: they would pile up.

    Args:
        environment: of the child, by default this process's.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._stuck: subprocess.Popen[bytes] | None = None

    def ask(self, deadline_seconds: float) -> bytes:
        """Return the child's answer.

        Raises:
            ProbeFailed: the child could not be started, crashed, or did not answer in time.
        """
        if self._stuck is not None and self._stuck.poll() is None:
            raise ProbeFailed(f"an earlier NVML process ({self._stuck.pid}) is still stuck in the driver")
        self._stuck = None
        deadline = time.monotonic() + deadline_seconds
        try:
            # -P: a folder that happens to be the working directory must not lend its modules.
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "fabricd.probe.nvml_child"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=None if self._environment is None else dict(self._environment),
            )
        except OSError as error:
            raise ProbeFailed(f"cannot start the NVML process: {error}") from error
        try:
            answer = _read_all(child, deadline)
            if answer is None:
                raise ProbeFailed(f"NVML did not answer within {deadline_seconds:g} s; its process was killed")
            status = _wait(child, deadline)
        finally:
            self._end(child)
        if status:
            raise ProbeFailed(_how_it_ended(status))
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
    """Return everything the child writes until it closes its output; None when the deadline passes first."""
    if child.stdout is None:
        raise ProbeFailed("the NVML process has no output")
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
            return b"".join(parts)
        parts.append(part)
        size += len(part)
    raise ProbeFailed(f"the NVML process answered more than {_MAX_ANSWER_BYTES} bytes")


def _wait(child: "subprocess.Popen[bytes]", deadline: float) -> int:
    try:
        return child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise ProbeFailed("NVML answered, but its process did not end; it was killed") from None


def _how_it_ended(status: int) -> str:
    if status > 0:
        return f"the NVML process ended with status {status} without an answer"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"NVML crashed its process ({name})"
