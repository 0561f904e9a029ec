"""Runs the checks beside the systemd that is their subject, as root, and says on the console what came of each."""

import os
import sys
import time
import traceback
from pathlib import Path

import guest_checks as units
import guest_installs as installs
from guest_tools import run

#: Begins each line for people; whoever started this looks for it.
MARK = os.environ["MARK"]
#: In their order: each goes on from what the one before left.
CHECKS = (
    installs.installs,
    units.unprivileged,
    units.exposure,
    units.devices,
    units.files,
    units.root_facts,
    units.journal,
    units.stuck_journal,
    units.reloads,
    units.crash,
    units.hang,
    units.wrong_configuration,
    units.gpus,
    installs.upgrades,
    installs.failed_upgrade,
    installs.refused_upgrade,
    installs.rolls_back,
    units.stops,
    installs.uninstalls,
    installs.package,
    installs.package_upgrade,
    installs.package_removal,
)


def say(text: str) -> None:
    """Say a line on the console."""
    with Path("/dev/console").open("a") as console:
        for line in text.splitlines():
            console.write(f"\n{MARK} {line}\n")


def main() -> bool:
    """Run all checks, up to one that fails: what comes after has no firm ground. Return whether all were good."""
    for check in CHECKS:
        begun = time.monotonic()
        try:
            answer = check()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's answer
            traceback.print_exc()
            say(f"FAILED {check.__name__}: {error}")
            say(run("journalctl", "--no-pager", "--lines", "30", "--output", "cat"))
            return False
        say(f"ok {check.__name__} ({time.monotonic() - begun:.1f} s): {check.__doc__}")
        if answer:
            say(f"   {answer}")
    return True


if __name__ == "__main__":
    say(f"verdict {'PASS' if main() else 'FAIL'}")
    sys.exit(0)
