"""Groups and the daemon's end: killed, told to stop, started again; and what many groups leave behind."""

import asyncio
import os
import time
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.daemon import STOP_SECONDS, daemon
from tests.support.daemon import eventually as eventually_here
from tests.support.group_client import SECRET, Target, code, eventually, join_all, members, records, run


async def without_answer(request):
    """Wait for a request that a killed daemon does not answer any more."""
    with pytest.raises(httpx.TransportError):
        await request


def test_a_running_job_goes_on_when_the_daemon_is_killed_and_started_again(tmp_path):
    with daemon(tmp_path) as first:
        target = Target(socket=first.socket)

        async def begin():
            async with target.client() as client:
                ranks = members(client, 3, group="job", secret=SECRET)
                answers = await join_all(ranks)
                await asyncio.gather(*(one.fence(0, {f"k{one.rank}": "v"}) for one in ranks))
                async with ranks[0].watch() as watch, ranks[1].watch(), ranks[2].watch():
                    # One rank has come to the next fence, and waits, when the daemon dies.
                    waiting = asyncio.create_task(without_answer(ranks[0].post(1, {"early": "bird"})))
                    await asyncio.sleep(0.2)
                    first.kill()
                    await waiting
                    with pytest.raises(httpx.TransportError):
                        await watch.rest()
                return ranks, answers

        ranks, answers = run(begin())
        assert len(records(tmp_path)) == 1
        with daemon(tmp_path) as second:
            assert second.socket == first.socket

            async def go_on():
                async with target.client() as client, target.client() as doomed:
                    for one in ranks:
                        one.client = doomed if one.rank == 2 else client
                    assert await join_all(ranks) == answers  # the very same group
                    async with ranks[0].watch() as watch, ranks[1].watch():
                        async with ranks[2].watch():
                            assert await ranks[1].fence(0, {"k1": "v"}) == {f"k{rank}": "v" for rank in range(3)}
                            keys = await asyncio.gather(
                                ranks[0].fence(1, {"early": "bird"}), ranks[1].fence(1, {}), ranks[2].fence(1, {})
                            )
                            assert keys == [{"early": "bird"}] * 3
                        # Losses are noticed as before.
                        event = await watch.next()
                        assert (event.kind, event.ranks) == ("lost", (2,))

            run(go_on())
            second.kill()
        with daemon(tmp_path):

            async def remember():
                async with target.client() as client:
                    ranks[0].client = client
                    assert code(await ranks[0].post(2, {})) == "rank-lost"

            run(remember())


def test_a_group_that_forms_is_resumed_by_the_ranks_themselves(tmp_path):
    with daemon(tmp_path) as first:
        target = Target(socket=first.socket)

        async def begin():
            async with target.client() as client:
                ranks = members(client, 2)
                waiting = asyncio.create_task(without_answer(ranks[0].put()))
                await asyncio.sleep(0.2)
                first.kill()
                await waiting
                return ranks

        ranks = run(begin())
        with daemon(tmp_path):

            async def go_on():
                async with target.client() as client:
                    for one in ranks:
                        one.client = client
                    await join_all(ranks)

            run(go_on())


def test_an_end_in_peace_is_told_to_streams_and_polls_and_takes_no_time(tmp_path):
    with daemon(tmp_path) as running:

        async def scenario():
            async with Target(socket=running.socket).client() as client:
                ranks = members(client, 2)
                await join_all(ranks)
                forming = members(client, 2, group="forming")
                async with ranks[0].watch() as first, ranks[1].watch() as second:
                    polls = [asyncio.create_task(ranks[0].post(0, {})), asyncio.create_task(forming[0].put())]
                    await asyncio.sleep(0.3)
                    took = await asyncio.to_thread(running.stop)
                    for watch in (first, second):
                        assert [event.kind for event in await watch.rest()] == ["stopping"]
                    assert [(await poll).status_code for poll in polls] == [503, 503]
                return took

        assert run(scenario()) < STOP_SECONDS
        assert len(records(tmp_path)) == 1  # the running one, for the next daemon


def test_a_record_that_cannot_be_read_does_no_harm(tmp_path):
    folder = tmp_path / "d.d" / "groups"
    folder.mkdir(parents=True)
    (folder / ("0" * 32 + ".group.json")).write_text("{broken")
    (folder / ("1" * 32 + ".group.json")).write_text('{"version": 99}')
    (folder / ("2" * 32 + ".tmp")).write_text("half")
    with daemon(tmp_path) as running:
        assert records(tmp_path) == []
        assert running.log.count("left out") == 2


def test_two_hundred_groups_leave_nothing_behind(tmp_path):
    with daemon(tmp_path) as running:
        process = psutil.Process(running.process.pid)
        target = Target(socket=running.socket)

        async def groups(first, count):
            async with target.client() as client:
                for number in range(first, first + count):
                    ranks = members(client, 2, group=f"seq-{number}")
                    await join_all(ranks)
                    async with ranks[0].watch(), ranks[1].watch():
                        await asyncio.gather(*(one.fence(0, {f"k{one.rank}": "v" * 1000}) for one in ranks))
                        for one in ranks:
                            await one.leave()

        async def forgotten():
            async with target.client() as client:
                text = (await client.get("/metrics")).text
                return 'fabricd_groups{phase="ended"} 0.0' in text

        run(groups(0, 50))  # until the interpreter's heap has its size
        run(eventually(forgotten))
        before = (process.num_fds(), process.num_threads(), process.memory_info().rss)
        run(groups(50, 200))
        run(eventually(forgotten))
        eventually_here(lambda: process.num_fds() <= before[0])
        eventually_here(lambda: process.num_threads() <= before[1])
        assert process.memory_info().rss - before[2] < 24 << 20
        assert records(tmp_path) == []


def test_without_a_place_for_records_groups_still_work(tmp_path):
    with daemon(tmp_path) as running:
        folder = Path(running.socket).with_suffix(".d") / "groups"
        folder.parent.mkdir(exist_ok=True)
        folder.write_text("a file is in the way")

        async def scenario():
            async with Target(socket=running.socket).client() as client:
                ranks = members(client, 2)
                await join_all(ranks)
                for one in ranks:
                    await one.leave()

        run(scenario())
        eventually_here(lambda: "is not on record" in running.log, 5, told=[running])
        folder.unlink()


def test_only_so_many_groups_of_one_caller(tmp_path):
    with daemon(tmp_path) as running:

        async def scenario():
            async with Target(socket=running.socket).client() as client:
                for number in range(256):
                    answer = await members(client, 2, group=f"n{number}")[0].put(wait=0)
                    assert answer.status_code == 202
                refused = await members(client, 2, group="one-more")[0].put(wait=0)
                assert code(refused) == "busy"
                assert f"uid {os.geteuid()} has 256 living groups" in refused.text
                # Others are not concerned.
                async with Target(url=running.url).client() as tcp:
                    await members(tcp, 1, group="other", secret=SECRET)[0].join()

        begun = time.monotonic()
        run(scenario())
        assert time.monotonic() - begun < 30
