"""Starts the ranks of a job on this host and looks after them until all have ended."""

import asyncio
import contextlib
import ctypes
import itertools
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fabric_client.cli.output import Output, Pump
from fabric_client.engine.settings import is_of_process_manager
from fabricd.errors import InputError

#: What is passed on to the ranks; the first two also begin the job's end.
_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
ENDING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
#: Between SIGTERM and SIGKILL.
_KILL_SECONDS = 3.0
#: For what is still to be written when a rank or the job has ended.
_DRAIN_SECONDS = 1.0
#: The other ranks may only be about to come to where they wait for the one that has ended.
_TELL_AGAIN_SECONDS = 0.5
_TIMED_OUT = 124  # as timeout(1) says
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Where the ranks of one host stand in their job, and where all ranks find one another."""

    world_size: int  #: ranks of all hosts
    first_rank: int = 0  #: of this host
    host_rank: int = 0
    master_address: str = "127.0.0.1"
    master_port: int  #: free there a moment ago


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
        place: where these ranks stand among those of several hosts; None: all are here.
        on_failure: told of the first rank that failed, and how, in another thread; again while it returns False.
        afterwards: called in another thread when one has failed and all have ended.
    """

    command: Sequence[str]
    ranks: int
    environ: Mapping[str, str]
    prefix: bool = False
    timeout: float | None = None
    grace: float = 10.0
    place: JobPlace | None = None
    on_failure: Callable[[int, str], bool] = lambda rank, how: True
    afterwards: Callable[[], None] = lambda: None


