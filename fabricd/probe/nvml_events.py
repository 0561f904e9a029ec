"""Tells of GPU events (Xid, uncorrectable memory errors, MIG changes), so that a daemon can look again at once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from fabricd.errors import ParseError
from fabricd.model.codec import from_json
from fabricd.probe.base import ProbeFailed

_MAX_LINE_BYTES = 64 * 1024
_END_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """One event."""

    gpu: int = -1  #: NVML's index; -1 unknown
    kind: str = ""  #: "xid", "ecc-uncorrected", "mig-changed", ...
    data: int = 0  #: of an Xid, its number


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line(GpuEvent):
    watching: int | None = None
    error: str = ""


async def gpu_events(environment: Mapping[str, str] | None = None) -> AsyncIterator[GpuEvent]:
    """Yield events, for ever. The library waits in a process of its own, which ends with the iteration.

    Call from the event loop's main thread: the process ends with the thread that started it.

    Args:
        environment: of that process, by default this one's.

    Raises:
        ProbeFailed: NVML refuses, or its process ended; says why. Whoever wants to go on begins anew after a while.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "fabricd.probe.nvml_events_child",
        str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=None if environment is None else dict(environment),
        limit=_MAX_LINE_BYTES,
    )
    try:
        while text := await _line(process):
            line = from_json(text, _Line, what="an event")
            if line.error:
                raise ProbeFailed(f"NVML's events: {line.error}")
            if line.watching is None:
                yield GpuEvent(gpu=line.gpu, kind=line.kind, data=line.data)
        await _ended(process)  # before it is killed, which would lose the status that it ended with
    except (ValueError, ParseError) as error:  # a line that is too long, or none of ours
        raise ProbeFailed(f"NVML's events: {error}") from error
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # asyncio's own way looks whether it has ended, and loses how
            await _ended(process)
    raise ProbeFailed(f"the process that waits for NVML's events ended (status {process.returncode})")


async def _ended(process: asyncio.subprocess.Process) -> None:
    with suppress(TimeoutError):  # it may be stuck in the driver
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()


async def _line(process: asyncio.subprocess.Process) -> bytes:
    return b"" if process.stdout is None else await process.stdout.readline()
