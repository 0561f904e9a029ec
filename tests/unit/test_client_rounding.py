"""Averages of sums: whoever Ctrl-C interrupts at whichever step may go on, and finds them divided once."""

import random
import signal

import numpy as np
import pytest

from fabric_client.engine.rounding import divided
from fabric_client.ops import ReduceOp

_TRIES = 1500


class Interrupted(BaseException):
    """What Ctrl-C is."""


@pytest.fixture
def interrupts():
    """Let SIGALRM interrupt; returns how it is asked for, and called off."""
    draw, wanted = random.Random(1), False

    def rings(*_):
        if wanted:  # with threads in the process Python may come to it after it was called off
            raise Interrupted

    def ask(interrupt):
        nonlocal wanted
        wanted = interrupt
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 3e-5) if interrupt else 0)

    before = signal.signal(signal.SIGALRM, rings)
    yield ask
    ask(False)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("dtype", ["f", "d", "g", "F", "D", "G"])
def test_an_average_that_ctrl_c_interrupts_is_divided_once(interrupts, dtype):
    heard = 0
    for _ in range(_TRIES):
        arrays = [np.full(3, 6, dtype) for _ in range(20)]
        calls = [divided(array, ReduceOp.AVERAGE, 3) for array in arrays]
        place = 0
        try:
            interrupts(True)
            for place in range(20):
                calls[place]()
            interrupts(False)
        except Interrupted:
            heard += 1
        for call in calls[place:]:
            call()
        assert [array.tolist() for array in arrays] == [[2, 2, 2]] * 20
    assert heard > _TRIES / 20
