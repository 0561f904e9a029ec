"""Where log lines go: written by a thread, so that a log that nobody reads keeps the daemon from nothing."""

import logging
import os
import queue
import select
import threading

#: Lines that may wait for whoever reads them: seconds of the worst that a daemon has to tell, and some 200 KB.
MOST_LINES = 1000
#: How long an end waits for lines that are on their way.
_FLUSH_SECONDS = 0.2


class Output(logging.Handler):
    """Writes records to a descriptor: a pipe, the journal's socket, a file or a terminal, any of which may get stuck.

    When too many lines wait, further ones are dropped, and their number is told as soon as there is room.

    Args:
        descriptor: is written to, and never closed.

    Attributes:
        dropped: how many records nobody will read.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        self._told = 0
        self._descriptor = descriptor
        # One that may be entered again by what the garbage collector ends in the middle of it, and logs.
        self._lines: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether the next record would be dropped."""
        return self._lines.qsize() >= MOST_LINES

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written, or count it."""
        if self.full:
            self.dropped += 1
            return
        try:
            if self.dropped > self._told:
                self._put(_lost(self.dropped - self._told))
                self._told = self.dropped
            self._put(record)
        except Exception:  # noqa: BLE001 - as every handler of the standard library: a record must not end its sender
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, but not for long."""
        done = threading.Event()
        self._lines.put(done)
        done.wait(_FLUSH_SECONDS)

    def close(self) -> None:
        """Have the thread end when it has written what waits, which it is given as long as a flush for.

        One that woke up while the interpreter ends would be ended by pthread_exit(3), for which glibc loads a library.
        """
        self._lines.put(None)
        self._thread.join(_FLUSH_SECONDS)
        super().close()

    def _put(self, record: logging.LogRecord) -> None:
        self._lines.put((self.format(record) + "\n").encode("utf-8", "backslashreplace"))

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                _write_all(self._descriptor, line)
            except OSError:  # the reader has gone, or the disk is full
                self.dropped += 1


def _lost(count: int) -> logging.LogRecord:
    text = "%d records were dropped: nobody read the log"
    return logging.LogRecord("fabricd.log", logging.WARNING, __file__, 0, text, (count,), None)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # whoever shares it made it so
            select.select([], [descriptor], [])
