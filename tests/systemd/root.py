"""Prepares the root filesystem that is booted: a small Debian 12, and in ``/srv`` what to install there.

Debian's part is made once, by debootstrap. The rest follows the sources: bundles of three versions of fabricd, of which
the last does not start, and Debian packages of the other two.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.rdma.image import CannotRunError
from tests.support.machine import load
from tests.support.machine_nvml import scenario, write_scenario
from tests.support.nvml_library import library_folder

PROJECT = Path(__file__).parents[2]
#: What a node has; pyverbs is the distribution's.
_PACKAGES = "systemd,systemd-sysv,dbus,python3,python3-venv,python3-pyverbs,iproute2,ca-certificates"
_SUITE = "bookworm"
_PARTS = ("fabricd", "client/fabric_client", "deploy", "pyproject.toml", "README.md", "LICENSE")
#: Services that have nothing to do here.
_MASKED = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "getty.target", "systemd-logind.service",
)  # fmt: skip
_SECONDS = 1800.0
_HERE = Path(__file__).parent


def prepare(folder: Path) -> Path:
    """Return the root filesystem in ``folder``, made anew as far as what it is made of has changed.

    Raises:
        CannotRunError: Debian's packages, or those of Python, cannot be had.
    """
    root = folder / "root"
    _debian(root, folder / "debian-made-of")
    stamp, made_of = folder / "made-of", _digest()
    if not stamp.exists() or stamp.read_text() != made_of:
        stamp.unlink(missing_ok=True)
        _versions(root)
        stamp.write_text(made_of)
    _guest(root)
    return root


def _debian(root: Path, stamp: Path) -> None:
    made_of = f"{_SUITE} {_PACKAGES}"
    if stamp.exists() and stamp.read_text() == made_of:
        return
    print(f"systemd: making {root} (debootstrap {_SUITE})", flush=True)
    shutil.rmtree(root, ignore_errors=True)
    _run("debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _SUITE, str(root))
    shutil.rmtree(root / "var/cache/apt/archives")
    stamp.write_text(made_of)


def _versions(root: Path) -> None:
    """Put three versions into ``/srv``, and the packages."""
    shutil.rmtree(root / "srv", ignore_errors=True)
    (root / "srv").mkdir()
    print("systemd: building three versions of fabricd", flush=True)
    with tempfile.TemporaryDirectory() as name:
        _bundles(Path(name), root / "srv")
    shutil.copy(PROJECT / "deploy/build-deb.sh", root / "srv")
    for version in ("v1", "v2"):
        _run("chroot", str(root), "/srv/build-deb.sh", f"/srv/{version}", "/srv")


def _guest(root: Path) -> None:
    """Put the checks there, and what starts them."""
    for file in _HERE.glob("guest*"):
        shutil.copyfile(file, root / "srv" / file.name)
    shutil.copytree(library_folder(), root / "srv/nvml", dirs_exist_ok=True)
    (root / "srv/nvml").chmod(0o755)
    write_scenario(scenario(load("hgx-h100")), root / "srv/nvml/scenario.txt")
    units = root / "etc/systemd/system"
    (units / "multi-user.target.wants").mkdir(exist_ok=True)
    shutil.copyfile(_HERE / "guest.service", units / "guest.service")
    links = {"multi-user.target.wants/guest.service": "../guest.service"} | dict.fromkeys(_MASKED, "/dev/null")
    for name, target in links.items():
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to(target)


def _bundles(work: Path, srv: Path) -> None:
    """Make the first by ``bundle.sh``, and of it the others, whose own wheel alone is another."""
    source = work / "v1"
    _copy_sources(source)
    _run(str(source / "deploy/bundle.sh"), str(work))
    _run("tar", "xf", str(next(work.glob("*.tar.gz"))), "-C", str(work))
    bundle = next(work.glob("fabricd-*/"))
    shutil.move(bundle, srv / "v1")
    _run(sys.executable, "-m", "venv", str(work / "venv"))
    pip = [str(work / "venv/bin/python"), "-m", "pip", "wheel", "--quiet", "--no-deps"]
    for version, number in (("v2", "9.0.0"), ("v3", "9.1.0")):
        source = work / version
        _copy_sources(source)
        _replace(source / "pyproject.toml", r'(?m)^version = ".*"', f'version = "{number}"')
        _replace(source / "fabricd/__init__.py", '__version__ = ".*"', f'__version__ = "{number}"')
        if version == "v3":  # as good as any other, until it is to serve
            _replace(source / "fabricd/daemon/main.py", "(?m)^    signal.signal", '    raise OSError("broken")\n\\g<0>')
        shutil.copytree(srv / "v1", srv / version, copy_function=os.link)
        next((srv / version / "wheels").glob("fabricd-*.whl")).unlink()
        (srv / version / "SHA256SUMS").unlink()
        _replace_file(srv / version / "fabricd.toml", "# New in this version.\n")
        _run(*pip, "--wheel-dir", str(srv / version / "wheels"), str(source))


def _copy_sources(target: Path) -> None:
    for part in _PARTS:
        source = PROJECT / part
        (target / part).parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, target / part)


def _replace(file: Path, pattern: str, text: str) -> None:
    changed, count = re.subn(pattern, text, file.read_text(), count=1)
    assert count == 1, (file, pattern)
    file.write_text(changed)


def _replace_file(file: Path, more: str) -> None:
    """Give a version a file of its own: what it had is the first version's, too."""
    text = file.read_text()
    file.unlink()
    file.write_text(text + more)


def _digest() -> str:
    """Return what is another when something that the machine gets is."""
    found = hashlib.sha256()
    for file in _sources():
        found.update(f"{file}\n".encode() + file.read_bytes())
    return found.hexdigest()


def _sources() -> Iterator[Path]:
    for part in (*_PARTS, "tests/systemd/root.py"):
        path = PROJECT / part
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        yield from (file for file in files if file.is_file() and "__pycache__" not in file.parts)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    if done.returncode:
        raise CannotRunError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-1000:]}")
