"""What ranks print, brought to this process's own streams: line by line behind a prefix, and never waited for."""

import asyncio
import contextlib
import io
import os
import queue
import select
import threading
from collections.abc import Callable

_CHUNK = 65536
#: A rank that has ended may have left a child that holds its pipes open.
_LEFTOVER_SECONDS = 1.0


class Output:
    """One of this process's streams. A thread writes to it, so that a reader that stalls does not stop the event loop.

    Args:
        descriptor: of the stream. Its flags stay as they are: it may be shared with others, as a terminal is.
        lost: called in the event loop when nobody reads the stream any more, or the disk is full. From then on what
            is written to the descriptor, by whomever in this process, goes nowhere.

    Attributes:
        line_of: whoever has written the beginning of a line last, and not its end; None where a line has ended.
    """

    def __init__(self, descriptor: int, lost: Callable[[OSError], None]) -> None:
        self._descriptor = descriptor
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[bytes, asyncio.Future[None] | None] | None] = queue.SimpleQueue()
        self.line_of: object = None
        # The interpreter does not wait for it: it may be stuck for ever.
        threading.Thread(target=self._run, name=f"output-{descriptor}", daemon=True).start()

    async def write(self, data: bytes, line_of: object = None) -> None:
        """Write, and return when it is written.

        Args:
            data: what to write.
            line_of: whoever's line it leaves without an end; None: it ends with a line's end.
        """
        written = self._loop.create_future()
        self.line_of = line_of
        self._queue.put((data, written))
        await written

    async def flush(self) -> None:
        """Return when all is written."""
        await self.write(b"", self.line_of)

    def post(self, line: str) -> None:
        """Write a line of our own soon. For a few messages only: they are kept until they can be written."""
        data = line.encode(errors="backslashreplace") + b"\n"
        self._queue.put((data if self.line_of is None else b"\n" + data, None))
        self.line_of = None

    def close(self) -> None:
        """Let the thread end when all is written."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            data, written = item
            try:
                _write_all(self._descriptor, data)
            except OSError as error:
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self._descriptor)
                os.close(nothing)
                self._tell(self._lost, error)
            if written is not None:
                self._tell(_done, written)

    def _tell(self, function: Callable[..., None], argument: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function, argument)


def _done(written: "asyncio.Future[None]") -> None:
    if not written.done():
        written.set_result(None)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # whoever started this process has made the stream so
            writable = select.poll()
            writable.register(descriptor, select.POLLOUT)
            writable.poll()


class Pump:
    """Copies what a rank writes into a pipe to an output, each line behind a prefix.

    A line longer than 64 KiB goes in pieces, so that memory stays bounded. Only its beginning bears the prefix; where
    another rank's lines come between the pieces, the next one bears the prefix with a ``+``.

    Args:
        descriptor: the pipe's reading end; closed at the end.
        output: where to.
        name: for the prefix, ``[name] ``.
    """

    def __init__(self, descriptor: int, output: Output, name: str) -> None:
        self._descriptor = descriptor
        self._output = output
        self._prefix, self._again = f"[{name}] ".encode(), f"[{name}+] ".encode()
        self._begun = False  # a line that has not ended
        self._give_up_at: float | None = None
        self._reading: asyncio.Timeout | None = None
        self.copied = asyncio.ensure_future(self._run())  #: done when all is copied

    def rank_has_ended(self) -> None:
        """Go on to the pipe's end, but do not wait long for what others may still write into it."""
        self._give_up_at = asyncio.get_running_loop().time() + _LEFTOVER_SECONDS
        if self._reading is not None:
            self._reading.reschedule(self._give_up_at)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), io.FileIO(self._descriptor)
        )
        rest = b""
        try:
            while chunk := await self._read(stream):
                *lines, rest = (rest + chunk).split(b"\n")
                begun = loop.time()
                if len(rest) > _CHUNK:
                    await self._write(lines, rest)
                    rest = b""
                elif lines:
                    await self._write(lines)
                if self._give_up_at is not None:
                    self._give_up_at += loop.time() - begun  # that the reader takes its time is another matter
            if rest or self._output.line_of is self:
                await self._write([rest])
        finally:
            transport.close()

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout_at(self._give_up_at) as self._reading:
                return await stream.read(_CHUNK)
        except TimeoutError:
            return b""
        finally:
            self._reading = None

    async def _write(self, lines: list[bytes], piece: bytes = b"") -> None:
        """Write lines, and the piece of a line that has not ended."""
        ours = self._output.line_of is self
        first = b"" if ours else self._again if self._begun else self._prefix
        if not ours and self._output.line_of is not None:
            first = b"\n" + first
        texts = [line + b"\n" for line in lines] + ([piece] if piece else [])
        self._begun = bool(piece)
        await self._output.write(first + self._prefix.join(texts), self if piece else None)
