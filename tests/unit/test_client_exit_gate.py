"""A thread that ends the process behind Python's back: programs of their own, with the C library's exit."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, ctypes, sys, threading, time
from fabric_client.engine import exit_gate

gate = exit_gate.ExitGate()
assert not gate.is_waited_at()
threading.Thread(target=ctypes.CDLL(None).exit, args=(15,), daemon=True).start()
deadline = time.monotonic() + 10
while not gate.is_waited_at() and time.monotonic() < deadline:
    time.sleep(0.01)
atexit.register(print, "handlers ran")
"""


def run(*lines):
    program = subprocess.run(
        [sys.executable, "-c", "\n".join([PROGRAM, *lines])], capture_output=True, text=True, timeout=30
    )
    return program.returncode, program.stdout, program.stderr


@pytest.mark.parametrize(("one_exit", "status"), [("False", 3), ("True", 15)])
def test_the_program_ends_by_itself_and_has_its_say(one_exit, status):
    """Where the C library lets only the first call of exit through, the status is that call's."""
    lines = [
        f"exit_gate._waits_for_first_exit = lambda: {one_exit}",
        "gate.open_when_program_ends()",
        "print('goes on')",
        "try: raise SystemExit(3)",
        "finally: print('finally')",
    ]
    returncode, out, err = run(*lines)
    assert (returncode, err) == (status, "")
    assert out.splitlines()[:2] == ["goes on", "finally"]
    if one_exit == "False":
        assert out.splitlines()[2:] == ["handlers ran"]


def test_an_uncaught_error_is_told():
    returncode, _, err = run("gate.open_when_program_ends()", "raise ValueError('why')")
    assert returncode in (1, 15)  # by the C library
    assert err.strip().endswith("ValueError: why")


def test_an_open_gate_lets_through_who_waits():
    assert run("gate.open()", "time.sleep(20)")[0] == 15


def test_a_gate_at_which_nobody_came_is_no_hindrance():
    program = "from fabric_client.engine.exit_gate import ExitGate; gate = ExitGate(); gate.open()"
    assert subprocess.run([sys.executable, "-c", program], timeout=20, check=False).returncode == 0


@pytest.mark.parametrize(
    "program",
    [
        "threading.Thread(target=lambda: (ExitGate(), shut.set(), time.sleep(600)), daemon=True).start(); shut.wait()",
        "gate = ExitGate(); pid = os.fork(); status = os.wait()[1] if pid else 0; gate.open(); sys.exit(status)",
    ],
)
def test_a_program_ends_whose_gate_nobody_opens(program):
    lines = ["import os, sys, threading, time", "from fabric_client.engine.exit_gate import ExitGate"]
    lines += ["shut = threading.Event()", program]
    assert subprocess.run([sys.executable, "-c", "\n".join(lines)], timeout=20, check=False).returncode == 0
