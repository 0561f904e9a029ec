"""Groups at a real daemon: ranks meet, fence, watch one another, leave, are lost."""

import asyncio
import time
from contextlib import AsyncExitStack

import pytest

from tests.support.group_client import SECRET, Member, Target, code, join_all, members, one_host, records, run


@pytest.fixture
def target(running):
    return Target(socket=running.socket)


def test_ranks_meet_exchange_keys_and_leave_no_trace(running, target):
    async def scenario():
        async with target.client() as client:
            ranks = members(client, 3, group="whole")
            answers = await join_all(ranks)
            assert len({answer.kvsname for answer in answers}) == 1
            assert len(answers[0].kvsname) == 32
            assert [answer.rank for answer in answers] == [0, 1, 2]
            assert answers[1].plan.process_mapping == "(vector,(0,1,3))"
            # Each rank is told of all, and how to set itself up.
            assert [[bool(one.settings) for one in answer.plan.ranks] for answer in answers] == [
                [True, False, False],
                [False, True, False],
                [False, False, True],
            ]
            assert len(records(running.log_file.parent)) == 1
            for number in range(3):
                keys = await asyncio.gather(*(one.fence(number, {f"{number}.{one.rank}": "x" * 300}) for one in ranks))
                assert keys == [{f"{number}.{rank}": "x" * 300 for rank in range(3)}] * 3
            assert [(await one.leave()).status_code for one in ranks] == [204] * 3
            assert (await ranks[0].status()).json()["phase"] == "ended"
            assert records(running.log_file.parent) == []

    run(scenario())


def test_every_request_may_be_repeated(target):
    async def scenario():
        async with target.client() as client:
            ranks = members(client, 2, group="again")
            assert [(await ranks[0].put(wait=0)).status_code for _ in range(3)] == [202] * 3
            first = await join_all(ranks)
            assert await join_all(ranks) == first
            assert (await ranks[1].post(0, {"a": "b"}, wait=0)).status_code == 202
            for _ in range(2):
                keys = await asyncio.gather(ranks[0].fence(0, {}), ranks[1].fence(0, {"a": "b"}))
                assert keys == [{"a": "b"}] * 2
            for _ in range(2):
                assert [(await one.leave()).status_code for one in ranks] == [204, 204]

    run(scenario())


def test_the_deadline_names_the_missing_ranks(target):
    async def scenario():
        async with target.client() as client:
            ranks = members(client, 4, group="late")
            begun = time.monotonic()
            answers = await asyncio.gather(*(one.put(seconds=1.0) for one in ranks[:2]))
            assert 1.0 <= time.monotonic() - begun < 2.5
            assert [answer.status_code for answer in answers] == [408, 408]
            problem = answers[0].json()
            assert problem["code"] == "group-timeout"
            assert problem["details"] == {"missing": [2, 3], "present": [0, 1]}
            assert "no rank 2-3 of 4" in problem["detail"]
            assert "rank 0-1 (host-a)" in problem["detail"]
            # The name is free at once.
            await join_all(members(client, 2, group="late"))

    run(scenario())


