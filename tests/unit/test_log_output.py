"""What writes the log: in order, whatever the descriptor does, and never for longer than its sender can wait."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fabricd.log_output import MOST_LINES, Output


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("x", logging.INFO, __file__, 0, text, (), None)


@contextmanager
def output_into_pipe(*, blocking: bool) -> Iterator[tuple[Output, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writing, blocking)
    output = Output(writing)
    try:
        yield output, reading
    finally:
        output.close()
        os.close(reading)
        os.close(writing)


def read_lines(descriptor: int, last: str) -> list[str]:
    found = b""
    while not found.endswith(f"{last}\n".encode()):
        found += os.read(descriptor, 4096)
    return found.decode().splitlines()


@pytest.mark.parametrize("blocking", [True, False])
def test_lines_longer_than_the_pipe_come_whole_and_in_order(blocking):
    with output_into_pipe(blocking=blocking) as (output, reading):
        texts = [f"{number} " + "x" * 9000 for number in range(5)]
        for text in texts:
            output.emit(record(text))
        assert read_lines(reading, texts[-1]) == texts


def test_what_does_not_fit_is_dropped_without_waiting_and_told_of_at_the_next_record():
    with output_into_pipe(blocking=True) as (output, reading):
        text = "x" * 100
        begun = time.monotonic()
        for _ in range(100):
            output.emit(record(text))
        output.flush()  # in vain: the pipe takes less than that
        for _ in range(MOST_LINES):
            output.emit(record(text))
        assert time.monotonic() - begun < 2
        assert output.full
        assert 0 < output.dropped < 100
        while output.full:
            os.read(reading, 4096)
        output.emit(record("last"))
        told = read_lines(reading, "last")
        assert told[-2:] == [f"{output.dropped} records were dropped: nobody read the log", "last"]


def test_a_flush_waits_until_all_is_written():
    with output_into_pipe(blocking=True) as (output, reading):
        output.emit(record("one"))
        output.flush()
        os.set_blocking(reading, False)
        assert os.read(reading, 100) == b"one\n"
