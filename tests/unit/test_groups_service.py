"""The service around the groups' state machines: what it holds on to, and what it lets go."""

import asyncio
import gc
import json
from dataclasses import replace

import pytest

from fabricd.cluster import groups_planning, groups_state
from fabricd.cluster.groups import GroupService
from fabricd.cluster.groups_access import Credentials
from fabricd.cluster.groups_limits import Limits
from fabricd.cluster.groups_live import Group
from fabricd.cluster.groups_record import GroupStore
from fabricd.cluster.groups_stream import WatchStream
from fabricd.errors import BusyError, FabricError, GroupAbortedError, GroupError, GroupGoneError, GroupTimeoutError
from fabricd.model.wire import FenceRequest, GroupPhase, JoinRequest
from fabricd.plan.group import plan_group
from fabricd.shortage import Resource, Shortages
from tests.support.group_client import one_host


class OneHost:
    """Plans without measuring."""

    async def plan(self, engine, views):
        return plan_group(engine, views, {})


class Failing:
    async def plan(self, engine, views):
        raise ZeroDivisionError


def shown(rank: int) -> Credentials:
    return Credentials(uid=7, claim=f"claim-of-rank-{rank:04d}", incarnation=0, caller="uid 7")


def request(rank: int, size: int, **fields) -> JoinRequest:
    return JoinRequest(world_size=size, claim=f"claim-of-rank-{rank:04d}", view=one_host(rank), **fields)


async def answered(service, ticket):
    assert await service.ready(ticket, 5.0)
    return service.answer(ticket)


async def joined(service: GroupService, size: int, name: str = "g") -> list[bytes]:
    tickets = [await service.join(name, rank, request(rank, size), shown(rank), cost=100) for rank in range(size)]
    return [await answered(service, ticket) for ticket in tickets]


def living(kind: type) -> int:
    gc.collect()
    return sum(type(thing) is kind for thing in gc.get_objects())


def test_nothing_is_held_of_groups_that_are_over(tmp_path, monkeypatch):
    monkeypatch.setattr(groups_state, "ENDED_SECONDS", 0.0)
    before = living(Group), living(WatchStream)

    async def scenario():
        service = GroupService(OneHost(), store=GroupStore(tmp_path))
        service.start()
        for number in range(5):
            name = f"g{number}"
            await joined(service, 3, name)
            with service.watch(name, 0, shown(0)) as stream:
                for rank in range(3):
                    service.fence(name, 0, FenceRequest(rank=rank, keys={"a": "b"}), shown(rank), cost=10)
                assert (await stream.next())[0].kind == "hello"
                for rank in range(3):
                    service.leave(name, rank, shown(rank))
        await asyncio.sleep(0.6)
        assert service.all() == []
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    assert asyncio.run(scenario()) == []  # not even the ticking
    assert (living(Group), living(WatchStream)) == before
    assert list(tmp_path.iterdir()) == []


def test_a_fault_of_the_planner_reaches_the_ranks(caplog):
    async def scenario():
        service = GroupService(Failing())
        with pytest.raises(GroupError, match="unforeseen error while planning: ZeroDivisionError"):
            await joined(service, 2)
        service.stop()

    asyncio.run(scenario())
    assert "ZeroDivisionError" in caplog.text


