"""``deploy/install.sh``: what it refuses, and what it would do. That it does it, ``make test-systemd`` shows."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/install.sh"
WHEEL = "fabricd-1.2.3-py3-none-any.whl"


def install(*options: object, script: Path = SCRIPT) -> tuple[int, str]:
    """Return its status, and all that it said."""
    done = subprocess.run(
        [str(script), *map(str, options)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    return done.returncode, done.stdout


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def wheels(tmp_path) -> Path:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels" / WHEEL).write_bytes(b"not looked at")
    return tmp_path / "wheels"


def all_below(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--instal"], "no such option: --instal"),
        (["--wheels"], "--wheels needs a value"),
        (["--wheels", "/no/such/folder"], "--wheels: no such folder"),
        (["--root", "/no/such/folder"], "--root: no such folder"),
        (["--prefix", "/opt"], "absolute path of at least two plain names"),
        (["--prefix", "opt/fabricd"], "absolute path of at least two plain names"),
        (["--prefix", "/opt/a b"], "absolute path of at least two plain names"),
        (["--prefix", "/opt/../etc"], "absolute path of at least two plain names"),
        (["--prefix", "/home/me/fabricd"], "the unit sees no such folder"),
        (["--purge"], "--purge goes with --uninstall"),
    ],
)
def test_wrong_usage_is_told_and_has_status_2(options, told):
    status, said = install(*options)
    assert status == 2
    assert told in said


def test_a_dry_run_tells_all_and_does_nothing(root, wheels):
    status, said = install("--dry-run", "--root", root, "--wheels", wheels)
    assert status == 0, said
    for told in (f"from {WHEEL} and {wheels}", "fabricd.service", "fabricd.toml", "bin/fabricctl", "enable"):
        assert told in said, said
    assert all_below(root) == []


def test_another_prefix_is_meant_everywhere(root, wheels):
    status, said = install("--dry-run", "--root", root, "--wheels", wheels, "--prefix", "/apps/node/fabricd")
    assert status == 0, said
    assert f"{root}/apps/node/fabricd/versions/1.2.3-" in said
    assert "/opt/fabricd" not in said


@pytest.mark.parametrize(
    ("names", "told"), [((), "no fabricd-*.whl in"), ((WHEEL, WHEEL.replace("1", "2")), "several")]
)
def test_wheels_must_hold_one_version(root, tmp_path, names, told):
    folder = tmp_path / "some"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    status, said = install("--root", root, "--wheels", folder)
    assert status == 1
    assert told in said


def test_a_python_that_does_not_do_is_refused_before_anything_is_made(root, wheels):
    status, said = install("--root", root, "--wheels", wheels, "--python", "/bin/false")
    assert status == 1
    assert "/bin/false is not Python 3.11 or newer" in said
    assert [path.name for path in all_below(root / "opt/fabricd")] == ["lock"]


def test_what_cannot_be_installed_leaves_no_half_of_it(root, wheels):
    status, said = install("--root", root, "--wheels", wheels)
    assert status != 0
    assert "requirements" in said or "No matching distribution" in said, said
    assert all_below(root / "opt/fabricd/versions") == []
    assert not (root / "etc").exists()


def test_a_bundle_that_was_not_copied_whole_is_refused(root, wheels, tmp_path):
    bundle = tmp_path / "bundle"
    shutil.copytree(SCRIPT.parent, bundle)
    shutil.copytree(wheels, bundle / "wheels")
    (bundle / "SHA256SUMS").write_text(f"{hashlib.sha256(b'not looked at').hexdigest()}  wheels/{WHEEL}\n")
    assert install("--dry-run", "--root", root, script=bundle / "install.sh")[0] == 0
    (bundle / "wheels" / WHEEL).write_bytes(b"not looked")
    status, said = install("--root", root, script=bundle / "install.sh")
    assert status == 1
    assert "copy it again" in said


def test_there_is_nothing_to_go_back_to(root):
    status, said = install("--root", root, "--rollback")
    assert status == 1
    assert "no earlier version" in said


def test_uninstalling_leaves_the_configuration_and_what_is_not_its_own(root):
    own = ("opt/fabricd/versions/1/x", "usr/local/lib/systemd/system/fabricd.service")
    others = ("etc/fabricd/fabricd.toml", "usr/local/bin/fabricctl", "opt/fabricd/notes")
    for name in own + others:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    link = root / "usr/local/bin/fabricd"
    link.symlink_to("/opt/fabricd/current/bin/fabricd")
    status, said = install("--root", root, "--uninstall")
    assert status == 0, said
    assert [name for name in own if (root / name).exists()] == []
    assert [name for name in others if not (root / name).exists()] == []
    assert not link.is_symlink()
    assert install("--root", root, "--uninstall", "--purge")[0] == 0
    assert not (root / "etc/fabricd").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_who_is_not_root_is_told_so(tmp_path):
    done = subprocess.run(["setpriv", "--reuid", "65534", str(SCRIPT)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "must run as root" in done.stderr
