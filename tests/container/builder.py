"""Builds images without an engine and without a registry: by buildah, with a Debian of debootstrap's as the base."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
BASE = "localhost/debian:12"
_SECONDS = 900.0


def expect(condition: object, what: str, told: object) -> None:
    """Stop with what was told unless the condition holds."""
    if not condition:
        raise SystemExit(f"container: not so: {what}\n{told}")


def run(*command: str) -> str:
    """Run a program to its end and return what it printed; stop with what it said when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, umask=0o022)
    if done.returncode:
        raise SystemExit(f"container: {' '.join(command)[:300]}:\n{(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def debian(folder: Path) -> Path:
    """Return the root of a minimal Debian 12 in ``folder``, made by debootstrap when it is not there."""
    root = folder / "debian"
    if not root.exists():
        print("container: making a Debian 12 (debootstrap)", flush=True)
        partial = folder / "debian.partial"
        shutil.rmtree(partial, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "bookworm", str(partial))
        partial.rename(root)
    return root


@dataclass(frozen=True, slots=True)
class Builder:
    """buildah, with a storage of its own."""

    storage: Path  #: takes images and containers

    def __call__(self, *arguments: str) -> str:
        """Run it and return what it printed, without the line's end."""
        where = [
            "--root",
            str(self.storage / "root"),
            "--runroot",
            str(self.storage / "run"),
            "--storage-driver",
            "vfs",
        ]
        return run("buildah", *where, *arguments).strip()

    def take_base(self, root: Path) -> None:
        """Make an image of a root filesystem, under the name ``BASE``."""
        made = self("from", "scratch")
        mounted = self("mount", made)
        run("cp", "--archive", "--reflink=auto", f"{root}/.", mounted)
        self("umount", made)
        self("commit", "--rm", made, BASE)

    def build(self, file: Path, context: Path) -> str:
        """Build an image by a file of instructions, on ``BASE``; return its name."""
        name = "localhost/fabricd:check"
        build = ["build", "--isolation", "chroot", "--pull-never"]
        self(*build, "--build-arg", f"BASE={BASE}", "--file", str(file), "--tag", name, str(context))
        return name

    def config(self, image: str) -> dict[str, Any]:
        """Return how a container of an image is run: user, command, environment."""
        found: dict[str, Any] = json.loads(self("inspect", "--type", "image", image))["OCIv1"]["config"]
        return found

    @contextmanager
    def mounted(self, image: str) -> Iterator[Path]:
        """Yield the root filesystem of a container of an image."""
        made = self("from", "--pull-never", image)
        try:
            yield Path(self("mount", made))
        finally:
            self("umount", made)
            self("rm", made)
