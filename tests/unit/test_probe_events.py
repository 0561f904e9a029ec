"""Link and address events of a real kernel, in a network namespace of its own."""

import asyncio
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import pytest

from demo.namespaces import Kind, Namespaces
from fabricd.probe import events
from fabricd.probe.base import ProbeContext
from fabricd.probe.events import NetworkChange, NetworkEvents
from fabricd.probe.netlink import NetlinkProbe
from fabricd.probe.runner import Runner

T = TypeVar("T")


def ip(*commands: str) -> None:
    subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(commands), check=True, capture_output=True, text=True, timeout=30
    )


@pytest.fixture
def inside() -> Iterator[Callable[[Callable[[], Awaitable[T]]], T]]:
    """Run an async scenario in a network namespace of its own."""
    spaces = Namespaces(Kind.NET)

    async def in_time(scenario: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(30):
            return await scenario()

    yield lambda scenario: spaces.inside(lambda: asyncio.run(in_time(scenario)))
    spaces.close()


@pytest.mark.root
@pytest.mark.parametrize(
    "command",
    [
        "link set va down",
        "link set vb down",  # takes va's carrier
        "link set va mtu 9000",
        "link set va name z",
        "link del va",
        "link add vc type veth peer name vd",
        "addr add 10.9.0.1/24 dev va",
        "addr add fd09::1/64 dev va nodad",
    ],
)
def test_a_change_is_in_the_map_within_a_second(inside: Callable, command: str) -> None:
    ip_setup = ("link add va type veth peer name vb", "link set va up", "link set vb up")

    async def scenario() -> None:
        ip(*ip_setup)
        await asyncio.sleep(0.2)
        runner = Runner(ProbeContext(), probes=(NetlinkProbe(),))
        before = runner.refresh().interfaces
        async with NetworkEvents() as changes:
            begun = time.monotonic()
            ip(command)
            after = before
            while facts(after) == facts(before):
                change = await anext(changes)
                assert change.messages >= 1
                after = (await asyncio.to_thread(runner.refresh, ["netlink"])).interfaces
            assert time.monotonic() - begun < 1.0

    def facts(interfaces: tuple) -> list:
        return [(nic.name, nic.mtu, nic.admin_up, nic.carrier, nic.addresses) for nic in interfaces]

    inside(scenario)


@pytest.mark.root
def test_nothing_is_told_when_nothing_happens(inside: Callable) -> None:
    async def scenario() -> None:
        async with NetworkEvents() as changes:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.4)

    inside(scenario)


@pytest.mark.root
def test_a_burst_is_few_changes_and_the_last_state_is_seen(inside: Callable) -> None:
    async def scenario() -> list[NetworkChange]:
        told = []
        async with NetworkEvents() as changes:
            storm = asyncio.create_task(
                asyncio.to_thread(ip, *(f"link add v{number} type veth peer name w{number}" for number in range(300)))
            )
            runner = Runner(ProbeContext(), probes=(NetlinkProbe(),))
            while len(runner.snapshot().interfaces) < 601:
                told.append(await anext(changes))
                await asyncio.to_thread(runner.refresh)
            await storm
        return told

    told = inside(scenario)
    assert sum(change.messages for change in told) > 300 or any(change.lost for change in told)
    assert len(told) < 20


@pytest.mark.root
def test_a_link_that_flaps_costs_two_looks_a_second(inside: Callable) -> None:
    async def scenario() -> int:
        ip("link add va type veth peer name vb", "link set vb up")
        told = 0
        async with NetworkEvents() as changes:
            flapping = asyncio.create_task(asyncio.to_thread(flap, 1.6))
            while not flapping.done():
                try:
                    await asyncio.wait_for(anext(changes), 0.6)
                    told += 1
                except TimeoutError:
                    break
            await flapping
        return told

    def flap(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ip(*("link set va up", "link set va down") * 10)

    assert 2 <= inside(scenario) <= 6


@pytest.mark.root
def test_a_storm_that_overruns_the_socket_is_survived(inside: Callable) -> None:
    async def scenario() -> tuple[NetworkChange, NetworkChange]:
        async with NetworkEvents() as changes:
            # On the event loop's own thread: nobody drains the socket meanwhile.
            ip(*(f"link add v{number} type veth peer name w{number}" for number in range(400)))
            storm = await anext(changes)
            while True:  # what was still on its way
                try:
                    await asyncio.wait_for(anext(changes), 0.7)
                except TimeoutError:
                    break
            ip("link set v0 up")
            return storm, await anext(changes)

    storm, after = inside(scenario)
    assert storm.lost
    assert after.messages >= 1


def test_closing_ends_the_iteration() -> None:
    async def scenario() -> list[NetworkChange]:
        changes = NetworkEvents()
        async with changes:
            asyncio.get_running_loop().call_later(0.05, changes.close)
            return [change async for change in changes]

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == []


def test_a_broken_socket_is_an_error_not_silence() -> None:
    async def scenario() -> None:
        async with NetworkEvents() as changes:
            changes._break(OSError(5, "Input/output error"))
            await anext(changes)

    with pytest.raises(OSError, match="Input/output"):
        asyncio.run(asyncio.wait_for(scenario(), 10))


def test_without_netlink_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    async def scenario() -> None:
        events_here = NetworkEvents()
        with monkeypatch.context() as patch:
            patch.setattr(events.socket, "socket", refuse)
            with pytest.raises(PermissionError):
                await events_here.__aenter__()

    asyncio.run(scenario())
