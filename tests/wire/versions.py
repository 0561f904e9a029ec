"""Programs of this version and of earlier commits, side by side on this machine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from demo.daemons import Daemon

ROOT = Path(__file__).parents[2]
_PROGRAMS = {"fabricd": "fabricd.cli", "fabricctl": "fabric_client.cli"}
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Version:
    """A tree of sources."""

    name: str
    folder: Path

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command line of one of its programs."""
        run = f"import sys; sys.argv[0] = {program!r}; from {_PROGRAMS[program]} import main; main()"
        return [sys.executable, "-P", "-c", run, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Return what makes Python take its modules from there."""
        return {**os.environ, "PYTHONPATH": f"{self.folder}:{self.folder / 'client'}", "PYTHONSAFEPATH": "1"}

    def daemon(self, name: str, folder: Path, *arguments: str) -> Daemon:
        """Start a daemon; ends with the block."""

        def start(command: Sequence[str], output: IO[str]) -> subprocess.Popen[str]:
            own = self.command("fabricd", *command[1:])
            return subprocess.Popen(own, stdout=output, stderr=output, text=True, env=self.environment)

        options = ["--port", "0", "--socket", str(folder / f"{name}.sock"), "--node-id", name, "--name", name]
        return Daemon(name, folder, [*options, *arguments], start=start)

    def start(self, program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start one of its programs; all that it says goes into its standard output."""
        return subprocess.Popen(
            self.command(program, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.environment, **environment},
        )

    def fabricctl(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run its fabricctl; return the exit status and what it said."""
        command, variables = self.command("fabricctl", *arguments), {**self.environment, **environment}
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=variables)
        return done.returncode, done.stdout + done.stderr


HERE = Version("this version", ROOT)


@contextmanager
def at_commit(commit: str) -> Iterator[Version]:
    """Yield an earlier version, unpacked for the time of the block."""
    archive = ["git", "archive", commit, "fabricd", "client"]
    packed = subprocess.run(archive, cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        raise SystemExit(f"wire: {commit} cannot be had: {packed.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory(prefix="fabricd-version-") as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=packed.stdout, check=True)
        yield Version(commit, Path(folder))
