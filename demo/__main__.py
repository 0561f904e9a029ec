"""``python -m demo``: this machine's map, its paths, a communicator; as root also two hosts and a trap.

It starts a daemon of its own on a free port, shows each step as the command that a user would type, and leaves nothing
behind, also after Ctrl-C.
"""

import argparse
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from demo.daemons import Daemon, program
from demo.namespaces import why_not
from demo.trap import SIZES, run_and_show
from fabricd.errors import FabricError, UnavailableError

_STEP_SECONDS = 120.0


def show(console: Console, command: Sequence[str], env: Mapping[str, str]) -> None:
    """Print a command as a user would type it, then what it prints.

    Raises:
        UnavailableError: it failed; its own words stand above.
    """
    console.print(f"\n[bold]$ {shlex.join(command)}[/bold]", highlight=False)
    sys.stdout.flush()
    done = subprocess.run(
        [program(command[0]), *command[1:]], env={**os.environ, **env}, timeout=_STEP_SECONDS, check=False
    )
    if done.returncode != 0:
        raise UnavailableError(f"{shlex.join(command)} ended with status {done.returncode}")


def one_host(console: Console, folder: Path) -> None:
    """Show this machine: the daemon's map, the paths on it, and a communicator of two ranks."""
    socket = folder / "fabricd.sock"
    console.rule("this machine", align="left")
    arguments = ["--port", "0", "--socket", str(socket)]
    console.print(f"[bold]$ {shlex.join(['fabricd', 'serve', *arguments])}[/bold] &", highlight=False)
    with Daemon("demo", folder, arguments) as daemon:
        daemon.wait_ready()
        env = {"FABRICD_URL": f"unix:{socket}", "FABRICD_SOCKET": str(socket)}
        console.print(f"a daemon listens on {daemon.url} and on its Unix socket", highlight=False)
        show(console, ["fabricctl", "topo"], env)
        show(console, ["fabricctl", "paths"], env)
        show(console, ["fabricctl", "bench", "-n", "2", "--collective", "all_reduce", "-b", "1K", "-e", "16M"], env)


def two_hosts(console: Console) -> int:
    """Show the trap, where hosts can be made; return 1 when the plan walked into it."""
    console.rule("two hosts, two networks, one of them a trap", align="left")
    reason = why_not()
    if reason:
        console.print(f"Left out: the two hosts are made of Linux namespaces, and this process {reason}.")
        return 0
    console.print("This takes about 2 minutes: the all_reduce is measured again and again, until its best is known.")
    outcome = run_and_show(console, secrets.randbelow(1 << 31), sizes=SIZES, rounds=2)
    return 0 if outcome.verdict.kept_off else 1


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command line's choices."""
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description="This machine's map, its paths and a communicator (some 10 s); as root on Linux also two hosts and "
        "two networks, of which one is a trap (about 2 minutes more).",
        epilog="Exit status: 0 when all went well, 1 when the plan walked into the trap, 3 when no daemon started.",
    )
    parser.add_argument("--here", action="store_true", help="this machine only, not the two hosts")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Run both parts; return the exit status."""
    options = parse_arguments(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console()
    try:
        with tempfile.TemporaryDirectory(prefix="fabricd-demo-") as folder:
            one_host(console, Path(folder))
        return 0 if options.here else two_hosts(console)
    except FabricError as error:
        console.print(f"demo: {error}", style="red", markup=False, highlight=False)
        return error.exit_status
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
