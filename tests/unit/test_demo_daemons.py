"""Programs that were started come to an end, whatever they think of it."""

import signal
import subprocess
import sys
import time

import pytest

from demo.daemons import end

_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
_GOOD = "import time; print(flush=True); time.sleep(60)"


@pytest.mark.parametrize(("program", "number"), [(_GOOD, signal.SIGTERM), (_STUBBORN, signal.SIGKILL)])
def test_a_program_is_ended_by_term_or_at_last_by_kill(program: str, number: signal.Signals) -> None:
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it has its handler
        end(process, seconds=0.2 if number == signal.SIGKILL else 30.0)
        assert process.returncode == -number
    assert time.monotonic() - begun < 30


def test_one_that_has_ended_stays_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    process.wait()
    end(process)
    assert process.returncode == 3
