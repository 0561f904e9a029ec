"""Arrays of more than 2**31 elements, on two ranks: what was an int somewhere on the way would show.

    python -m tests.large_arrays            # as a user: starts two ranks, of 6 GiB each

Prints a line for each operation, and ends with 1 when one is wrong.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demo.daemons import end, program
from fabric_client import Communicator, create_communicator

COUNT = 2**31 + 8
_MARK = (0, 1, 2**30, 2**31 - 1, 2**31, COUNT - 1)  #: places that are looked at, beside the sum
_SECONDS = 1200.0  #: it takes one or two minutes


def filled(rank: int) -> NDArray[np.int8]:
    """Return zeros with marks that tell place and rank."""
    array = np.zeros(COUNT, np.int8)
    for number, place in enumerate(_MARK):
        array[place] = 3 * number + rank + 1
    return array


def marks(array: NDArray[Any]) -> list[int]:
    """Return what stands at the places, and at all others together."""
    flat = array.reshape(-1)
    found = [int(flat[place]) for place in _MARK]
    return [*found, int(np.count_nonzero(flat)) - sum(value != 0 for value in found)]


def expected(*ranks: int) -> list[int]:
    """Return the marks of a sum of these ranks' arrays."""
    return [*(sum(3 * number + rank + 1 for rank in ranks) for number in range(len(_MARK))), 0]


def all_reduce(comm: Communicator) -> bool:
    """In place, in pieces."""
    array = filled(comm.rank)
    comm.all_reduce(array, out=array)
    return marks(array) == expected(0, 1)


def reduce_scatter(comm: Communicator) -> bool:
    """In one go: rank r gets half r."""
    array = filled(comm.rank).reshape(2, -1)
    half = comm.reduce_scatter(array)
    whole = np.zeros((2, COUNT // 2), np.int8)
    whole[comm.rank] = half
    sums = expected(0, 1)[:-1]
    own = [value if place // (COUNT // 2) == comm.rank else 0 for value, place in zip(sums, _MARK, strict=True)]
    return marks(whole) == [*own, 0]


def broadcast(comm: Communicator) -> bool:
    """From rank 1."""
    array = filled(1) if comm.rank == 1 else np.zeros(COUNT, np.int8)
    comm.broadcast(array, 1)
    return marks(array) == expected(1)


def messages(comm: Communicator) -> bool:
    """From rank 0 to rank 1."""
    if comm.rank == 0:
        comm.send(filled(0), 1)
        return True
    array = np.zeros(COUNT, np.int8)
    comm.recv(array, 0)
    return marks(array) == expected(0)


def all_gather_v(comm: Communicator) -> bool:
    """Rank 0 has all rows but eight: counts and displacements beyond 2**31."""
    counts = [COUNT - 8, 8]
    mine = filled(0)[: COUNT - 8] if comm.rank == 0 else np.full(8, 7, np.int8)
    array = comm.all_gather_v(mine, counts=counts)
    found = [int(array[place]) for place in _MARK[:4]]
    return bool((array[-8:] == 7).all()) and found == expected(0)[:4] and array.shape == (COUNT,)


CHECKS: tuple[Callable[[Communicator], bool], ...] = (all_reduce, reduce_scatter, broadcast, messages, all_gather_v)


def as_rank() -> int:
    """Run all checks as a rank."""
    wrong = 0
    with create_communicator() as comm:
        for check in CHECKS:
            begun = time.monotonic()
            fine = check(comm)
            wrong += not fine
            said = f"{'right' if fine else 'WRONG'}, {time.monotonic() - begun:.1f} s"
            print(f"rank {comm.rank}: {check.__name__} of {COUNT} elements: {said}", flush=True)
            comm.barrier()
    return 1 if wrong else 0


def main() -> int:
    """Start the ranks, or be one."""
    if "RANK" in os.environ:
        return as_rank()
    command = [program("fabricctl"), "run", "-n", "2", "--", sys.executable, "-m", "tests.large_arrays"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the ranks end with this program
    process = subprocess.Popen(command)
    try:
        return process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        print(f"large_arrays: not done after {_SECONDS:g} s", file=sys.stderr)
        return 1
    finally:
        end(process)


if __name__ == "__main__":
    sys.exit(main())
