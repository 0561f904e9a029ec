"""The ranks of one job on several hosts that are namespaces of this machine."""

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, Protocol

from tests.support.ranks import Ended


class Place(Protocol):
    """Where a rank runs: a host, or a container on one."""

    def popen(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdin: int | IO[str] | None = None,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
    ) -> subprocess.Popen[str]: ...


@contextmanager
def host_ranks(
    places: Sequence[Place],
    commands: Sequence[Sequence[str]],
    environment: Mapping[str, str],
    *,
    own: Sequence[Mapping[str, str]] = (),
    stdin: int = subprocess.DEVNULL,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run a command at each place as the ranks of one job, by pipes; none outlives the block.

    Args:
        places: one for each rank.
        commands: of each rank.
        environment: of all.
        own: further variables of each rank; none by default.
        stdin: as in ``subprocess.Popen``.
    """
    jobs: list[subprocess.Popen[str]] = []
    try:
        for rank, (place, command) in enumerate(zip(places, commands, strict=True)):
            env = {**environment, "RANK": str(rank), "WORLD_SIZE": str(len(places)), **(own[rank] if own else {})}
            jobs.append(place.popen(command, env=env, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        yield jobs
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


def run_host_ranks(
    places: Sequence[Place],
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    own: Sequence[Mapping[str, str]] = (),
    seconds: float = 80,
) -> list[Ended]:
    """Run a command at each place as the ranks of one job; return how each ended, which must be in time."""
    begun = time.monotonic()
    with host_ranks(places, [command] * len(places), environment, own=own) as jobs:
        said = [(*job.communicate(timeout=seconds), time.monotonic() - begun) for job in jobs]
    return [Ended(rank, job.returncode, *told) for rank, (job, told) in enumerate(zip(jobs, said, strict=True))]
