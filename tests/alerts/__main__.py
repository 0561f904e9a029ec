"""The alert rules by Prometheus' own tool: are they right, and when do they fire.

    python -m tests.alerts

Takes promtool of this system, else of Debian's package, fetched and unpacked in ``build``; nothing is installed.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[2]
RULES = PROJECT / "deploy/alerts/fabricd.rules.yml"
_SECONDS = 300.0


def promtool(folder: Path) -> str:
    """Return the path of promtool, fetched into ``folder`` where this system has none."""
    found = shutil.which("promtool")
    program = folder / "usr/bin/promtool"
    if found is None and not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _run("apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", "prometheus", cwd=folder)
        (package,) = folder.absolute().glob("prometheus_*.deb")
        _run("dpkg", "-x", str(package), ".", cwd=folder)
        package.unlink()
    return found or str(program)


def main() -> int:
    """Return 0 when the rules are right and do what they are to do."""
    program = promtool(PROJECT / "build/promtool")
    status = subprocess.run([program, "check", "rules", str(RULES)], timeout=_SECONDS, check=False).returncode
    with tempfile.TemporaryDirectory() as name:  # rule_files are looked for beside the tests
        shutil.copy(RULES, name)
        tests = shutil.copy(Path(__file__).with_name("rules.test.yml"), name)
        status |= subprocess.run([program, "test", "rules", tests], timeout=_SECONDS, check=False).returncode
    return status


def _run(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise SystemExit(f"no promtool, and its package cannot be had: {' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
