"""What is done to the cluster: each fault begins, lasts, and ends; whether the cluster recovers is seen afterwards."""

import asyncio
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx

from tests.soak.cluster import Cluster, Node
from tests.support.group_client import SECRET, Target, members


@dataclass
class Patience:
    """How much longer everything may take, on a machine that has other things to do."""

    times: float = 1.0

    @property
    def alive_seconds(self) -> float:
        """What a daemon that lives answers within this time, whatever is done to it."""
        return 10.0 * self.times


patience = Patience()


class FaultError(Exception):
    """The cluster did what it must not while a fault lasted."""


@dataclass(frozen=True)
class Fault:
    """One way to break things.

    Attributes:
        name: of it.
        run: does it, and undoes it; raises FaultError when the cluster did what it must not meanwhile.
    """

    name: str
    run: Callable[[Cluster, random.Random], None]


def alive(node: Node, *, tries: int = 3) -> None:
    """Check that a daemon says that it lives.

    Raises:
        FaultError: it does not, or takes too long.
    """
    with node.client(patience.alive_seconds) as client:
        for _ in range(tries):
            begun = time.monotonic()
            try:
                answer = client.get("/livez")
            except httpx.TransportError as error:
                took = time.monotonic() - begun
                raise FaultError(f"{node.name} /livez: {error!r} after {took:.1f} s") from error
            if answer.status_code != 200:
                raise FaultError(f"{node.name} /livez: {answer.status_code} {answer.text.strip()}")
            time.sleep(0.3)


def says(node: Node, word: str) -> None:
    """Wait until ``/readyz`` and the metrics name a shortage.

    Raises:
        FaultError: they do not.
    """
    deadline = time.monotonic() + patience.alive_seconds
    seen = ""
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError), node.client() as client:
            seen = client.get("/readyz").text
            if word in seen and f'fabricd_short{{resource="{word}"}} 1.0' in client.get("/metrics").text:
                return
        time.sleep(0.1)
    raise FaultError(f"{node.name} does not say that it is short of {word}: {seen.strip()!r}")


def _head(cluster: Cluster) -> str:
    return f"Host: {cluster.steady.address[0]}\r\nAuthorization: Bearer {cluster.token}\r\n"


@contextmanager
def crowd(node: Node) -> Iterator[None]:
    """Let a crowd from a host go at the end."""
    try:
        yield
    finally:
        node.hang_up()


def press(cluster: Cluster, said: bytes, word: str, *, at_once: int) -> None:
    """Open connections, each with a beginning, until the steady daemon says that there are too many.

    They may be more than that needs: on a machine that is busy some are refused because they come too fast, and
    others end because it took too long.

    Raises:
        FaultError: it does not come to that, or the daemon does not live meanwhile.
    """
    for _ in range(60):
        cluster.other.connect(cluster.steady, at_once, said)
        alive(cluster.steady, tries=1)
        with cluster.steady.client() as client:
            if word in client.get("/readyz").text:
                break
    says(cluster.steady, word)
    alive(cluster.steady)


def slow_clients(cluster: Cluster, draw: random.Random) -> None:
    body = f"POST /v1/plans HTTP/1.1\r\n{_head(cluster)}Content-Length: 100000\r\n\r\n{{"
    with crowd(cluster.other):
        for said in (b"GET /livez HT", body.encode(), b""):
            cluster.other.connect(cluster.steady, 334, said)
            alive(cluster.steady, tries=1)
        time.sleep(draw.uniform(2, 12))
        alive(cluster.steady)


def long_polls(cluster: Cluster, _draw: random.Random) -> None:
    asks = f"GET /v1/events HTTP/1.1\r\n{_head(cluster)}Accept: text/event-stream\r\n\r\n".encode()
    with crowd(cluster.other):
        press(cluster, asks, "long_polls", at_once=250)


def connections(cluster: Cluster, _draw: random.Random) -> None:
    with crowd(cluster.other):
        press(cluster, b"GET /livez HT", "connections", at_once=1000)


def descriptors(cluster: Cluster, _draw: random.Random) -> None:
    node = cluster.steady
    node.limit(resource.RLIMIT_NOFILE, node.process.num_fds())
    try:
        with crowd(cluster.other):
            cluster.other.connect(node, 60, b"GET /livez HT")
            for _ in range(5):
                alive(node, tries=1)
                time.sleep(1)
            says(node, "descriptors")
    finally:
        node.limit(resource.RLIMIT_NOFILE, None)


def memory(cluster: Cluster, draw: random.Random) -> None:
    node = cluster.replay
    node.limit(resource.RLIMIT_AS, node.process.memory_info().vms + draw.randrange(1 << 20, 8 << 20))
    try:
        for _ in range(8):
            alive(node, tries=1)
            time.sleep(1)
    finally:
        node.limit(resource.RLIMIT_AS, None)


def disk_full(cluster: Cluster, _draw: random.Random) -> None:
    node = cluster.steady
    filler = node.state / "filler"

    def fill() -> None:
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    node.host.namespaces.inside(fill)
    try:
        _keep_a_job(node)
    finally:
        node.host.namespaces.inside(filler.unlink)


def read_only(cluster: Cluster, _draw: random.Random) -> None:
    node = cluster.steady
    node.host.run(["mount", "-o", "remount,ro", str(node.state)])
    try:
        _keep_a_job(node)
    finally:
        node.host.run(["mount", "-o", "remount,rw", str(node.state)])


