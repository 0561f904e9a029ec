"""Checks of ``install.sh`` and of the Debian package. A check's first line says what it proves."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from guest_tools import CONFIG, STATE, UNIT, answers, install, main_pid, run, running_version, told

PREFIX = Path("/opt/fabricd")
#: With these the timer starts the facts again as soon as they have ended.
_EVER_AGAIN = {
    Path("/run/systemd/system/fabricd-facts.timer.d"): "[Timer]\nOnUnitInactiveSec=1ms\nAccuracySec=1ms\n"
    "RandomizedDelaySec=0\n",
    Path("/run/systemd/system/fabricd-facts.service.d"): "[Unit]\nStartLimitIntervalSec=0\n",
}


def current() -> str:
    """Return the folder of the version that is to run."""
    return (PREFIX / "current").readlink().name


def installs() -> str:
    """install.sh puts all in its place, the daemon starts and says READY; a second time changes nothing."""
    dry = install("v1", "--dry-run")
    assert "would: systemctl start fabricd.service" in dry, dry
    assert not Path("/usr/local/bin/fabricd").exists()
    install("v1")
    assert (told("ActiveState"), told("SubState"), told("Type")) == ("active", "running", "notify")
    assert run("systemctl", "is-enabled", UNIT, "fabricd-facts.timer").split() == ["enabled", "enabled"]
    assert run("fabricctl", "--version").startswith("fabricctl ")
    assert answers()
    before, files = main_pid(), {path: path.stat().st_mtime_ns for path in (CONFIG, PREFIX / "current")}
    install("v1")
    assert main_pid() == before, "the same version again restarted the daemon"
    assert files == {path: path.stat().st_mtime_ns for path in files}
    ready = (int(told("ActiveEnterTimestampMonotonic")) - int(told("InactiveExitTimestampMonotonic"))) / 1e6
    return f"READY {ready:.1f} s after systemd began to start it"


def upgrades() -> str:
    """An upgrade runs the new version, keeps configuration and state, and the version before."""
    CONFIG.write_text(CONFIG.read_text().replace('log_level = "info"', 'log_level = "warning"'))
    STATE.touch()
    before, old, version = CONFIG.read_bytes(), current(), running_version()
    begun = time.monotonic()
    install("v2")
    took = time.monotonic() - begun
    assert current().startswith("9.0.0-")
    assert running_version() == "9.0.0"
    assert (PREFIX / "previous").readlink().name == old
    assert CONFIG.read_bytes() == before
    assert STATE.exists()
    away = (int(told("ActiveEnterTimestampMonotonic")) - int(told("ActiveExitTimestampMonotonic"))) / 1e6
    return f"from {version} to 9.0.0 in {took:.1f} s, of which the daemon was away {away:.1f} s"


def failed_upgrade() -> str:
    """A version whose daemon does not get ready is taken back, and the one before runs again."""
    old = current()
    previous = (PREFIX / "previous").readlink()
    said = install("v3", status=1)
    assert "did not get ready" in said, said
    assert (current(), (PREFIX / "previous").readlink()) == (old, previous), said
    assert (told("ActiveState"), running_version()) == ("active", "9.0.0")
    return said.strip().splitlines()[-1]


def refused_upgrade() -> str:
    """A version that does not take the configuration is not begun; the daemon that runs hears nothing of it."""
    before, pid = CONFIG.read_text(), main_pid()
    CONFIG.write_text("unheard_of = 1\n" + before)
    said = install("v1", status=1)
    assert "nothing has changed" in said, said
    assert (main_pid(), running_version()) == (pid, "9.0.0")
    CONFIG.write_text(before)
    return said.strip().splitlines()[-1]


def rolls_back() -> None:
    """install.sh --rollback runs the version before."""
    install("v2", "--rollback")
    assert not current().startswith("9.")
    assert running_version() != "9.0.0"


def uninstalls() -> None:
    """install.sh --uninstall leaves the configuration and nothing else, whatever the timer starts; --purge nothing."""
    run("systemctl", "start", UNIT)
    with _facts_ever_again():
        install("v1", "--uninstall")
    assert told("LoadState") == "not-found"
    assert not answers()
    left = run("find", "/usr/local", "/opt", "/run", "-name", "*fabric*").split()
    assert left == [], left
    assert CONFIG.exists()
    install("v1", "--uninstall", "--purge")
    assert not CONFIG.parent.exists()
    assert "fabricd" not in Path("/etc/passwd").read_text()
    links = run("find", "/etc/systemd", "-name", "*fabricd*").split()
    assert links == [], links


def package() -> str:
    """The Debian package installs and runs, with its manual pages, and install.sh keeps its hands off it."""
    deb = _package("0.")
    run("dpkg", "--install", str(deb))
    assert told("ActiveState") == "active"
    assert Path(told("FragmentPath")).resolve() == Path("/usr/lib/systemd/system", UNIT)
    assert run("fabricctl", "--version").startswith("fabricctl ")
    for page in ("man1/fabricctl.1", "man8/fabricd.8"):
        assert Path("/usr/share/man", page).read_text().startswith(".TH FABRIC")
    assert answers()
    assert "upgrade or remove that one" in install("v2", status=1)
    return f"{deb.name}, {deb.stat().st_size / 1e6:.0f} MB"


def package_upgrade() -> str:
    """An upgrade of the package runs the new version, keeps the configuration that was edited, and the state."""
    CONFIG.write_text(CONFIG.read_text().replace('log_level = "info"', 'log_level = "warning"'))
    STATE.touch()
    before, pid, old = CONFIG.read_bytes(), main_pid(), current()
    begun = time.monotonic()
    # Both versions have changed the file, ours and the packager's: what unattended upgrades say to that.
    run("dpkg", "--force-confdef", "--force-confold", "--install", str(_package("9.")))
    took = time.monotonic() - begun
    assert told("ActiveState") == "active"
    assert (running_version(), run("fabricctl", "--version").split()[-1]) == ("9.0.0", "9.0.0")
    assert main_pid() != pid
    assert CONFIG.read_bytes() == before
    assert "New in this version" in CONFIG.with_name("fabricd.toml.dpkg-dist").read_text()
    assert STATE.exists()
    assert run("systemctl", "is-enabled", UNIT, "fabricd-facts.timer").split() == ["enabled", "enabled"]
    assert [one.name for one in (PREFIX / "versions").iterdir()] == [current()] != [old]
    return f"in {took:.1f} s; NRestarts {told('NRestarts')}"


def package_removal() -> None:
    """Removed, the package leaves the configuration, also for the one that is installed next; purged, nothing."""
    run("dpkg", "--remove", "fabricd")
    assert told("LoadState") == "not-found"
    assert not answers()
    assert 'log_level = "warning"' in CONFIG.read_text()
    run("dpkg", "--force-confold", "--install", str(_package("0.")))
    assert 'log_level = "warning"' in CONFIG.read_text()
    assert not running_version().startswith("9.")
    with _facts_ever_again():
        run("dpkg", "--purge", "fabricd")
    assert not PREFIX.exists()
    left = run("find", "/usr", "/etc", "/run", "-name", "*fabric*").split()
    assert left == [], left
    assert "fabricd" not in Path("/etc/passwd").read_text()


@contextmanager
def _facts_ever_again() -> Iterator[None]:
    """Let the timer start the facts without a pause, so that they begin in any moment of a removal."""
    for folder, text in _EVER_AGAIN.items():
        folder.mkdir()
        (folder / "checks.conf").write_text(text)
    run("systemctl", "daemon-reload")
    run("systemctl", "restart", "fabricd-facts.timer")
    yield
    for folder in _EVER_AGAIN:
        shutil.rmtree(folder)


def _package(version: str) -> Path:
    """Return the Debian package whose version begins so."""
    (found,) = Path("/srv").glob(f"fabricd_{version}*.deb")
    return found
