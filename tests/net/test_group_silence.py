"""Ranks that say nothing: on a host that is cut off, and stopped by a signal."""

import asyncio
import json
import secrets
import signal
import subprocess
import sys
import time

import pytest

from demo.daemons import Daemon
from demo.hosts import NetworkSpec, make_hosts
from tests.support.daemon import daemon
from tests.support.group_client import SECRET, Member, Target

PORT = 7470
#: A rank as a program of its own: joins, says so, and holds its watch open for ever.
RANK = """
import asyncio, json, sys
from tests.support.group_client import Member, Target
target, rank, size, secret = json.loads(sys.argv[1])

async def main():
    async with Target(**target).client() as client:
        member = Member(client, rank, size, secret=secret)
        await member.join(wait=30, seconds=30)
        async with member.watch() as watch:
            print("watching", flush=True)
            await watch.rest(seconds=600)

asyncio.run(main())
"""


def argument(target, rank, size):

    return json.dumps([{"url": target.url, "socket": target.socket, "headers": target.headers}, rank, size, SECRET])


async def survivor(target, size, ready, then, seconds):
    """Be rank 0: join, watch, let things happen, return the next event and how long it took; None when none came."""
    async with target.client() as client:
        first = Member(client, 0, size, secret=SECRET)
        await first.join(wait=30, seconds=30)
        async with first.watch() as watch:
            await asyncio.to_thread(ready)
            begun = time.monotonic()
            await asyncio.to_thread(then)
            try:
                event = await watch.next(seconds=seconds)
            except TimeoutError:
                return None, time.monotonic() - begun
            return event, time.monotonic() - begun


@pytest.mark.root
def test_a_host_that_is_cut_off_is_a_loss_within_seconds(tmp_path):
    token = secrets.token_hex(32)
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text(token)
    with make_hosts(2, [NetworkSpec("net", "10.68.0.0/24")]) as hosts:
        options = ["--host", "0.0.0.0", "--port", str(PORT), "--socket", str(tmp_path / "h0.sock"), "--node-id", "h0"]
        options += ["--token-file", str(tmp_path / "token")]

        def start(command, output):
            return hosts[0].popen(command, stdout=output, stderr=output)

        with Daemon("h0", tmp_path, options, start=start) as running:
            running.wait_ready()
            headers = {"Authorization": f"Bearer {token}"}
            far = Target(url=f"http://10.68.0.1:{PORT}", headers=headers)
            rank = hosts[1].popen([sys.executable, "-c", RANK, argument(far, 1, 2)], stdout=subprocess.PIPE)

            def ready():
                assert rank.stdout.readline() == "watching\n"

            near = Target(socket=running.socket)  # a path, which leads into the host from outside
            event, took = asyncio.run(survivor(near, 2, ready, hosts[1].link("net").pull, 20.0))
            rank.kill()
            rank.communicate()
            assert (event.kind, event.ranks) == ("lost", (1,))
            assert took < 12.0, took


def test_a_stopped_process_is_not_lost(tmp_path):
    with daemon(tmp_path) as running:
        target = Target(url=running.url)
        rank = subprocess.Popen([sys.executable, "-c", RANK, argument(target, 1, 2)], stdout=subprocess.PIPE, text=True)

        def ready():
            assert rank.stdout.readline() == "watching\n"

        def stop():
            rank.send_signal(signal.SIGSTOP)

        try:
            event, _ = asyncio.run(survivor(target, 2, ready, stop, 6.0))
            assert event is None
        finally:
            rank.kill()
            rank.communicate()


def test_a_killed_process_is_lost_soon(tmp_path):
    with daemon(tmp_path) as running:
        target = Target(url=running.url)
        rank = subprocess.Popen([sys.executable, "-c", RANK, argument(target, 1, 2)], stdout=subprocess.PIPE, text=True)

        def ready():
            assert rank.stdout.readline() == "watching\n"

        event, took = asyncio.run(survivor(target, 2, ready, rank.kill, 10.0))
        rank.communicate()
        assert (event.kind, event.ranks) == ("lost", (1,))
        assert took < 3.0, took
