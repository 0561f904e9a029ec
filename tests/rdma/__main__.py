"""``python -m tests.rdma``: real RDMA, done by software, in two virtual machines that are joined by a wire.

They boot Debian's kernel, which has Soft-RoCE (``rdma_rxe``), on this machine's own root, read-only. In them the probes
are compared with the verbs library and with netlink, links go down and up under a daemon, and a job of two ranks runs
over RoCE because it asked for it: by itself the plan takes TCP, and says why. Access Control Services have registers
there, and the kernel has every kind of interface. Without hardware's help the machines take about three minutes of
processor time together.
"""

import argparse
import fcntl
import signal
import sys
import time
from pathlib import Path

from tests.rdma.image import CannotRunError, build, need_programs
from tests.rdma.machines import NAMES, PROJECT, run


def main() -> int:
    """Return 0 when every check in both machines was good, 1 when one was not, 3 when it cannot run here."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma", description="RDMA in two virtual machines.")
    parser.add_argument("--seconds", type=float, default=300.0, help="end the machines after so long (default 300)")
    parser.add_argument("--folder", type=Path, default=PROJECT / "build/rdma", help="keeps the image and the logs")
    parser.add_argument("--speed", action="store_true", help="also measure over RoCE and TCP; takes minutes longer")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the machines end with this program
    begun = time.monotonic()
    try:
        need_programs()
        options.folder.mkdir(parents=True, exist_ok=True)
        with (options.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once take turns
            said = run(build(options.folder), options.folder, seconds=options.seconds, speed=options.speed)
    except CannotRunError as error:
        print(f"rdma: cannot run here: {error}", file=sys.stderr)
        return 3
    failed = [name for name in NAMES if said[name] != "verdict PASS"]
    for name in failed:
        log = options.folder / f"{name}.log"
        why = (
            "failed" if said[name].startswith("verdict") else f"gave no verdict, for which it had {options.seconds:g} s"
        )
        print(f"rdma: {name} {why}; the end of {log}:\n{log.read_text(errors='replace')[-3000:]}")
    print(f"rdma: {'FAIL' if failed else 'PASS'} after {time.monotonic() - begun:.0f} s")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
