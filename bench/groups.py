"""How long it takes a daemon to bring many ranks together, and what memory that takes.

    python -m bench.groups [--ranks 8 100 1000]

Starts a daemon of its own, lets simulated ranks join over its Unix socket, each watching from then on, meet at two
fences and leave, and prints seconds and the daemon's memory. The ranks' own work, in one process, is part of the time.
"""

import argparse
import asyncio
import json
import random
import resource
import secrets
import tempfile
import time
from pathlib import Path

import psutil

from demo.daemons import Daemon
from fabricd.model.codec import to_json
from fabricd.model.wire import CLAIM_HEADER, EVENT_LINES, SECRET_HEADER, FenceRequest, JoinRequest
from tests.support.group_client import one_host

#: What MPICH puts into its first fence: one address a rank.
KEY_BYTES = 300
#: Between tries while the daemon is busy: as the client does it.
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 0.05, 1.0


class Rank:
    """One simulated rank: two connections, no more of HTTP than it needs."""

    def __init__(self, socket: str, rank: int, size: int, secret: str) -> None:
        self.rank = rank
        self.size = size
        self._socket = socket
        self._claim = secrets.token_hex(16)
        self._headers = f"Host: localhost\r\n{SECRET_HEADER}: {secret}\r\n{CLAIM_HEADER}: {self._claim}\r\n"
        self._streams: list[asyncio.StreamWriter] = []
        self._asking: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def join(self) -> None:
        """Join, wait for the plan, and keep the event stream that it opens."""
        stream, writer = await asyncio.open_unix_connection(self._socket, limit=1 << 26)
        self._streams.append(writer)
        body = to_json(
            JoinRequest(world_size=self.size, claim=self._claim, view=one_host(self.rank), timeout_seconds=600.0)
        )
        head = f"PUT /v1/groups/bench/members/{self.rank}?wait=60 HTTP/1.1\r\nAccept: {EVENT_LINES}\r\n{self._headers}"
        pause = FIRST_PAUSE_SECONDS
        while True:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            told = (await stream.readuntil(b"\r\n\r\n")).decode().lower()
            if " 200 " in told:
                break
            await stream.readexactly(int(told.partition("content-length: ")[2].partition("\r\n")[0]))
            pause = await rest(pause)
        size = int(await stream.readuntil(b"\r\n"), 16)  # of the first chunk, which is the plan
        answer = json.loads(await stream.readexactly(size))
        assert answer["rank"] == self.rank

    async def fence(self, number: int) -> None:
        """Bring a key, and wait for all."""
        body = FenceRequest(rank=self.rank, keys={f"P{self.rank}": "x" * KEY_BYTES})
        answer = json.loads(await self.ask("POST", f"fence/{number}?wait=60", to_json(body)))
        assert len(answer["keys"]) == self.size

    async def leave(self) -> None:
        """Leave, and close everything."""
        await self.ask("DELETE", f"members/{self.rank}", b"")
        for stream in self._streams:
            stream.close()

    async def ask(self, method: str, path: str, body: bytes) -> bytes:
        """Return the answer's body; ask again while the daemon is busy."""
        head = f"{method} /v1/groups/bench/{path} HTTP/1.1\r\n{self._headers}Content-Length: {len(body)}\r\n\r\n"
        pause = FIRST_PAUSE_SECONDS
        if self._asking is None:
            self._asking = await asyncio.open_unix_connection(self._socket, limit=1 << 26)
            self._streams.append(self._asking[1])
        reader, writer = self._asking
        while True:
            writer.write(head.encode() + body)
            told = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = told.partition("content-length: ")[2].partition("\r\n")[0] or "0"
            found = await reader.readexactly(int(length))
            status = int(told.split()[1])
            if status < 300:
                return found
            assert status == 503, found
            pause = await rest(pause)


async def rest(pause: float) -> float:
    """Wait before the next try; return how long to wait before the one after it."""
    await asyncio.sleep(pause * random.uniform(0.5, 1.0))
    return min(LAST_PAUSE_SECONDS, 2 * pause)


async def one_group(socket: str, size: int, process: psutil.Process) -> None:
    """Take a group through its life; print what each step took."""
    secret = secrets.token_hex(16)
    ranks = [Rank(socket, rank, size, secret) for rank in range(size)]
    steps = {
        "join": lambda rank: rank.join(),
        "fence 0": lambda rank: rank.fence(0),
        "fence 1": lambda rank: rank.fence(1),
        "leave": lambda rank: rank.leave(),
    }
    for what, step in steps.items():
        begun, used = time.perf_counter(), sum(process.cpu_times()[:2])
        await asyncio.gather(*(step(rank) for rank in ranks))
        took, used = time.perf_counter() - begun, sum(process.cpu_times()[:2]) - used
        memory = process.memory_info().rss / 1e6
        print(f"{size:6d} ranks  {what:8s} {took:8.3f} s, daemon busy {used:7.3f} s, {memory:7.1f} MB", flush=True)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 100, 1000])
    arguments = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 16384)), hard))
    with tempfile.TemporaryDirectory(prefix="fabricd-bench-") as folder:
        socket = str(Path(folder) / "d.sock")
        options = ["--port", "0", "--socket", socket, "--node-id", "bench"]
        with Daemon("bench", Path(folder), options) as daemon:
            daemon.wait_ready()
            process = psutil.Process(daemon.process.pid)
            print(f"daemon at rest: {process.memory_info().rss / 1e6:.1f} MB")
            for size in arguments.ranks:
                asyncio.run(one_group(socket, size, process))


if __name__ == "__main__":
    main()
