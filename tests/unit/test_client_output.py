"""What ranks print, on its way through the launcher: real pipes, a reader that stalls, lines without an end."""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from fabric_client.cli import output
from fabric_client.cli.output import Output, Pump


@dataclass
class Scene:
    """An output whose reader is this test, and what ranks write into."""

    output: Output
    reading: int
    lost: list[OSError] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)

    def pump(self, name: str) -> Pump:
        reading, self.ranks[name] = os.pipe()
        return Pump(reading, self.output, name)

    async def write(self, name: str, data: bytes) -> None:
        """Write as a rank does, which waits while its pipe is full."""
        await asyncio.to_thread(_write_all, self.ranks[name], data)

    def end(self, *names: str) -> None:
        for name in names:
            os.close(self.ranks.pop(name))

    async def read(self, count: int) -> bytes:
        return await asyncio.to_thread(_read, self.reading, count)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _read(descriptor: int, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := os.read(descriptor, count - len(data))):
        data += part
    return data


def play(scenario: Callable[[Scene], Awaitable[None]]) -> None:
    reading, writing = os.pipe()

    async def run() -> None:
        async with asyncio.timeout(10):
            lost: list[OSError] = []
            scene = Scene(Output(writing, lost.append), reading, lost)
            await scenario(scene)
            scene.output.close()
            scene.end(*scene.ranks)

    asyncio.run(run())
    threads = [thread for thread in threading.enumerate() if thread.name == f"output-{writing}"]
    for thread in threads:
        thread.join(5)
    os.close(writing)
    os.close(reading)


def test_each_line_has_its_prefix_and_the_last_one_an_end() -> None:
    async def scenario(scene: Scene) -> None:
        pump = scene.pump("3")
        await scene.write("3", b"one\n\ntwo\nthree")
        scene.end("3")
        await pump.copied
        expected = b"[3] one\n[3] \n[3] two\n[3] three\n"
        assert await scene.read(len(expected)) == expected

    play(scenario)


def test_a_long_line_has_one_prefix() -> None:
    async def scenario(scene: Scene) -> None:
        pump = scene.pump("0")
        expected = b"[0] " + b"x" * 300_000 + b"\n[0] next\n"
        reading = asyncio.ensure_future(scene.read(len(expected)))
        await scene.write("0", expected.replace(b"[0] ", b""))
        scene.end("0")
        await pump.copied
        assert await reading == expected

    play(scenario)


def test_a_long_line_that_another_rank_interrupts_says_so() -> None:
    async def scenario(scene: Scene) -> None:
        pumps = [scene.pump(name) for name in "01"]
        said = len("[0] \n[1] short\n[0+] \nfabricctl: said\n")
        whole = asyncio.ensure_future(scene.read(200_000 + said))
        await scene.write("0", b"x" * 100_000)
        while scene.output.line_of is not pumps[0]:  # noqa: ASYNC110 - the state of the code under test
            await asyncio.sleep(0.001)
        await scene.write("1", b"short\n")
        while scene.output.line_of is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await scene.write("0", b"y" * 100_000)
        scene.end("0", "1")
        await asyncio.wait([pump.copied for pump in pumps])
        scene.output.post("fabricctl: said")
        await scene.output.flush()
        lines = (await whole).decode().splitlines()
        assert [line[:4] for line in lines] == ["[0] ", "[1] ", "[0+]", "fabr"]
        assert sum(line.count("x") for line in lines) == sum(line.count("y") for line in lines) == 100_000

    play(scenario)


def test_a_reader_that_takes_its_time_gets_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LEFTOVER_SECONDS", 0.05)

    async def scenario(scene: Scene) -> None:
        pump = scene.pump("0")
        writing = asyncio.ensure_future(scene.write("0", b"x" * 200_000 + b"\n"))
        await asyncio.sleep(0.05)  # the reader's pipe is full by now
        pump.rank_has_ended()
        await asyncio.sleep(0.3)
        assert not pump.copied.done()
        data = await scene.read(200_005)
        await writing
        scene.end("0")
        assert data == b"[0] " + b"x" * 200_000 + b"\n"

    play(scenario)


def test_who_holds_a_pipe_open_does_not_hold_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LEFTOVER_SECONDS", 0.05)

    async def scenario(scene: Scene) -> None:
        pump = scene.pump("0")
        await scene.write("0", b"said")
        pump.rank_has_ended()
        await pump.copied
        assert await scene.read(9) == b"[0] said\n"

    play(scenario)


def test_output_that_nobody_reads_is_told_once_and_goes_nowhere() -> None:
    async def scenario(scene: Scene) -> None:
        os.dup2(os.open(os.devnull, os.O_RDONLY), scene.reading)  # closes the pipe's reading end
        pump = scene.pump("0")
        await scene.write("0", b"one\ntwo\n" * 50_000)
        scene.end("0")
        await pump.copied
        assert [type(error) for error in scene.lost] == [BrokenPipeError]

    play(scenario)
