"""Starts the ranks of a job on this host and looks after them until all have ended."""

import asyncio
import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from fabric_client.engine.settings import is_of_process_manager
from fabricd.errors import InputError

#: What is passed on to the ranks; the first two also begin the job's end.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
#: Between SIGTERM and SIGKILL.
_KILL_SECONDS = 3.0
#: A rank that has ended may have left a child that holds its pipes open.
_DRAIN_SECONDS = 1.0
_CHUNK = 65536
_TIMED_OUT = 124  # as timeout(1) says
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks to run.

    Attributes:
        command: what every rank runs.
        ranks: how many.
        environ: their environment, without what tells the rank.
        prefix: put ``[rank] `` before every line of output.
        timeout: seconds after which the job is ended; None: never.
        grace: seconds that the others have to end by themselves when one rank has failed.
    """

    command: Sequence[str]
    ranks: int
    environ: Mapping[str, str]
    prefix: bool = False
    timeout: float | None = None
    grace: float = 10.0


def rank_environment(environ: Mapping[str, str], rank: int, ranks: int, master_port: int) -> dict[str, str]:
    """Return one rank's environment: torchrun's variables, and none of an outer process manager."""
    found = {name: value for name, value in environ.items() if not is_of_process_manager(name)}
    return {
        **found,
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
    }


def free_port() -> int:
    """Return a TCP port of loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """In a child before exec: SIGTERM when the parent ends, however it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


_LIBC = ctypes.CDLL(None)


def run_job(job: Job) -> int:
    """Run a job to its end and return its exit status: that of the first rank that failed, or 0.

    Raises:
        InputError: the command cannot be started.
    """
    try:
        return asyncio.run(_Run(job).run())
    finally:
        end_on_signals()  # the event loop has taken its handlers away


def end_on_signals() -> None:
    """Make signals that would end this process unwind it, so that what it has made is removed."""
    for number in _ENDING - {signal.SIGINT}:  # Python does so for that one
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's choice stands
            signal.signal(number, _unwind)


def _unwind(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _status(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


def _say(text: str) -> None:
    sys.stderr.write(f"fabricctl: {text}\n")
    sys.stderr.flush()


class _Run:
    """One run of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._processes: list[asyncio.subprocess.Process] = []
        self._pumps: dict[int, list[asyncio.Future[None]]] = {}
        self._status = 0
        self._ending: asyncio.Task[None] | None = None

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and shells without job control leave them
                loop.add_signal_handler(number, self._signalled, number)
        deadline = loop.call_later(self._job.timeout, self._timed_out) if self._job.timeout else None
        try:
            port = free_port()
            for rank in range(self._job.ranks):
                self._processes.append(await self._start(rank, port))
            await asyncio.gather(*(self._follow(rank, process) for rank, process in enumerate(self._processes)))
        finally:
            if deadline is not None:
                deadline.cancel()
            if self._ending is not None:
                self._ending.cancel()
            if self._status:
                self._send(signal.SIGKILL)  # what failed ranks have started and left
        return self._status

    async def _start(self, rank: int, port: int) -> asyncio.subprocess.Process:
        # Pipes of our own: with asyncio's, a rank would end only when whatever it has started has closed them.
        pipes = [os.pipe(), os.pipe()] if self._job.prefix else []
        out, err = (write for _, write in pipes) if pipes else (None, None)
        # A rank is no foreground process of the terminal, so reading from it would stop the rank.
        reads = rank == 0 and not sys.stdin.isatty()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._job.command,
                env=rank_environment(self._job.environ, rank, self._job.ranks, port),
                stdin=None if reads else asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # signals reach what a rank has started, too
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self._status = 2
            raise InputError(f"cannot start {self._job.command[0]!r}: {error.strerror}") from error
        finally:
            for _, write in pipes:
                os.close(write)
        self._pumps[rank] = [
            asyncio.ensure_future(_pump(read, to, f"[{rank}] ".encode(), self._output_lost))
            for (read, _), to in zip(pipes, (sys.stdout.buffer, sys.stderr.buffer), strict=False)
        ]
        return process

    async def _follow(self, rank: int, process: asyncio.subprocess.Process) -> None:
        returncode = await process.wait()
        if pumps := self._pumps[rank]:
            await asyncio.wait(pumps, timeout=_DRAIN_SECONDS)
            for pump in pumps:
                pump.cancel()
        if returncode != 0:
            self._failed(rank, returncode)

    def _failed(self, rank: int, returncode: int) -> None:
        how = f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"status {returncode}"
        if self._status == 0:
            self._status = _status(returncode)
            _say(f"rank {rank} ended with {how}")
        if self._ending is None and any(process.returncode is None for process in self._processes):
            self._ending = asyncio.ensure_future(self._end_after(self._job.grace))

    def _output_lost(self, out: BinaryIO, error: OSError) -> None:
        """Nobody reads the output any more, or the disk is full: end the job, whose ranks would have met it, too."""
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, out.fileno())  # what the ranks still write, and what is buffered, goes there
        os.close(nothing)
        if self._status == 0:
            self._status = 128 + signal.SIGPIPE
            _say(f"cannot write the ranks' output: {error.strerror}")
        if self._ending is None:
            self._end_now()

    def _timed_out(self) -> None:
        _say(f"the job did not end within {self._job.timeout:g} s")
        self._status = self._status or _TIMED_OUT
        self._end_now()

    def _signalled(self, number: signal.Signals) -> None:
        if number not in _ENDING:
            self._send(number)
            return
        if self._ending is not None and self._status:
            self._send(signal.SIGKILL)  # asked twice
            return
        self._status = self._status or 128 + number
        self._send(number)
        self._end_now(first=False)

    def _end_now(self, *, first: bool = True) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self._ending = asyncio.ensure_future(self._end_after(0.0 if first else _KILL_SECONDS))

    async def _end_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._send(signal.SIGTERM)
        await asyncio.sleep(_KILL_SECONDS)
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)


async def _pump(descriptor: int, out: BinaryIO, prefix: bytes, lost: Callable[[BinaryIO, OSError], None]) -> None:
    """Copy lines, each behind the prefix; a line that does not end is cut, so that memory stays bounded."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), io.FileIO(descriptor)
    )
    rest = b""
    try:
        while chunk := await stream.read(_CHUNK):
            *lines, rest = (rest + chunk).split(b"\n")
            if len(rest) > _CHUNK:
                lines.append(rest)
                rest = b""
            _write_lines(lines, out, prefix, lost)
    finally:
        transport.close()
        if rest:
            _write_lines([rest], out, prefix, lost)


def _write_lines(
    lines: Sequence[bytes], out: BinaryIO, prefix: bytes, lost: Callable[[BinaryIO, OSError], None]
) -> None:
    if not lines:
        return
    try:
        out.write(b"".join(prefix + line + b"\n" for line in lines))
        out.flush()
    except OSError as error:
        lost(out, error)
