"""Runs a function as a user who may not read everything, also when the tests run as root."""

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
NOBODY = 65534


def as_nobody(function: Callable[[], T]) -> T:
    """Return what ``function`` returns in a thread that has nobody's rights on files; the process keeps its own."""
    outcome: list[T] = []
    fault: list[BaseException] = []

    def run() -> None:
        try:
            if os.geteuid() == 0:
                # setfsuid is a thread's own; leaving user 0 also drops the capabilities that override permissions.
                ctypes.CDLL(None).setfsuid(NOBODY)
            outcome.append(function())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            fault.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if fault:
        raise fault[0]
    return outcome[0]


@contextmanager
def open_folder() -> Iterator[Path]:
    """Make a folder that everybody may enter, unlike pytest's; remove it afterwards."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
