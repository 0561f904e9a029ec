"""The tests' own session: what it has started ends with it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

_TEST = """
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def started():
    yield
    (HERE / "ended").touch()


def test_takes_long(started):
    (HERE / "started").touch()
    time.sleep(60)
"""


def test_a_session_that_is_ended_ends_what_it_has_started(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(_TEST)
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", str(tmp_path / "temp")]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), str(tmp_path / "test_long.py")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + 30
        while not (tmp_path / "started").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[0]
    assert (tmp_path / "ended").exists(), said
    assert process.returncode == 2, said
