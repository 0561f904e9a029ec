"""How much a daemon answers, how soon, and what it does when more is asked than it takes; by wrk.

    python -m bench.load [--seconds 2] [--rounds 3]

One daemon that is a cluster of 16 H100 machines from a file. Beside it, in turns with it, what a user could have
instead: nginx with the node's map as a file (package nginx-light; left out where it is not installed), and a server of
the same kind as the daemon's that says hello and nothing else, which is the floor of what Python's HTTP costs. Figures
are medians of the rounds. Then more clients than ``max_requests`` ask for paths at once.
"""

import argparse
import contextlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from starlette.types import Receive, Scope, Send

from demo.daemons import Daemon, end, program
from fabric_client.cli.launcher import free_port

CONNECTIONS = 32
CROWD = 400
MAX_REQUESTS = 256
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


@dataclass(frozen=True)
class Target:
    """What is asked."""

    name: str
    url: str
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figures:
    """What wrk told of one run."""

    rate: float  #: answers per second
    median: float  #: seconds
    late: float  #: of the slowest hundredth, seconds
    refused: int  #: answers that were neither 2xx nor 3xx
    total: int


def main() -> int:
    """Return 0; 3 when wrk is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("load: needs wrk (Debian package wrk)", file=sys.stderr)
        return 3
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        daemon = start_daemon(stack, folder)
        process = psutil.Process(daemon.process.pid)
        targets = [*questions(daemon.url), stack.enter_context(hello()), *stack.enter_context(nginx(folder, daemon))]
        for target in targets:
            wrk(target, 0.5)  # what the first questions cost is none of the question here
        before = process.memory_info().rss
        runs: dict[str, list[Figures]] = {target.name: [] for target in targets}
        for _ in range(options.rounds):
            for target in targets:
                runs[target.name].append(wrk(target, options.seconds))
        table(runs)
        print(f"\nmemory of the daemon: {before / 1e6:.0f} MB before, {process.memory_info().rss / 1e6:.0f} MB after")
        overload(targets[3], daemon.url, process, options.seconds)
    return 0


def start_daemon(stack: ExitStack, folder: Path) -> Daemon:
    cluster, config = folder / "cluster.jsonl", folder / "c.toml"
    config.write_text(f"max_requests = {MAX_REQUESTS}\n")
    simulate = [program("fabricctl"), "simulate", "--template", "h100", "--nodes", "16", "--out", str(cluster)]
    subprocess.run(simulate, check=True, capture_output=True)
    options = ["--port", "0", "--socket", "", "--config", str(config), "--replay", str(cluster)]
    daemon = stack.enter_context(Daemon("d", folder, options))
    daemon.wait_ready()
    return daemon


def questions(url: str) -> list[Target]:
    """Return what a supervisor, a monitor, a peer and a scheduler ask."""
    etag = httpx.get(f"{url}/v1/cluster", trust_env=False).headers["etag"]
    paths = f"{url}/v1/paths?src=h100-0000/gpu0&dst=h100-0009/gpu3"
    return [
        Target("/livez", f"{url}/livez"),
        Target("/v1/node", f"{url}/v1/node"),
        Target("/v1/cluster, known (304)", f"{url}/v1/cluster", (f"If-None-Match: {etag}",)),
        Target("/v1/paths between nodes", paths),
        Target("/metrics", f"{url}/metrics"),
    ]


async def say_hello(scope: Scope, _receive: Receive, send: Send) -> None:
    """Be the least that an ASGI application can be."""
    if scope["type"] != "http":
        return
    head = [(b"content-type", b"text/plain"), (b"content-length", b"6")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": b"alive\n"})


@contextmanager
def hello() -> Iterator[Target]:
    """Serve hello by uvicorn, as the daemon's server is one: asyncio and h11."""
    port = free_port()
    options = ["--loop", "asyncio", "--http", "h11", "--no-access-log", "--log-level", "error", "--lifespan", "off"]
    command = [sys.executable, "-m", "uvicorn", "bench.load:say_hello", "--port", str(port), *options]
    with ended(subprocess.Popen(command)):
        yield Target("hello by uvicorn", awaited(f"http://127.0.0.1:{port}/"))