def _keep_a_job(node: Node) -> None:
    """Begin a job whose record cannot be written, check that it runs and that the daemon says so."""

    async def job() -> None:
        async with Target(socket=node.unix).client() as client:
            ranks = members(client, 2, group="kept", secret=SECRET)
            await asyncio.gather(*(one.join() for one in ranks))
            async with ranks[0].watch(), ranks[1].watch():
                await asyncio.to_thread(says, node, "storage")
                await asyncio.gather(*(one.fence(0, {}) for one in ranks))
                await asyncio.gather(*(one.leave() for one in ranks))

    asyncio.run(asyncio.wait_for(job(), 60))
    alive(node)


def clock_jumps(cluster: Cluster, draw: random.Random) -> None:
    before = cluster.steady.log.count(" stale")
    for seconds in (86400.0 * 400, -86400.0 * 400, draw.uniform(-1e6, 1e6)):
        for node in cluster.nodes:
            node.clock.set(seconds)
        time.sleep(1.5)
        for node in cluster.nodes:
            alive(node, tries=1)
        why = cluster.why_not_well()
        if why:
            raise FaultError(f"a clock that jumps by {seconds:.0f} s: {why}")
    for node in cluster.nodes:
        node.clock.set(0.0)
    if cluster.steady.log.count(" stale") != before:
        raise FaultError("a clock that jumps makes nodes stale")


def cable_pulled(cluster: Cluster, _draw: random.Random) -> None:
    asks = f"GET /v1/events HTTP/1.1\r\n{_head(cluster)}Accept: text/event-stream\r\n\r\n".encode()
    node, link = cluster.steady, cluster.other.host.link("net")
    before = node.process.num_fds()
    with crowd(cluster.other):
        cluster.other.connect(node, 200, asks)
        link.pull()
        try:
            deadline = time.monotonic() + 30 * patience.times
            while node.process.num_fds() > before + 20:  # connections whose other end is gone
                if time.monotonic() > deadline:
                    raise FaultError(f"{node.process.num_fds() - before} half-open connections after 30 s")
                time.sleep(0.5)
            alive(node)
        finally:
            link.plug()


def stopped(cluster: Cluster, draw: random.Random) -> None:
    cluster.other.signal(signal.SIGSTOP)
    try:
        time.sleep(draw.uniform(3, 15))
        alive(cluster.steady)
    finally:
        cluster.other.signal(signal.SIGCONT)


def killed(cluster: Cluster, draw: random.Random) -> None:
    daemon = cluster.other.daemon
    assert daemon is not None
    daemon.process.kill()
    daemon.process.wait()
    time.sleep(draw.uniform(0, 5))
    alive(cluster.steady)
    cluster.other.start()


def large_bodies(cluster: Cluster, _draw: random.Random) -> None:
    head = f"POST /v1/plans HTTP/1.1\r\n{_head(cluster)}Content-Length: "
    with crowd(cluster.other):
        for length, said in ((10**9, 0), (1 << 20, 1 << 19), (1 << 20, 1 << 20)):
            cluster.other.connect(cluster.steady, 60, f"{head}{length}\r\n\r\n".encode() + b"[" * said)
        alive(cluster.steady)
        time.sleep(2)
        alive(cluster.steady)


def many_groups(cluster: Cluster, _draw: random.Random) -> None:
    async def jobs() -> set[int]:
        async with Target(socket=cluster.steady.unix, connections=300).client() as client:
            ranks = [members(client, 2, group=f"many-{number}", secret=SECRET)[0] for number in range(300)]
            answers = await asyncio.gather(*(one.put(wait=0.0, seconds=60.0) for one in ranks))
            await asyncio.gather(*(one.abort() for one in ranks))
            return {answer.status_code for answer in answers}

    statuses = asyncio.run(asyncio.wait_for(jobs(), 60))
    if statuses != {202, 503}:
        raise FaultError(f"300 groups of one caller: {sorted(statuses)}, expected 202 and, beyond 256, 503")
    alive(cluster.steady)


def bad_configuration(cluster: Cluster, _draw: random.Random) -> None:
    node = cluster.steady
    good, before = node.config.read_text(), node.log.count("stays as it is")
    node.config.write_text(good + 'max_connections = 1\nprot = 7\nlog_level = "loud"\n')
    try:
        node.signal(signal.SIGHUP)
        deadline = time.monotonic() + patience.alive_seconds
        while node.log.count("stays as it is") == before:
            if time.monotonic() > deadline:
                raise FaultError("a configuration with faults was not told of")
            time.sleep(0.1)
        alive(node)
    finally:
        node.config.write_text(good)
        node.signal(signal.SIGHUP)


def garbage(cluster: Cluster, draw: random.Random) -> None:
    with crowd(cluster.other):
        for _ in range(100):
            cluster.other.connect(cluster.steady, 2, draw.randbytes(draw.randrange(1, 20000)))
        alive(cluster.steady)


FAULTS: tuple[Fault, ...] = (
    Fault("1,000 slow clients", slow_clients),
    Fault("5,000 long polls", long_polls),
    Fault("6,000 connections", connections),
    Fault("no file descriptors", descriptors),
    Fault("no memory", memory),
    Fault("disk full", disk_full),
    Fault("disk read-only", read_only),
    Fault("clocks jump", clock_jumps),
    Fault("cable pulled", cable_pulled),
    Fault("peer stopped", stopped),
    Fault("peer killed", killed),
    Fault("large bodies", large_bodies),
    Fault("300 groups", many_groups),
    Fault("bad configuration", bad_configuration),
    Fault("garbage", garbage),
)
