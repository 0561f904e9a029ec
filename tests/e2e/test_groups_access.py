"""Who can touch a group: whoever shows its secret, or, where it has none, its user over the Unix socket."""

import asyncio
import ctypes
import os
import platform
import threading

import pytest

from tests.support.daemon import daemon
from tests.support.group_client import SECRET, Member, Target, code, join_all, members, run
from tests.support.rights import open_folder

SOMEBODY = 12345  # the user "nobody" stands for all unknown ones, and so for none
OTHER = "f" * 32
#: System call numbers of setresuid, by machine: the C library's function would change all threads.
SETRESUID = {"x86_64": 117, "aarch64": 147}


@pytest.fixture(scope="module")
def running():
    with open_folder() as folder, daemon(folder) as found:
        yield found


async def everything(intruder: Member) -> dict[str, tuple[int, str, str]]:
    """Try all there is; return status, code and message of each answer."""
    answers = {
        "status": await intruder.status(),
        "fence": await intruder.post(0, {"key": "poison"}, wait=0.5),
        "leave": await intruder.leave(),
        "abort": await intruder.abort("ha"),
    }
    async with intruder.watch() as watch:
        answers["watch"] = watch.response
    return {what: (answer.status_code, code(answer), answer.json()["detail"]) for what, answer in answers.items()}


@pytest.mark.parametrize("secret", [OTHER, SECRET[:-1] + "~", None], ids=["other", "nearly", "none"])
def test_who_guesses_the_name_and_not_the_secret_gets_nothing(running, secret):
    async def scenario():
        async with Target(url=running.url).client() as client:
            ranks = members(client, 2, group="train", secret=SECRET)
            await join_all(ranks)
            async with ranks[0].watch() as watch, ranks[1].watch():
                intruder = Member(client, 1, 2, group="train", secret=secret)
                for told in (await everything(intruder)).values():
                    assert told[0] == (404 if secret else 403), told
                join = await intruder.put(wait=0.5)
                assert (join.status_code, code(join)) == (403, "access-denied")
                # Not even with a member's claim, which it cannot know.
                intruder.claim = ranks[1].claim
                assert all(told[0] in (403, 404) for told in (await everything(intruder)).values())
                assert (await intruder.put(wait=0.5)).status_code == 403
                # Nobody noticed anything.
                assert (await ranks[0].status()).json()["phase"] == "running"
                assert (await watch.next(skip=())).kind == "alive"
                keys = await asyncio.gather(*(one.fence(0, {f"k{one.rank}": "v"}) for one in ranks))
                assert keys == [{"k0": "v", "k1": "v"}] * 2
            for one in ranks:
                await one.leave()

    run(scenario())


def test_a_group_that_is_there_and_one_that_is_not_look_alike(running):
    async def scenario():
        async with Target(url=running.url).client() as client:
            ranks = members(client, 1, group="secret-job", secret=SECRET)
            await join_all(ranks)
            there = await everything(Member(client, 0, 1, group="secret-job", secret=OTHER))
            absent = await everything(Member(client, 0, 1, group="absent-job", secret=OTHER))
            assert {
                what: (told[0], told[1], told[2].replace("absent", "secret")) for what, told in absent.items()
            } == there
            await ranks[0].leave()

    run(scenario())


def test_a_member_without_the_right_claim_can_do_nothing_in_anothers_name(running):
    async def scenario():
        async with Target(url=running.url).client() as client:
            ranks = members(client, 2, group="inside", secret=SECRET)
            await join_all(ranks)
            false = Member(client, 1, 2, group="inside", secret=SECRET, claim=ranks[0].claim)
            assert code(await false.post(0, {"a": "b"})) == "group-gone"
            assert code(await false.leave()) == "group-gone"
            async with false.watch() as watch:
                assert code(watch.response) == "group-gone"
            false.claim = ""
            assert (await false.leave()).status_code == 400
            for one in ranks:
                assert (await one.leave()).status_code == 204

    run(scenario())


def test_without_a_secret_nothing_is_possible_over_tcp(running):
    async def scenario():
        async with Target(url=running.url).client() as client:
            answer = await Member(client, 0, 1, group="open").put()
            assert (answer.status_code, code(answer)) == (403, "access-denied")
            assert "Unix socket" in answer.json()["detail"]

    run(scenario())


def test_a_weak_secret_is_refused(running):
    async def scenario():
        async with Target(url=running.url).client() as client:
            answer = await Member(client, 0, 1, group="weak", secret="hunter2").put()
            assert (answer.status_code, code(answer)) == (403, "access-denied")
            assert "16 characters" in answer.json()["detail"]
            assert "hunter2" not in answer.text

    run(scenario())


def test_with_and_without_a_secret_are_two_worlds(running):
    async def scenario():
        async with Target(url=running.url).client() as tcp, Target(socket=running.socket).client() as unix:
            guarded = members(tcp, 1, group="worlds", secret=SECRET)
            await join_all(guarded)
            plain = Member(unix, 0, 1, group="worlds")
            assert code(await plain.put()) == "access-denied"
            assert code(await plain.status()) == "group-gone"
            await guarded[0].leave()
            await plain.join()
            assert code(await guarded[0].put()) in ("group-conflict", "access-denied")
            assert code(await Member(unix, 0, 1, group="worlds", secret=SECRET).put()) in (
                "access-denied",
                "group-conflict",
            )
            await plain.leave()

    run(scenario())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_have_groups_of_one_name_and_cannot_touch_each_others(running):
    async def scenario():
        async with Target(socket=running.socket).client() as client:
            answer = await Member(client, 0, 1, group="default").join()
            status = (await Member(client, 0, 1, group="default").status()).json()
            return answer.kvsname, status["present"]

    async def intrude():
        async with Target(socket=running.socket).client() as client:
            before = await everything(Member(client, 0, 1, group="default"))
            own = await Member(client, 0, 1, group="default").join()
            return before, own.kvsname

    mine, _ = run(scenario())
    before, theirs = _as_somebody(lambda: run(intrude()))
    assert mine != theirs
    assert {told[1] for told in before.values()} == {"group-gone"}

    async def still_there():
        async with Target(socket=running.socket).client() as client:
            return (await Member(client, 0, 1, group="default").status()).json()["phase"]

    assert run(still_there()) == "running"


def _as_somebody(function):
    """Run in a thread that is another user to the kernel, sockets included."""
    outcome = []

    def work():
        number = SETRESUID[platform.machine()]
        assert ctypes.CDLL(None, use_errno=True).syscall(number, -1, SOMEBODY, -1) == 0
        outcome.append(function())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return outcome[0]


def test_secrets_stand_neither_in_the_log_nor_on_record(running):
    async def scenario():
        async with Target(url=running.url).client() as client:
            ranks = members(client, 1, group="quiet", secret=SECRET)
            await join_all(ranks)
            folder = running.log_file.parent / "d.d" / "groups"
            files = list(folder.iterdir())
            assert files
            for path in files:
                assert path.stat().st_mode & 0o777 == 0o600
                text = path.read_text()
                assert SECRET not in text
                assert ranks[0].claim not in text
            assert folder.stat().st_mode & 0o777 == 0o700
            await ranks[0].leave()
        assert SECRET not in running.log
        assert ranks[0].claim not in running.log

    run(scenario())
