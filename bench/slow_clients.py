"""What thousands of slow clients and long polls cost a daemon, and how soon it answers others meanwhile.

    python -m bench.slow_clients [--slow 1000] [--polls 5000]

Starts a daemon of its own. A third of the slow clients send half a request line, a third half a body, a third nothing;
the long polls are streams of events. Prints the daemon's memory, and the time until ``/livez`` and ``/v1/node`` are
answered on a new connection each; as a ratio to the daemon without the crowd.
"""

import argparse
import resource
import socket
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil

from demo.daemons import Daemon

HEAD = b"GET /livez HT"
BODY = b"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
POLL = b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
QUESTIONS = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow", type=int, default=1000)
    parser.add_argument("--polls", type=int, default=5000)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        daemon = stack.enter_context(Daemon("d", Path(name), ["--port", "0", "--socket", "", "--node-id", "d"]))
        daemon.wait_ready()
        address = ("127.0.0.1", int(daemon.url.rpartition(":")[2]))
        process = psutil.Process(daemon.process.pid)
        alone = figures(address, process, "alone")
        crowd(stack, address, options.polls, POLL)
        figures(address, process, f"{options.polls} long polls", alone)
        for said in (HEAD, BODY, b""):
            crowd(stack, address, options.slow // 3, said)
        figures(address, process, f"and {options.slow} slow", alone)


def crowd(stack: ExitStack, address: tuple[str, int], count: int, said: bytes) -> None:
    for _ in range(count):
        one = stack.enter_context(socket.create_connection(address, timeout=60))
        one.sendall(said)


def figures(address: tuple[str, int], process: psutil.Process, what: str, alone: float = 0.0) -> float:
    """Print a line; return the median time of ``/livez``, seconds."""
    told = []
    for path in ("/livez", "/v1/node"):
        times = sorted(ask(address, path) for _ in range(QUESTIONS))
        median, late = statistics.median(times), times[int(len(times) * 0.99)]
        told.append(f"{path} p50 {median * 1e3:5.1f} ms, p99 {late * 1e3:6.1f} ms")
        if path == "/livez":
            first = median
    ratio = f", {first / alone:.2f} x" if alone else ""
    print(f"{what:>20}: {process.memory_info().rss / 1e6:4.0f} MB; {'; '.join(told)}{ratio}", flush=True)
    return first


def ask(address: tuple[str, int], path: str) -> float:
    """Return how long an answer took, seconds."""
    begun = time.perf_counter()
    with socket.create_connection(address, timeout=60) as one:
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while part := one.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 200"), answer[:200]
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