@contextmanager
def nginx(folder: Path, daemon: Daemon) -> Iterator[list[Target]]:
    """Serve the node's map as a file, by one worker of nginx."""
    found = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if found is None:
        print("nginx is not installed (package nginx-light): left out")
        yield []
        return
    port, root = free_port(), folder / "nginx"
    root.mkdir()
    root.chmod(0o755)
    folder.chmod(0o755)  # its worker is another user
    (root / "node.json").write_bytes(httpx.get(f"{daemon.url}/v1/node", trust_env=False).content)
    (root / "nginx.conf").write_text(
        f"pid {root}/pid; worker_processes 1; error_log stderr error; events {{ worker_connections 1024; }}\n"
        f"http {{ access_log off; keepalive_requests 1000000000; default_type application/json;\n"
        f"  server {{ listen 127.0.0.1:{port}; root {root}; }} }}\n"
    )
    with ended(subprocess.Popen([found, "-p", str(root), "-c", str(root / "nginx.conf"), "-g", "daemon off;"])):
        yield [Target("the node's map by nginx", awaited(f"http://127.0.0.1:{port}/node.json"))]


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a program afterwards."""
    try:
        yield
    finally:
        end(process)


def awaited(url: str) -> str:
    """Return the URL once something answers there."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url, trust_env=False).status_code == 200:
                return url
        time.sleep(0.05)
    raise TimeoutError(f"nothing answers at {url}")


def wrk(target: Target, seconds: float, connections: int = CONNECTIONS) -> Figures:
    """Ask as fast as answers come, over so many connections."""
    headers = [word for header in target.headers for word in ("-H", header)]
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", *headers, target.url]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Figures(
        rate=float(_found(r"Requests/sec:\s+([\d.]+)", told)[0]),
        median=_seconds(_found(r"50%\s+([\d.]+)(us|ms|s)", told)),
        late=_seconds(_found(r"99%\s+([\d.]+)(us|ms|s)", told)),
        refused=int(_found(r"Non-2xx or 3xx responses: (\d+)", told, "0")[0]),
        total=int(_found(r"(\d+) requests in", told)[0]),
    )


def _found(pattern: str, told: str, default: str | None = None) -> Sequence[str]:
    match = re.search(pattern, told)
    if match is not None:
        return match.groups()
    if default is None:
        raise ValueError(f"wrk said something else than {pattern}: {told}")
    return (default,)


def _seconds(found: Sequence[str]) -> float:
    return float(found[0]) * _UNITS[found[1]]


def table(runs: dict[str, list[Figures]]) -> None:
    """Print the medians, and how many answers each gives for one of hello's."""
    floor = statistics.median(one.rate for one in runs["hello by uvicorn"])
    print(f"{CONNECTIONS} connections{'':<14} {'answers/s':>10} {'p50':>10} {'p99':>10} {'of hello':>9}")
    for name, found in runs.items():
        rate = statistics.median(one.rate for one in found)
        median = statistics.median(one.median for one in found)
        late = statistics.median(one.late for one in found)
        wrong = sum(one.refused for one in found)
        told = f"  {wrong} refused" if wrong else ""
        print(f"{name:<29} {rate:>10.0f} {median * 1e3:>7.1f} ms {late * 1e3:>7.1f} ms {rate / floor:>8.2f}x{told}")


def overload(target: Target, url: str, process: psutil.Process, seconds: float) -> None:
    """Ask over more connections than there may be requests; meanwhile ask whether the daemon lives."""
    lives = []
    with ended(subprocess.Popen(["wrk", "-t1", f"-c{CROWD}", f"-d{round(seconds) + 3}s", target.url], stdout=-3)):
        time.sleep(0.5)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            begun = time.monotonic()
            assert httpx.get(f"{url}/livez", trust_env=False, timeout=30).status_code == 200
            lives.append(time.monotonic() - begun)
    found = wrk(target, seconds, CROWD)
    print(
        f"{CROWD} clients, max_requests {MAX_REQUESTS}, {target.name}: {found.rate:.0f} answers/s, of which "
        f"{found.refused / max(1, found.total):.0%} are 503; p99 {found.late * 1e3:.0f} ms; meanwhile /livez in "
        f"{statistics.median(lives) * 1e3:.0f} ms, at most {max(lives) * 1e3:.0f} ms; "
        f"{process.memory_info().rss / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    sys.exit(main())
