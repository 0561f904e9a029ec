"""``python -m tests.systemd``: fabricd installed, run, hurt, upgraded and removed under a real systemd.

A small Debian 12 is booted in namespaces of its own, on this machine's kernel, with systemd as its first process. What
is checked in it, in which order, stands in ``guest_checks.py``. Of this machine nothing is touched but the folder that
keeps Debian, and a control group, which is removed.
"""

import argparse
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.rdma.image import CannotRunError, need_programs
from tests.systemd.root import PROJECT, prepare

#: Begins each line that is for people, among what systemd says on the console.
MARK = "systemd-check:"
_PROGRAMS = {"debootstrap": "debootstrap", "unshare": "util-linux", "ip": "iproute2", "gcc": "gcc"}
_HERE = Path(__file__).parent


def main() -> int:
    """Return 0 when every check was good, 1 when one was not, 3 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tests.systemd", description="fabricd under a real systemd.")
    parser.add_argument("--seconds", type=float, default=1200.0, help="end it after so long (default 1200)")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build/systemd", help="keeps Debian and the console")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was booted ends with this program
    begun = time.monotonic()
    try:
        _need_means()
        options.folder.mkdir(parents=True, exist_ok=True)
        with (options.folder / "lock").open("w") as lock, _control_group() as group:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once take turns
            root = prepare(options.folder)
            print(f"systemd: prepared after {time.monotonic() - begun:.0f} s", flush=True)
            console = options.folder / "console.log"
            console.unlink(missing_ok=True)
            verdict = _boot(root, group, console, seconds=options.seconds)
    except CannotRunError as error:
        print(f"systemd: cannot run here: {error}", file=sys.stderr)
        return 3
    if verdict != "PASS":
        why = "failed" if verdict else f"gave no verdict, for which it had {options.seconds:g} s"
        print(f"systemd: {why}; the end of {console}:\n{console.read_text(errors='replace')[-3000:]}")
    print(f"systemd: {verdict or 'FAIL'} after {time.monotonic() - begun:.0f} s")
    return int(verdict != "PASS")


def _need_means() -> None:
    if os.geteuid() != 0:
        raise CannotRunError("it makes a root filesystem and namespaces: needs root")
    need_programs(_PROGRAMS)


@contextmanager
def _control_group() -> Iterator[Path]:
    """Make a group of cgroup v2 for what is booted; it is to be empty at the end."""
    mounted = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    found = [Path(words[1]) for words in mounted if words[2] == "cgroup2"]
    if not found:
        raise CannotRunError("no cgroup v2 is mounted")
    group = found[0] / f"fabricd-check-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise CannotRunError(f"cannot make {group}: {error.strerror}") from error
    try:
        yield group
    finally:
        for folder in sorted(group.rglob("*/"), reverse=True):  # the innermost first
            folder.rmdir()
        group.rmdir()


def _boot(root: Path, group: Path, console: Path, *, seconds: float) -> str:
    """Boot it, pass on what it says to people, end it, and return its verdict; "" for none."""
    boot = 'echo $$ >"$1/cgroup.procs" && shift && exec unshare "$@"'
    kinds = ["--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "--kill-child"]
    end = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as scratch:
        what = ["/bin/sh", str(_HERE / "boot.sh"), str(root), scratch, str(console)]
        process = subprocess.Popen(
            ["/bin/sh", "-c", boot, "sh", str(group), *kinds, *what],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "MARK": MARK},
            start_new_session=True,
        )
        try:
            return _listen(process, console, end)
        finally:
            process.kill()
            process.wait()
            _wait_empty(group)


def _listen(process: "subprocess.Popen[bytes]", console: Path, end: float) -> str:
    begun, passed_on = time.monotonic(), 0
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.2)
        text = console.read_text(errors="replace") if console.exists() else ""
        said = [line.partition(MARK)[2].strip() for line in text.split("\n")[:-1] if MARK in line]
        for line in said[passed_on:]:
            print(f"{time.monotonic() - begun:6.1f} {line}", flush=True)
            if line.startswith("verdict"):
                return line.split()[1]
        passed_on = len(said)
    return ""


def _wait_empty(group: Path) -> None:
    """Wait until the kernel has ended all that was in the group."""
    for _ in range(100):
        if "populated 0" in (group / "cgroup.events").read_text():
            return
        time.sleep(0.1)
    raise CannotRunError(f"processes of {group} do not end")


if __name__ == "__main__":
    sys.exit(main())