class Short(OneHost):
    """Meets a shortage so many times, and then plans."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    async def plan(self, engine, views):
        if self.times:
            self.times -= 1
            raise RuntimeError("can't start new thread")
        return await super().plan(engine, views)


def test_a_group_outlasts_a_shortage(caplog):
    async def scenario():
        shortages = Shortages()
        service = GroupService(Short(1), shortages=shortages)
        answers = await joined(service, 2)
        service.stop()
        return answers, shortages.met[Resource.THREADS]

    answers, met = asyncio.run(scenario())
    assert (len(answers), met) == (2, 1)
    assert "Traceback" not in caplog.text


def test_a_shortage_that_lasts_is_the_groups_failure(monkeypatch):
    monkeypatch.setattr(groups_planning, "_PLAN_SECONDS", 0.05)

    async def scenario():
        service = GroupService(Short(10))
        with pytest.raises(GroupError, match=r"short of threads for 0.05 s"):
            await joined(service, 2)
        service.stop()

    asyncio.run(scenario())


def test_time_goes_on_for_the_others_when_one_group_is_broken(caplog):
    async def scenario():
        service = GroupService(OneHost())
        broken = await service.join("broken", 0, request(0, 2), shown(0), cost=1)
        broken.group.state.deadline = None  # cannot be compared
        ticket = await service.join("fine", 0, request(0, 2, timeout_seconds=0.3), shown(0), cost=1)
        with pytest.raises(GroupTimeoutError):
            await answered(service, ticket)
        service.stop()

    asyncio.run(scenario())
    assert "broken" in caplog.text


def test_limits_refuse_and_harm_nobody():
    async def scenario():
        service = GroupService(
            OneHost(), limits=Limits(groups=2, groups_of_caller=2, total_bytes=1000, group_bytes=600)
        )
        await joined(service, 1, "one")
        await service.join("two", 0, request(0, 2), shown(0), cost=500)
        with pytest.raises(BusyError, match="2 living groups"):
            await service.join("three", 0, request(0, 1), shown(0), cost=1)
        with pytest.raises(GroupError, match="at most 600 bytes"):
            await service.join("two", 1, request(1, 2), shown(1), cost=101)
        with pytest.raises(BusyError, match="1000 bytes"):
            await service.join("two", 1, request(1, 2), shown(1), cost=501)
        ticket = await service.join("two", 1, request(1, 2), shown(1), cost=1)
        assert await answered(service, ticket)
        service.stop()

    asyncio.run(scenario())


def test_who_asks_for_less_than_there_is_gets_nothing():
    async def scenario():
        service = GroupService(OneHost())
        await joined(service, 1)
        for other in (Credentials(uid=8, claim="claim-of-rank-0000"), Credentials(secret="s" * 20, uid=7)):
            with pytest.raises(GroupGoneError):
                service.status("g", other)
        with pytest.raises(FabricError, match="without a secret"):
            service.status("g", Credentials(claim="claim-of-rank-0000"))
        assert service.status("g", Credentials(uid=7)).size == 1
        service.stop()

    asyncio.run(scenario())


def test_of_two_groups_of_one_name_on_record_the_living_one_is_found(tmp_path):
    async def scenario():
        service = GroupService(OneHost(), store=GroupStore(tmp_path))
        await joined(service, 1)
        service.abort("g", "give up", shown(0))
        kvsname = json.loads((await joined_by(service, "another-claim-of-rank-0"))[0])["kvsname"]
        service.stop()
        assert len(list(tmp_path.iterdir())) == 2
        after = GroupService(OneHost(), store=GroupStore(tmp_path))
        after.start()
        assert after.status("g", shown(0)).phase is GroupPhase.RUNNING
        again = (await joined_by(after, "another-claim-of-rank-0"))[0]
        assert json.loads(again)["kvsname"] == kvsname
        after.stop()

    for _ in range(3):  # the names of the files are drawn by chance
        asyncio.run(scenario())
        for path in tmp_path.iterdir():
            path.unlink()


async def joined_by(service: GroupService, claim: str) -> list[bytes]:
    ask = JoinRequest(world_size=1, claim=claim, view=one_host(0))
    ticket = await service.join("g", 0, ask, Credentials(uid=7, claim=claim, incarnation=0), cost=1)
    return [await answered(service, ticket)]


def test_of_groups_that_are_over_only_so_many_of_one_caller_are_kept():
    async def scenario():
        service = GroupService(OneHost(), limits=Limits(groups_of_caller=3))
        others = replace(shown(0), caller="uid 8", secret="s" * 16)
        await service.join("others", 0, request(0, 2), others, cost=100)
        service.abort("others", "", others)
        for number in range(10):
            name = f"g{number}"
            await service.join(name, 0, request(0, 2), shown(0), cost=100)
            service.abort(name, "give up", shown(0))
        assert [group.state.name for group in service.all()] == ["others", "g6", "g7", "g8", "g9"]
        with pytest.raises(GroupAbortedError):
            await service.join("g8", 0, request(0, 2), shown(0), cost=100)
        service.stop()

    asyncio.run(scenario())


def test_changes_that_can_wait_are_saved_together(tmp_path):
    saves = []

    class Counting(GroupStore):
        def save(self, record):
            saves.append(record)
            super().save(record)

    async def scenario():
        service = GroupService(OneHost(), store=Counting(tmp_path))
        await joined(service, 50)
        saves.clear()
        for rank in range(40):
            service.leave("g", rank, shown(rank))
        await asyncio.sleep(0.2)
        assert len(saves) == 1
        assert sum(member.left for member in saves[0].members) == 40
        service.leave("g", 40, shown(40))
        service.stop()  # saves what has not been

    asyncio.run(scenario())
    assert sum(member.left for member in GroupStore(tmp_path).load()[0].members) == 41
