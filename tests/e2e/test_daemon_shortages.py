"""A real daemon without descriptors, memory, disk or a steady clock: it lives, says what it lacks, and recovers."""

import asyncio
import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from demo.namespaces import Kind, Namespaces
from tests.support.daemon import RunningDaemon, daemon, eventually
from tests.support.group_client import SECRET, Target, join_all, members, records
from tests.support.wall_clock import WallClock

YEAR = 365 * 86400.0


@contextmanager
def limited(running: RunningDaemon, which: int, soft: int) -> Iterator[None]:
    """Set a limit of a daemon that runs; afterwards it is as it was."""
    before = resource.prlimit(running.process.pid, which)
    resource.prlimit(running.process.pid, which, (soft, before[1]))
    try:
        yield
    finally:
        resource.prlimit(running.process.pid, which, before)


def says(running: RunningDaemon, word: str) -> bool:
    told = running.get("/readyz").text.splitlines()
    return told == ["ready", f"short of {word}"] and f'fabricd_short{{resource="{word}"}} 1.0' in metrics(running)


def metrics(running: RunningDaemon) -> str:
    with running.unix() as client:
        return client.get("/metrics").text


def test_without_descriptors_it_lives_says_so_and_recovers(tmp_path):
    with daemon(tmp_path) as running, ExitStack() as stack:
        process, address = psutil.Process(running.process.pid), ("127.0.0.1", int(running.url.rpartition(":")[2]))
        before = process.num_fds()
        with limited(running, resource.RLIMIT_NOFILE, before):
            used = sum(process.cpu_times()[:2])
            crowd = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(60)]
            for _ in range(10):
                assert running.get("/livez", seconds=3).text == "alive\n"
            told = running.get("/readyz", seconds=3).text
            assert told.startswith("ready\nshort of ")
            assert "descriptors" in told
            assert sum(process.cpu_times()[:2]) - used < 1.0  # nothing is tried without a pause
        for one in crowd:
            one.close()
        eventually(lambda: running.get("/v1/node").status_code == 200, told=[running])
        assert 'fabricd_short{resource="descriptors"} 1.0' in metrics(running)
        assert len(running.log.splitlines()) < 12, running.log


def test_without_memory_for_threads_it_lives_and_recovers(tmp_path):
    (tmp_path / "c.toml").write_text("probe_interval_seconds = 1\n")
    with daemon(tmp_path, "-c", str(tmp_path / "c.toml")) as running:
        size = psutil.Process(running.process.pid).memory_info().vms
        with limited(running, resource.RLIMIT_AS, size + (1 << 20)):  # a thread's stack takes 8 MiB
            eventually(lambda: "can't start new thread" in running.log, told=[running])
            for _ in range(5):
                assert running.get("/livez", seconds=3).text == "alive\n"
                assert running.get("/v1/node", seconds=3).status_code in (200, 503)
        eventually(lambda: running.get("/readyz").text.startswith("ready\n"), told=[running])
        good = {"ok", "absent", "unsupported", "not_run", "denied"}
        eventually(lambda: {one["outcome"] for one in running.get("/v1/node").json()["probes"]} <= good, 10)


@contextmanager
def daemon_with_disk(folder: Path) -> Iterator[tuple[RunningDaemon, Namespaces]]:
    """Run a daemon whose records lie on a file system of 128 KiB that only it sees."""
    (folder / "d.d").mkdir()
    setup = 'mount --make-rprivate /; mount -t tmpfs -o size=128k tmpfs "$1"'
    with closing(Namespaces(Kind.MOUNT, setup, [str(folder / "d.d")])) as space:

        def start(command, output):
            return space.popen(command, stdout=output, stderr=output)

        with daemon(folder, start=start) as running:
            yield running, space


@pytest.mark.root
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_job_runs_without_its_record_which_is_written_as_soon_as_it_can_be(tmp_path, how):
    filler = tmp_path / "d.d/filler"

    def fill() -> None:
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 12))

    async def job(running: RunningDaemon, space: Namespaces) -> None:
        async with Target(socket=running.socket).client() as client:
            ranks = members(client, 2, group="job", secret=SECRET)
            await join_all(ranks)
            await asyncio.gather(*(one.fence(0, {f"k{one.rank}": "v"}) for one in ranks))
            assert space.inside(lambda: records(tmp_path)) == []
            assert await asyncio.to_thread(says, running, "storage")
            eventually(lambda: "group 'job' is not on record" in running.log, 5, told=[running])
            if how == "full":
                space.inside(filler.unlink)
            else:
                space.run(["mount", "-o", "remount,rw", str(tmp_path / "d.d")])
            await asyncio.to_thread(eventually, lambda: len(space.inside(lambda: records(tmp_path))) == 1, 8)
            await asyncio.gather(*(one.leave() for one in ranks))

    with daemon_with_disk(tmp_path) as (running, space):
        if how == "full":
            space.inside(fill)
        else:
            space.run(["mount", "-o", "remount,ro", str(tmp_path / "d.d")])
        asyncio.run(asyncio.wait_for(job(running, space), 30))
        assert space.inside(lambda: records(tmp_path)) == []  # it ended well


def test_clocks_that_jump_end_no_wait_no_job_and_make_nobody_old(tmp_path):
    clock = WallClock(tmp_path / "clock")

    def start(command, output):
        return subprocess.Popen(
            command, stdout=output, stderr=output, text=True, env={**os.environ, **clock.environment}
        )

    async def job(running: RunningDaemon) -> None:
        async with Target(socket=running.socket).client() as client:
            ranks = members(client, 2, group="job", secret=SECRET)
            await join_all(ranks)
            async with ranks[0].watch(), ranks[1].watch():
                begun = time.monotonic()
                poll = asyncio.create_task(client.get("/v1/node?wait=2&generation=1"))
                for seconds in (YEAR, -YEAR, 0.0, -3.0):
                    clock.set(seconds)
                    await asyncio.sleep(0.3)
                    assert (await ranks[0].status()).json()["phase"] == "running"
                await poll
                assert 1.9 < time.monotonic() - begun < 4
                await asyncio.gather(*(one.fence(0, {}) for one in ranks))
                await asyncio.gather(*(one.leave() for one in ranks))

    with ExitStack() as stack:
        first = stack.enter_context(daemon(tmp_path, name="a", socket=False))
        running = stack.enter_context(daemon(tmp_path, "--peer", first.url, start=start))
        eventually(lambda: states(running) == ["ok", "ok"], told=[running])
        asyncio.run(asyncio.wait_for(job(running), 20))
        assert states(running) == ["ok", "ok"]
        assert all(0 <= one["age_seconds"] < 60 for one in running.get("/v1/cluster?summary=1").json()["nodes"])
        assert "stale" not in running.log


def states(running: RunningDaemon) -> list[str]:
    return [one["state"] for one in running.get("/v1/cluster?summary=1").json()["nodes"]]