def test_conflicting_claims_are_refused_and_name_both(target):
    async def scenario():
        async with target.client() as client:
            first, second = Member(client, 0, 3, group="twice"), Member(client, 0, 3, group="twice")
            async with asyncio.TaskGroup() as tasks:
                waiting = tasks.create_task(first.put())
                await asyncio.sleep(0.2)
                refused = await second.put()
                assert code(refused) == "group-conflict"
                assert "rank 0 (host-a, pid 1000) claims the place that rank 0 (host-a, pid 1000) has" in refused.text
                other = await Member(client, 1, 5, group="twice").put()
                assert code(other) == "group-conflict"
                assert "says world_size 5, but rank 0 (host-a, pid 1000) says 3" in other.text
                assert code(await first.abort("enough")) == ""
            assert code(waiting.result()) == "group-aborted"

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rank": 3}, "rank 3 is not in a group of 3"),
        ({"size": 0}, "world_size 0 cannot be"),
        ({"size": 70000}, "world_size 70000 cannot be"),
        ({"claim": "short"}, "claim"),
        ({"group": "a%20b"}, "is no group name"),
        ({"group": ".hidden"}, "is no group name"),
        ({"group": "x" * 201}, "201|at most 200|0 to 200"),
        ({"incarnation": -1}, "incarnation|number"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_cannot_be_is_refused(target, fields, words):
    async def scenario():
        async with target.client() as client:
            answer = await Member(**{"client": client, "rank": 0, "size": 3, **fields}).put()
            assert answer.status_code == 400
            assert any(word in answer.text for word in words.split("|")), answer.text

    run(scenario())


def test_views_and_keys_that_no_machine_has_are_refused(target):
    async def scenario():
        async with target.client() as client:
            bell = Member(client, 0, 1, group="bell", view=one_host(0, hostname="\x1b]0;you\x07"))
            assert code(await bell.put()) == "bad-input"
            [rank] = members(client, 1, group="keys")
            assert code(await rank.put(seconds=float(10**9))) == "bad-input"
            assert code(await rank.put(engine="smoke-signals")) == "bad-input"
            await rank.join()
            assert code(await rank.post(0, {"k" * 300: "v"})) == "bad-input"
            assert code(await rank.post(0, {"k": "v" * 20000})) == "bad-input"
            assert code(await rank.post(0, {f"k{number}": "" for number in range(2000)})) == "bad-input"
            assert code(await rank.post(7, {})) == "bad-input"
            big = await client.put(f"{rank.base}/members/0", content=b"x" * (2 << 20), headers=rank.headers)
            assert big.status_code == 413
            await rank.leave()

    run(scenario())


def test_a_newer_incarnation_takes_over(target):
    async def scenario():
        async with target.client() as client:
            old, new = members(client, 2, group="elastic"), members(client, 2, group="elastic", incarnation=1)
            await join_all(old)
            async with old[0].watch() as watch:
                answers = await join_all(new)
                event = await watch.next()
                assert (event.kind, event.reason) == ("fenced", "1")
            assert answers[0].incarnation == 1
            for refused in (await old[1].post(0, {}), await old[0].put(), await Member(client, 0, 2, "elastic").put()):
                assert code(refused) == "group-conflict"
                assert refused.json()["details"] == {"fenced_by": 1}
            assert (await new[0].status()).json()["phase"] == "running"
            for one in new:
                await one.leave()

    run(scenario())


def test_a_lost_rank_is_told_to_all_others_at_once(target):
    async def scenario():
        async with target.client() as client, target.client() as other:
            ranks = [Member(other if rank == 1 else client, rank, 3, group="loss") for rank in range(3)]
            await join_all(ranks)
            async with ranks[0].watch() as first, ranks[2].watch() as third:
                async with ranks[1].watch():
                    pending = asyncio.create_task(ranks[0].post(0, {}))
                    await asyncio.sleep(0.1)
                lost_at = time.monotonic()
                events = await asyncio.gather(first.next(), third.next())
                took = time.monotonic() - lost_at
                assert [(event.kind, event.ranks) for event in events] == [("lost", (1,))] * 2
                assert "rank 1 (host-a, pid 1001)" in events[0].reason
                assert 1.4 < took < 2.5, took
                answer = await pending
            assert code(answer) == "rank-lost"
            assert answer.json()["details"]["ranks"] == [1]
            assert code(await ranks[2].post(0, {})) == "rank-lost"
            # Whoever starts the job again need not wait.
            again = members(client, 3, group="loss")
            await join_all(again)
            for one in again:
                await one.leave()

    run(scenario())


def test_a_rank_that_dies_with_its_answer_in_hand_is_lost_at_once(target):
    async def doomed():
        async with target.client() as client, Member(client, 1, 2, group="brief").joined():
            return time.monotonic()

    async def scenario():
        async with target.client() as client:
            dying = asyncio.create_task(doomed())
            async with Member(client, 0, 2, group="brief").joined() as (answer, watch):
                assert (answer.rank, answer.size) == (0, 2)
                event = await watch.next()
                took = time.monotonic() - await dying
            assert (event.kind, event.ranks) == ("lost", (1,))
            assert took < 4.0, took

    run(scenario())


def test_a_roll_call_tells_who_answers_and_what_they_are_doing(target):
    async def answering(member, watch, doing):
        assert (await watch.next()).kind == "roll"
        assert (await member.say(doing)).status_code == 204

    async def scenario():
        async with target.client() as client, AsyncExitStack() as stack:
            ranks = members(client, 4, group="roll")
            entered = [stack.enter_async_context(one.joined()) for one in ranks]
            watches = [watch for _, watch in await asyncio.gather(*entered)]
            await ranks[3].leave()  # is not called
            answers = [answering(ranks[0], watches[0], "all_reduce"), answering(ranks[1], watches[1], "")]
            first, second, *_ = await asyncio.gather(ranks[0].roll(), ranks[1].roll(), *answers)
            assert first.json() == {"silent": [2], "doing": {"0": "all_reduce", "1": ""}} == second.json()
            assert (await ranks[0].say("x" * 201)).status_code == 400
            assert (await ranks[0].say("\x1b[2J")).status_code == 400
            stranger = Member(client, 0, 4, group="roll")
            assert code(await stranger.roll()) == code(await stranger.say("x")) == "group-gone"

    run(scenario())


def test_a_join_that_is_not_answered_yet_is_no_stream(target):
    async def scenario():
        async with target.client() as client:
            waiting = Member(client, 1, 3, group="early")
            response = await waiting.put(wait=0.1)
            assert response.status_code == 202
            told = response.json()
            assert (told["present"], told["missing"], told["hosts"]) == ([1], [0, 2], ["rank 1 (host-a, pid 1001)"])
            await waiting.leave()

    run(scenario())


def test_a_watch_that_comes_back_is_no_loss(target):
    async def scenario():
        async with target.client() as client:
            ranks = members(client, 2, group="blink")
            await join_all(ranks)
            async with ranks[0].watch() as watch:
                for _ in range(2):
                    async with ranks[1].watch():
                        await asyncio.sleep(0.2)
                    await asyncio.sleep(0.8)
                async with ranks[1].watch():
                    assert (await watch.next(skip=(), seconds=5)).kind == "alive"
                    await asyncio.sleep(1.0)
                    assert (await ranks[0].status()).json()["phase"] == "running"
            for one in ranks:
                await one.leave()

    run(scenario())


def test_leaving_is_told_and_is_no_loss(target):
    async def scenario():
        async with target.client() as client:
            ranks = members(client, 3, group="bye")
            await join_all(ranks)
            async with ranks[0].watch() as watch:
                async with ranks[1].watch() as ending:
                    await ranks[1].leave()
                    assert await ending.rest() == []  # the daemon closes a leaver's stream
                await ranks[2].leave()
                event = await watch.next()
                assert (event.kind, event.ranks) == ("left", (1, 2))
                status = (await ranks[0].status()).json()
                assert (status["phase"], status["left"]) == ("running", [1, 2])
            await ranks[0].leave()

    run(scenario())


def test_an_abort_is_told_with_who_and_why(target):
    async def scenario():
        async with target.client() as client:
            ranks = members(client, 2, group="stop")
            await join_all(ranks)
            async with ranks[0].watch() as watch:
                assert (await ranks[1].abort("no disk")).status_code == 204
                event = await watch.next()
                assert event.kind == "aborted"
                assert "no disk" in event.reason
                assert "rank 1 (host-a, pid 1001)" in event.reason
            assert code(await ranks[0].post(0, {})) == "group-aborted"

    run(scenario())


def test_the_next_attempt_may_begin_before_the_loss_of_the_last_one_is_sure(target):
    async def scenario():
        async with target.client() as client, target.client() as doomed:
            await join_all([before := Member(doomed, 0, 1, group="rerun")])
            async with before.watch():
                pass
            await (after := Member(client, 0, 1, group="rerun")).join()
            await after.leave()

    run(scenario())


def test_a_group_that_waits_holds_no_place_for_a_rank_that_was_killed(target):
    async def scenario():
        async with target.client() as client:
            doomed = target.client()
            waiting = asyncio.create_task(Member(doomed, 1, 2, group="vanish").put())
            await asyncio.sleep(0.2)
            waiting.cancel()
            await doomed.aclose()
            await asyncio.sleep(0.1)  # a program takes longer to start again than the daemon to hear of its end
            begun = time.monotonic()
            await join_all(again := members(client, 2, group="vanish"))
            assert time.monotonic() - begun < 5
            for one in again:
                await one.leave()

    run(scenario())


def test_many_groups_form_at_once(target):
    async def scenario():
        target.connections = 200
        async with target.client() as client:
            groups = [members(client, 4, group=f"many-{number}") for number in range(24)]
            answers = await asyncio.gather(*(join_all(ranks) for ranks in groups))
            assert len({answer.kvsname for found in answers for answer in found}) == 24
            await asyncio.gather(*(one.leave() for ranks in groups for one in ranks))

    run(scenario())


def test_groups_of_one_secret_meet_over_tcp(running):
    async def scenario():
        async with Target(url=running.url).client() as client:
            ranks = members(client, 2, group="tcp", secret=SECRET)
            await join_all(ranks)
            for one in ranks:
                await one.leave()

    run(scenario())
