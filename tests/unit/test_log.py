"""Log lines: one record is one line, whatever it holds."""

import json
import logging
import subprocess
import sys
import time
from datetime import UTC, datetime

import pytest

from fabricd import log

HOSTILE = "x\n2026-01-01 error forged: line\x1b[2J\u2028"


@pytest.fixture
def lines(capfd):
    """Return what logging with a form writes."""
    root, ours, theirs = (logging.getLogger(name) for name in ("", "fabricd", "uvicorn.error"))
    before = root.handlers, root.level, ours.level, theirs.disabled

    def write(form: str, environ=None) -> list[str]:
        output = log.configure("info", form, environ=environ or {})
        logger = logging.getLogger("fabricd.part")
        logger.debug("not shown")
        logger.warning("hello %s", HOSTILE, extra={"facts": {"url": HOSTILE, "n": 5}})
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("failed")
        output.flush()
        output.close()
        return capfd.readouterr().err.splitlines()

    yield write
    root.handlers, theirs.disabled = before[0], before[3]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.mark.parametrize(("form", "start"), [("text", "20"), ("journal", "<")])
def test_lines_for_people_are_one_a_record(lines, form, start):
    told = lines(form)
    assert len(told) == 2
    assert all(line.startswith(start) and line.isprintable() for line in told)
    assert "fabricd.part: hello x\\n" in told[0]
    assert told[0].endswith("n=5")
    assert "ValueError: x" in told[1]


def test_a_record_is_written_without_a_free_file_descriptor():
    """Python loads codecs when they are first used; a daemon that has run out of descriptors cannot."""
    script = """
import logging, os, resource
from fabricd import log
log.configure("info", "text")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
logging.getLogger("fabricd.part").warning("hello\\x1b[2J\\nforged")
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert told.stderr.endswith("warning fabricd.part: hello\\x1b[2J\\nforged\n")


def test_times_are_utc_whatever_the_machines_zone(lines, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        told = datetime.fromisoformat(lines("text")[0].split(" ")[0])
    finally:
        monkeypatch.undo()
        time.tzset()
    assert abs((datetime.now(UTC) - told).total_seconds()) < 60


def test_the_journal_gets_priorities(lines):
    warning, error = lines("journal")
    assert (warning[:3], error[:3]) == ("<4>", "<3>")


def test_json_lines_hold_the_facts(lines):
    warning, error = map(json.loads, lines("json"))
    assert warning["facts"] == {"url": HOSTILE, "n": 5}
    assert (warning["level"], warning["logger"]) == ("warning", "fabricd.part")
    assert "ValueError" in error["traceback"]


def test_auto_is_text_without_a_journal_and_with_somebody_elses(lines):
    assert lines("auto")[0].startswith("20")
    assert lines("auto", {"JOURNAL_STREAM": "1:2"})[0].startswith("20")


def test_auto_is_the_journal_where_standard_error_is_it(lines, tmp_path, monkeypatch):
    with (tmp_path / "stream").open("w+") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        status = (tmp_path / "stream").stat()
        lines("auto", {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"})
        stream.seek(0)
        assert stream.read().startswith("<4>")
