"""What counts as a shortage, how long it lasts, and that work outlasts it."""

import asyncio
import errno
import logging

import pytest

from fabricd import shortage
from fabricd.errors import InputError
from fabricd.shortage import OVER_SECONDS, Resource, ShortageError, Shortages, shortage_of


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (OSError(errno.EMFILE, "x"), Resource.DESCRIPTORS),
        (OSError(errno.ENFILE, "x"), Resource.DESCRIPTORS),
        (OSError(errno.ENOMEM, "x"), Resource.MEMORY),
        (MemoryError(), Resource.MEMORY),
        (BlockingIOError(errno.EAGAIN, "fork"), Resource.THREADS),
        (ShortageError(Resource.REQUESTS, "x"), Resource.REQUESTS),
        (ExceptionGroup("x", [MemoryError(), OSError(errno.EMFILE, "x")]), Resource.MEMORY),
        (ExceptionGroup("x", [MemoryError(), ValueError()]), None),
        (OSError(errno.ENOENT, "x"), None),
        (OSError("x"), None),
        (RuntimeError("can't start new thread"), Resource.THREADS),
        (RuntimeError("x"), None),
        (InputError("x"), None),
    ],
)
def test_errors_that_are_shortages(error, resource):
    assert shortage_of(error) is resource


def test_a_shortage_is_told_once_counted_and_over_after_a_while(caplog):
    now = [100.0]
    short = Shortages(clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "fabricd.shortage"):
        for _ in range(1000):
            now[0] += OVER_SECONDS / 2
            short.note(Resource.STORAGE, "no space")
            short.settle()
        short.note(Resource.CONNECTIONS)
        assert short.now == ("connections", "storage")
        assert [record.message for record in caplog.records] == ["short of storage", "short of connections"]
        now[0] += OVER_SECONDS + 1
        short.settle()
    assert short.now == ()
    assert sorted(record.message for record in caplog.records[2:]) == [
        "no longer short of connections",
        "no longer short of storage",
    ]
    assert (short.met[Resource.STORAGE], short.met[Resource.CONNECTIONS], short.met[Resource.MEMORY]) == (1000, 1, 0)


def test_work_outlasts_a_shortage_and_nothing_else(monkeypatch):
    monkeypatch.setattr(shortage, "_AGAIN_SECONDS", 0.0)
    short = Shortages()
    begun = []

    async def work() -> None:
        begun.append(len(begun))
        if len(begun) < 3:
            raise MemoryError
        raise ValueError("a fault")

    with pytest.raises(ValueError, match="a fault"):
        asyncio.run(short.outlast(work, "work"))
    assert (len(begun), short.met[Resource.MEMORY]) == (3, 2)


def test_of_a_group_of_tasks_it_tells_what_one_of_them_met(monkeypatch, caplog):
    monkeypatch.setattr(shortage, "_AGAIN_SECONDS", 0.0)
    met = [ExceptionGroup("unhandled errors", [RuntimeError("can't start new thread")]), None]

    async def work() -> None:
        if error := met.pop(0):
            raise error

    with caplog.at_level(logging.WARNING):
        asyncio.run(Shortages().outlast(work, "probing"))
    assert [record.facts for record in caplog.records] == [{"met": "probing: can't start new thread"}]
