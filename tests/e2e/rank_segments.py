"""One rank that reduces arrays in pieces, in every way in which that could go wrong. Prints what was wrong as JSON.

python -m tests.e2e.rank_segments
"""

import json
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator, create_communicator

#: Of bytes: no piece is larger than 16 MiB, so these are at least three, and their last one is shorter.
LARGE = (33 << 20) + 5


@cache
def _pattern(count: int, dtype: str) -> NDArray[Any]:
    return np.resize((np.arange(251) % 7).astype(dtype), count)


def counted(rank: int, count: int, dtype: str) -> NDArray[Any]:
    """Return numbers that differ from place to place and from rank to rank, and whose sums are exact."""
    own: NDArray[Any] = np.add(_pattern(count, dtype), rank, dtype=dtype)
    return own


def summed(size: int, count: int, dtype: str) -> NDArray[Any]:
    """Return the sum of what all ranks have."""
    of_all: NDArray[Any] = np.add(_pattern(count, dtype) * size, size * (size - 1) // 2, dtype=dtype)
    return of_all


def checks(comm: Communicator) -> Iterator[tuple[str, bool]]:
    """Yield what was done, and whether it was right."""
    for dtype in ("u1", "f2"):
        count = LARGE // np.dtype(dtype).itemsize
        mine, expected = counted(comm.rank, count, dtype), summed(comm.size, count, dtype)
        yield f"sum of {dtype}", np.array_equal(comm.all_reduce(mine), expected)
        assert comm.all_reduce(mine, out=mine) is mine
        yield f"sum of {dtype} in place", np.array_equal(mine, expected)
    rows = (3, LARGE // 12)
    mine = counted(comm.rank, rows[0] * rows[1], "f4").reshape(rows)
    average = summed(comm.size, mine.size, "f4").reshape(rows) / np.float32(comm.size)
    yield "average of rows", np.array_equal(comm.all_reduce(mine, "average"), average)
    for dtype in ("u1", "f2"):
        count, root = LARGE // np.dtype(dtype).itemsize, comm.size - 1
        mine = counted(comm.rank, count, dtype)
        got = comm.reduce(mine, root=root, out=mine if comm.rank == root else None)
        left = summed(comm.size, count, dtype) if comm.rank == root else counted(comm.rank, count, dtype)
        yield f"reduce of {dtype} in place", got is (mine if comm.rank == root else None) and np.array_equal(mine, left)
    yield "every size", all(every_size(comm))
    yield "many at once", all(many_at_once(comm))
    yield "a peer waits for a message", waits_for_a_message(comm)
    yield "a peer waits for a split", waits_for_a_split(comm)
    part = comm.subgroup(range(1, comm.size))
    if part is not None:
        got = part.all_reduce(counted(part.rank, LARGE, "u1"))
        yield "of a part of the ranks", np.array_equal(got, summed(part.size, LARGE, "u1"))


class Stubborn(np.ndarray):
    """Memory like any other, that NumPy may not compute with."""

    __array_ufunc__ = None


def every_size(comm: Communicator) -> Iterator[bool]:
    """Sums on both sides of where two ranks change what they do, in every way; beyond the range is inf, in silence."""
    for count in (0, 1, 2048, 2049, 8192, 8193, 70_000):
        mine, expected = counted(comm.rank, count, "f4"), summed(comm.size, count, "f4")
        out = np.empty_like(mine)
        yield comm.all_reduce(mine, out=out) is out
        yield np.array_equal(out, expected)
        yield np.array_equal(comm.all_reduce(mine, out=mine), expected)
        own = np.full(count, 1.0, "f4").view(Stubborn)
        yield bool((comm.all_reduce(own, out=own).view(np.ndarray) == comm.size).all())
        with warnings.catch_warnings(action="error"):
            yield bool(np.isinf(comm.all_reduce(np.full(count, 3e38, "f4"))).all())


def many_at_once(comm: Communicator) -> Iterator[bool]:
    """Large and small ones together, waited for in another order on each rank."""
    works = [
        comm.all_reduce(np.full(LARGE if turn % 2 else 10, turn, "u1"), async_op=True, timeout=60) for turn in range(4)
    ]
    for turn in np.random.default_rng(comm.rank).permutation(len(works)):
        yield bool((works[turn].wait() == turn * comm.size).all())


def waits_for_a_message(comm: Communicator) -> bool:
    """Rank 0 sends only after its reduction; the others wait for the message first, and drive the reduction on."""
    work = comm.all_reduce(counted(comm.rank, LARGE, "u1"), async_op=True, timeout=60)
    if comm.rank == 0:
        work.wait()
        for rank in range(1, comm.size):
            comm.send(np.ones(1), rank)
    else:
        comm.recv(np.empty(1), 0, timeout=30)
    return np.array_equal(work.wait(), summed(comm.size, LARGE, "u1"))


def waits_for_a_split(comm: Communicator) -> bool:
    """Rank 0 splits only after its reduction, for which it needs the others."""
    work = comm.all_reduce(counted(comm.rank, LARGE, "u1"), async_op=True, timeout=60)
    if comm.rank == 0:
        work.wait()
    made = comm.split(0, timeout=30)
    assert made is not None
    made.close()
    return np.array_equal(work.wait(), summed(comm.size, LARGE, "u1"))


def main() -> None:
    with create_communicator() as comm:
        done = dict(checks(comm))
        told = [line for line in comm.explain().splitlines() if line.startswith("all_reduce and reduce of more than")]
    json.dump(
        {"wrong": [what for what, right in done.items() if not right], "done": len(done), "told": told}, sys.stdout
    )


if __name__ == "__main__":
    main()