def rank_environment(environ: Mapping[str, str], local_rank: int, ranks: int, place: JobPlace) -> dict[str, str]:
    """Return the environment of one of a host's ranks: torchrun's variables, and none of an outer process manager."""
    found = {name: value for name, value in environ.items() if not is_of_process_manager(name)}
    return {
        **found,
        "RANK": str(place.first_rank + local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": str(place.host_rank),
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": str(place.master_port),
    }


def free_port(address: str = "127.0.0.1") -> int:
    """Return a TCP port of an address of this host that nobody uses now."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.bind((address, 0))
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
        return asyncio.run(_run(job))
    finally:
        end_on_signals()  # the event loop has taken its handlers away


async def _run(job: Job) -> int:
    return await _Run(job).run()


def end_on_signals() -> None:
    """Make signals that would end this process unwind it, so that what it has made is removed."""
    for number in ENDING - {signal.SIGINT}:  # Python does so for that one
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup's choice stands
            signal.signal(number, _unwind)


def _unwind(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _status(returncode: int) -> int:
    return 128 - returncode if returncode < 0 else returncode


class _Run:
    """One run of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._place = job.place or JobPlace(world_size=job.ranks, master_port=free_port())
        self._processes: list[asyncio.subprocess.Process] = []
        self._pumps: list[list[Pump]] = []
        self._status = 0
        self._ending: asyncio.Task[None] | None = None
        self._telling: asyncio.Task[None] | None = None
        self._running = 0
        self._none_runs = asyncio.Event()
        self._err = Output(sys.stderr.fileno(), self._output_lost)
        self._outputs = [Output(sys.stdout.fileno(), self._output_lost), self._err] if job.prefix else []

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup and shells without job control leave them
                loop.add_signal_handler(number, self._signalled, number)
        deadline = loop.call_later(self._job.timeout, self._timed_out) if self._job.timeout else None
        try:
            for rank in range(self._job.ranks):
                if self._ending is None:
                    await self._start(rank)
            self._running = len(self._processes)
            await asyncio.gather(*(self._follow(rank) for rank in range(self._running)))
        finally:
            if deadline is not None:
                deadline.cancel()
            if self._ending is not None:
                self._ending.cancel()
            await self._clear_up()
        return self._status

    async def _start(self, rank: int) -> None:
        # Pipes of our own: with asyncio's, a rank would end only when whatever it has started has closed them.
        pipes: list[tuple[int, int]] = []
        # A rank is no foreground process of the terminal, so reading from it would stop the rank.
        reads = rank == 0 and not sys.stdin.isatty()
        try:
            pipes.extend(os.pipe() for _ in self._outputs)
            out, err = (write for _, write in pipes) if pipes else (None, None)
            process = await asyncio.create_subprocess_exec(
                *self._job.command,
                env=rank_environment(self._job.environ, rank, self._job.ranks, self._place),
                stdin=None if reads else asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,  # signals reach what a rank has started, too
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            self._status = 2
            for read, _ in pipes:
                os.close(read)
            raise InputError(f"cannot start {self._job.command[0]!r}: {error.strerror}") from error
        finally:
            for _, write in pipes:
                os.close(write)
        self._processes.append(process)
        self._pumps.append(
            [
                Pump(read, output, str(self._place.first_rank + rank))
                for (read, _), output in zip(pipes, self._outputs, strict=True)
            ]
        )

    async def _follow(self, rank: int) -> None:
        returncode = await self._processes[rank].wait()
        self._running -= 1
        if not self._running:
            self._none_runs.set()
        for pump in self._pumps[rank]:
            pump.rank_has_ended()
        copied = [pump.copied for pump in self._pumps[rank]]
        if copied:
            await asyncio.wait(copied, timeout=_DRAIN_SECONDS)  # what it had to say comes first
        if returncode != 0:
            self._failed(rank, returncode)
        if copied:
            await asyncio.wait(copied)  # however slow the reader is

    async def _clear_up(self) -> None:
        """End what is left, and have the last messages written, unless nobody takes them."""
        if self._status:
            self._send(signal.SIGKILL)  # what failed ranks have started and left
        ends = asyncio.gather(*(process.wait() for process in self._processes), self._err.flush())
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ends, _DRAIN_SECONDS)
        for output in {self._err, *self._outputs}:
            output.close()
        if self._telling is not None:
            await self._telling
            await asyncio.to_thread(self._job.afterwards)

    def _failed(self, rank: int, returncode: int) -> None:
        how = f"signal {signal.Signals(-returncode).name}" if returncode < 0 else f"status {returncode}"
        if self._status == 0:
            self._status = _status(returncode)
            self._say(f"rank {self._place.first_rank + rank} ended with {how}")
            self._telling = asyncio.ensure_future(self._tell(self._place.first_rank + rank, how))
        if self._ending is None and self._running:
            self._ending = asyncio.ensure_future(self._end_after(self._job.grace))

    async def _tell(self, rank: int, how: str) -> None:
        while self._running and not await asyncio.to_thread(self._job.on_failure, rank, how):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_runs.wait(), _TELL_AGAIN_SECONDS)

    def _output_lost(self, error: OSError) -> None:
        """Nobody reads the output any more, or the disk is full: end the job, whose ranks would have met it, too."""
        if not self._job.prefix:
            return  # the ranks write by themselves
        if self._status == 0:
            self._status = 128 + signal.SIGPIPE
            self._say(f"cannot write the ranks' output: {error.strerror}")
        if self._ending is None:
            self._end_now()

    def _say(self, text: str) -> None:
        self._err.post(f"fabricctl: {text}")

    def _timed_out(self) -> None:
        self._say(f"the job did not end within {self._job.timeout:g} s")
        self._status = self._status or _TIMED_OUT
        self._end_now()

    def _signalled(self, number: signal.Signals) -> None:
        if number not in ENDING:
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
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._none_runs.wait()
            self._send(number)
            seconds = _KILL_SECONDS
        await asyncio.sleep(_DRAIN_SECONDS)
        for pump in itertools.chain.from_iterable(self._pumps):
            pump.copied.cancel()  # a reader that stalls does not hold up the job's end

    def _send(self, number: signal.Signals) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)
