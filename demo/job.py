"""Jobs of one rank on each host, which wait until they are told to run a burst of all_reduces.

Plain jobs are MPI as it is: no launcher's settings, no daemon. Their ranks find one another through sockets that this
process made and answers on, so their bootstrap uses no network, and favours none.
"""

import json
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

from demo.hosts import Host
from fabric_client.pmi import PmiSession
from fabricd.errors import EngineError, ParseError

_START_SECONDS = 60.0
_BURST_SECONDS = 120.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What a burst took, and where its bytes went."""

    seconds: tuple[float, ...]  #: of each all_reduce, on the rank that took longest
    wrong: int  #: elements that are not the sum
    sent_bytes: Mapping[str, int]  #: by network, of all hosts together


class Job:
    """One rank on each host. As a context manager it ends its ranks."""

    def __init__(self, name: str, hosts: Sequence[Host]) -> None:
        """Make a job without ranks; ``add_rank`` starts them.

        Args:
            name: for messages.
            hosts: where the ranks run, in the order of ranks.
        """
        self.name = name
        self.explain = ""
        self._hosts = hosts
        self._ranks: list[subprocess.Popen[str]] = []
        self._errors: list[IO[str]] = []  #: what each rank wrote to standard error

    def add_rank(self, engine: str, env: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """Start the next rank, on the next host.

        Args:
            engine: "mpi" or "fabricd", see ``demo.rank``.
            env: added to the environment.
            pass_fds: that the rank inherits.
        """
        pipe = subprocess.PIPE
        command = [sys.executable, "-m", "demo.rank", engine]
        self._errors.append(tempfile.TemporaryFile("w+"))  # noqa: SIM115 - closed with the job
        self._ranks.append(
            self._hosts[len(self._ranks)].popen(
                command, env=env, stdin=pipe, stdout=pipe, stderr=self._errors[-1], pass_fds=pass_fds
            )
        )

    def wait_ready(self) -> None:
        """Wait until every rank is in the world.

        Raises:
            EngineError: one ended or kept silent; carries what it said.
        """
        hello = [self._answer(rank, _START_SECONDS) for rank in range(len(self._ranks))]
        if [(line["rank"], line["size"]) for line in hello] != [(i, len(hello)) for i in range(len(hello))]:
            raise EngineError(f"{self.name}: ranks do not know one another: {hello}")
        self.explain = hello[0]["explain"]

    def burst(self, size: int, count: int) -> Burst:
        """Run ``count`` all_reduces of ``size`` bytes on all ranks at once.

        Raises:
            EngineError: a rank ended or kept silent; carries what it said.
        """
        before = self._sent()
        for rank in self._ranks:
            assert rank.stdin is not None  # noqa: S101 - a pipe, see add_rank
            rank.stdin.write(json.dumps({"bytes": size, "count": count}) + "\n")
            rank.stdin.flush()
        answers = [self._answer(rank, _BURST_SECONDS) for rank in range(len(self._ranks))]
        after = self._sent()
        return Burst(
            seconds=tuple(map(max, zip(*(answer["seconds"] for answer in answers), strict=True))),
            wrong=sum(answer["wrong"] for answer in answers),
            sent_bytes={network: after[network] - before[network] for network in after},
        )

    def _answer(self, rank: int, seconds: float) -> dict[str, Any]:
        stdout = self._ranks[rank].stdout
        assert stdout is not None  # noqa: S101 - a pipe, see add_rank
        readable, _, _ = select.select([stdout], [], [], seconds)
        line = stdout.readline() if readable else ""
        if not line:
            what = "ended" if readable else f"said nothing for {seconds:g} s"
            self._errors[rank].seek(0)
            said = self._errors[rank].read()[-2000:].strip()
            raise EngineError(f"{self.name}: rank {rank} {what}: {said}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _sent(self) -> dict[str, int]:
        networks = self._hosts[0].links
        return {network: sum(host.link(network).counters().sent_bytes for host in self._hosts) for network in networks}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for rank in self._ranks:
            if rank.stdin is not None:
                rank.stdin.close()
        for rank in self._ranks:
            try:
                rank.wait(0.0 if error else _STOP_SECONDS)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()
            if rank.stdout is not None:
                rank.stdout.close()
        for errors in self._errors:
            errors.close()


class _Bootstrap:
    """Answers the PMI of all ranks of one plain job, a thread and a socketpair for each."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kvsname = secrets.token_hex(16)
        self._keys: dict[str, str] = {}
        self._lock = threading.Lock()
        self._all_in = threading.Barrier(size, timeout=_START_SECONDS)

    def socket_for_rank(self) -> socket.socket:
        """Return the end that the next rank inherits."""
        ours, theirs = socket.socketpair()
        threading.Thread(target=self._serve, args=(ours,), daemon=True).start()
        return theirs

    def _fence(self, _round: int, new: Mapping[str, str]) -> Mapping[str, str]:
        with self._lock:
            self._keys.update(new)
        self._all_in.wait()
        with self._lock:
            return dict(self._keys)

    def _serve(self, ours: socket.socket) -> None:
        mapping = f"(vector,(0,{self._size},1))"  # as many hosts, a rank on each
        session = PmiSession(size=self._size, kvsname=self._kvsname, process_mapping=mapping, fence=self._fence)
        try:
            with ours, ours.makefile("r", encoding="latin-1", newline="\n") as lines:
                for line in lines:
                    answer = session.answer(line.rstrip("\n"))
                    if line.startswith("cmd=finalize"):
                        answer = "cmd=finalize_ack rc=0"
                    if answer is not None:
                        ours.sendall(answer.encode("latin-1") + b"\n")
        except (OSError, threading.BrokenBarrierError, ParseError):
            pass  # MPI sees the socket close, and says so itself
        finally:
            self._all_in.abort()  # no rank waits for one that ended; after the last barrier it means nothing


def start_plain(name: str, hosts: Sequence[Host], settings: Sequence[Mapping[str, str]]) -> Job:
    """Start MPI as it is, one rank on each host, with nothing set but ``settings``.

    Args:
        name: the job's.
        hosts: where.
        settings: of each rank.
    """
    job = Job(name, hosts)
    bootstrap = _Bootstrap(len(hosts))
    for rank, env in enumerate(settings):
        with bootstrap.socket_for_rank() as theirs:
            fd = theirs.fileno()
            pmi = {"PMI_FD": str(fd), "PMI_RANK": str(rank), "PMI_SIZE": str(len(hosts))}
            job.add_rank("mpi", {**env, **pmi}, pass_fds=[fd])
    return job
