"""Real ranks for tests: Python programs with a rank's environment, ended whatever happens."""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class Ended:
    """How a rank ended."""

    rank: int
    status: int
    out: str
    err: str
    seconds: float  #: from the start of the job

    def json(self) -> Any:
        """Return what it printed, which must be one JSON value."""
        assert self.status == 0, f"rank {self.rank} ended with {self.status}:\n{self.out}\n{self.err}"
        return json.loads(self.out)

    @property
    def last_line(self) -> str:
        """What its traceback ends with."""
        assert "Traceback" in self.err, self.err
        return self.err.strip().splitlines()[-1]


@dataclass(slots=True)
class Ranks:
    """A running job."""

    processes: list[subprocess.Popen[str]]
    started: float
    files: list[tuple[Path, Path]] = field(default_factory=list)

    def wait(self, seconds: float = 60.0) -> list[Ended]:
        """Return how each rank ended; fail when one does not in time."""
        ended: dict[int, Ended] = {}
        while len(ended) < len(self.processes):
            for rank, process in enumerate(self.processes):
                if rank not in ended and process.poll() is not None:
                    out, err = (path.read_text() for path in self.files[rank])
                    ended[rank] = Ended(rank, process.returncode, out, err, time.monotonic() - self.started)
            if time.monotonic() - self.started > seconds:
                late = [rank for rank in range(len(self.processes)) if rank not in ended]
                said = "\n".join(f"rank {rank}:\n{self.out(rank)}\n{self.err(rank)}" for rank in late)
                raise AssertionError(f"ranks {late} did not end within {seconds:g} s\n{said}")
            time.sleep(0.01)
        return [ended[rank] for rank in range(len(self.processes))]

    def out(self, rank: int) -> str:
        """What a rank wrote to standard output so far."""
        return self.files[rank][0].read_text()

    def err(self, rank: int) -> str:
        """What a rank wrote to standard error so far."""
        return self.files[rank][1].read_text()


def rank_environment(rank: int, size: int, group: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one rank, as torchrun would set it."""
    return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), **group}


def new_group(url: str, **more: str) -> dict[str, str]:
    """Return the variables of a group that nobody else has."""
    return {
        "FABRICD_URL": url,
        "FABRICD_GROUP": f"test-{secrets.token_hex(6)}",
        "FABRICD_GROUP_SECRET": secrets.token_hex(16),
        **more,
    }


@contextmanager
def ranks(
    folder: Path, size: int, arguments: Sequence[str], group: Mapping[str, str], *, prefix: Sequence[str] = ()
) -> Iterator[Ranks]:
    """Run ``python ARGUMENTS`` as ranks for the time of the block.

    Args:
        folder: takes their output.
        size: how many.
        arguments: of the interpreter, e.g. ``["-m", "tests.contract.rank_collectives"]``.
        group: variables of the group, see :func:`new_group`.
        prefix: a program to run each rank under.
    """
    job = Ranks([], time.monotonic())
    try:
        for rank in range(size):
            files = (folder / f"{group['FABRICD_GROUP']}.{rank}.out", folder / f"{group['FABRICD_GROUP']}.{rank}.err")
            with files[0].open("w") as out, files[1].open("w") as err:
                job.files.append(files)
                job.processes.append(
                    subprocess.Popen(
                        [*prefix, sys.executable, *arguments],
                        cwd=_ROOT,
                        env=rank_environment(rank, size, group),
                        stdin=subprocess.DEVNULL,
                        stdout=out,
                        stderr=err,
                        text=True,
                    )
                )
        yield job
    finally:
        for process in job.processes:
            process.kill()
            process.wait()


def play_scene(
    folder: Path, url: str, module: str, scene: str, *arguments: str, size: int = 2, seconds: float = 30, **group: str
) -> list[Ended]:
    """Run ``python -m MODULE SCENE ARGUMENTS`` as the ranks of a new group; return how each ended.

    Args:
        folder: takes their output.
        url: the group's daemon.
        module: of scenes, e.g. "tests.e2e.rank_scenes".
        scene: which.
        arguments: of the scene.
        size: how many ranks.
        seconds: in which all must have ended.
        group: more variables.
    """
    with ranks(folder, size, ["-m", module, scene, *arguments], new_group(url, **group)) as job:
        return job.wait(seconds)
