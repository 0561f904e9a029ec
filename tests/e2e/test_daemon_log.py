"""A daemon whose log nobody reads: it answers, ends when told to, and tells how much of its log was lost."""

import fcntl
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fabricd.log_output import MOST_LINES
from tests.support.daemon import RunningDaemon, daemon, eventually

#: Leaves a line in the log at level "debug", when its client has gone.
HALF = b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"


@contextmanager
def daemon_into_pipe(folder: Path) -> Iterator[tuple[RunningDaemon, int]]:
    """Run a daemon that logs into a pipe of a page; gives also the end that nobody reads."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)

    def start(command, output):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=writing, stderr=writing, text=True)

    try:
        with daemon(folder, "--log-level", "debug", start=start) as running:
            yield running, reading
    finally:
        os.close(reading)
        os.close(writing)


def make_it_talk(running: RunningDaemon, lines: int) -> None:
    address = ("127.0.0.1", int(running.url.rpartition(":")[2]))
    for _ in range(lines):
        with socket.create_connection(address, timeout=5) as one:
            one.sendall(HALF)
            one.shutdown(socket.SHUT_WR)
            one.recv(1)  # it has noticed


def test_a_log_that_nobody_reads_stops_nothing_and_what_was_lost_is_told(tmp_path):
    with daemon_into_pipe(tmp_path) as (running, reading):
        make_it_talk(running, MOST_LINES + 200)
        eventually(lambda: running.get("/readyz").text == "ready\nshort of log\n", 10)
        assert running.get("/v1/node").status_code == 200
        found = bytearray()

        def read_all() -> None:
            while part := os.read(reading, 1 << 16):
                found.extend(part)

        threading.Thread(target=read_all, daemon=True).start()

        def told() -> bool:
            make_it_talk(running, 1)
            return b"records were dropped" in found

        eventually(told)
        assert b"fabricd starts" in found


def test_a_daemon_whose_log_is_stuck_ends_when_told_to(tmp_path):
    with daemon_into_pipe(tmp_path) as (running, _reading):
        make_it_talk(running, 100)
        assert running.get("/livez", seconds=3).text == "alive\n"
        assert running.stop() < 1.5


def test_a_daemon_whose_log_has_lost_its_reader_lives(tmp_path):
    with daemon_into_pipe(tmp_path) as (running, reading):
        other, writing = os.pipe()
        os.dup2(other, reading)  # closes the pipe's only reading end
        os.close(other)
        os.close(writing)
        make_it_talk(running, 20)
        assert running.get("/readyz", seconds=3).text == "ready\n"
