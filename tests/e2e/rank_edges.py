"""One rank at the edges of what may be done: ``python -m tests.e2e.rank_edges SCENE [ARGUMENT]``. Prints JSON."""

import json
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

from fabric_client import CommunicatorError, FabricError, create_communicator


def mismatched(operation: str, engine: str) -> None:
    """Rank 1 passes an array of twice the size; says what came of it, within the time."""
    comm = create_communicator(engine=engine)
    array = np.ones((comm.size, (1 + (comm.rank == 1)) * 1000))
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: comm.all_reduce(array, timeout=2),
        "all_reduce_large": lambda: comm.all_reduce(np.repeat(array, 1000), timeout=2),
        "reduce_large": lambda: comm.reduce(np.repeat(array, 3000), timeout=20),
        "broadcast": lambda: comm.broadcast(array, 1, timeout=2),
        "all_gather": lambda: comm.all_gather(array, timeout=2),
        "all_to_all": lambda: comm.all_to_all(array, timeout=2),
    }
    try:
        calls[operation]()
        said = "garbage"
    except FabricError as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps(said))


def sums_of_two(way: str, count: str) -> None:
    """Rank 1's array has one element more; says what came of it, and what stands in the result."""
    comm = create_communicator()
    array = np.ones(int(count) + comm.rank)
    out = array if way == "in_place" else np.zeros_like(array)
    try:
        if way == "work":
            comm.all_reduce(array, out=out, async_op=True).wait(10)
        else:
            comm.all_reduce(array, "average" if way == "average" else "sum", out=out, timeout=10)
        said = "garbage"
    except FabricError as error:
        said = str(error)
    print(json.dumps(said))


def closed() -> None:
    """Every operation after close is refused in words; close may be repeated, and what is only read still is."""
    comm = create_communicator()
    half = comm.split(comm.rank)
    assert half is not None
    pending = comm.all_reduce(np.ones(10), async_op=True)
    comm.close()
    comm.close()
    array = np.ones((comm.size, 3))
    peer = (comm.rank + 1) % comm.size
    calls: list[Callable[[], Any]] = [
        lambda: comm.all_reduce(array),
        lambda: comm.all_reduce(array, async_op=True),
        lambda: comm.reduce(array),
        lambda: comm.reduce_scatter(array),
        lambda: comm.reduce_scatter_v(array, [2, 0]),
        lambda: comm.broadcast(array),
        lambda: comm.all_gather(array),
        lambda: comm.all_gather_v(array),
        lambda: comm.gather(array),
        lambda: comm.gather_v(array),
        lambda: comm.scatter(array, out=np.ones(3)),
        lambda: comm.scatter_v(array, [1, 1], out=np.ones((1, 3))),
        lambda: comm.all_to_all(array),
        lambda: comm.all_to_all_v(array, [1, 1]),
        lambda: comm.send(array, peer),
        lambda: comm.recv(array, peer),
        lambda: comm.sendrecv(array, peer, array, peer),
        comm.barrier,
        lambda: comm.split(0),
        comm.dup,
        lambda: comm.subgroup([0]),
        comm.verify,
        comm.rebuild,
        half.barrier,
    ]
    accepted = []
    for number, call in enumerate(calls):
        try:
            call()
        except CommunicatorError as error:
            if "is closed" not in str(error):
                accepted.append(f"{number}: {error}")
        except FabricError as error:
            accepted.append(f"{number}: {type(error).__name__} {error}")
        else:
            accepted.append(str(number))
    told = {"result": pending.wait().tolist(), "repr": repr(comm), "reduces": comm.stats()["all_reduce"].calls}
    print(json.dumps({"accepted": accepted, "explained": comm.explain().splitlines()[0], **told}))


def attributes() -> None:
    """What mpi4py asks MPI about the world while it holds the GIL, and MPI asks this process."""
    with create_communicator():
        from mpi4py import MPI

        names = ("UNIVERSE_SIZE", "APPNUM", "TAG_UB", "LASTUSEDCODE", "WTIME_IS_GLOBAL")
        found = {name: MPI.COMM_WORLD.Get_attr(getattr(MPI, name)) for name in names}
        print(json.dumps(found))


def held() -> None:
    """What is made for the time of an operation lives as long: float16 is reduced in float32."""
    with create_communicator() as comm:
        halves = np.ones((comm.size, 100_000), "f2")
        calls: list[Callable[[], Any]] = [
            lambda: comm.all_reduce(halves, async_op=True),
            lambda: comm.reduce(halves, root=0, async_op=True),
            lambda: comm.reduce_scatter(halves, async_op=True),
            lambda: comm.reduce_scatter_v(halves, [1] * comm.size, async_op=True),
        ]
        missing = []
        for number, call in enumerate(calls):
            tracemalloc.start()
            work = call()
            if tracemalloc.get_traced_memory()[0] < 2 * halves.nbytes:
                missing.append(number)
            tracemalloc.stop()
            work.wait()
        print(json.dumps(missing))


def partly_in_place() -> None:
    """Where a rank's result goes is its own affair: one works in place, and the others do not."""
    with create_communicator() as comm:
        wrong = []
        for count in (1, 5_000, 100_000):
            own = np.full((comm.size, count), comm.rank, "i4")
            all_ranks = np.repeat(np.arange(comm.size, dtype="i4")[:, None], count, axis=1)
            for one in range(comm.size):
                here = comm.rank == one
                exchanged = own.copy()
                gathered = np.full_like(own, comm.rank)
                for name, got, right in (
                    ("all_to_all", comm.all_to_all(exchanged, out=exchanged if here else None), all_ranks),
                    ("all_gather", comm.all_gather(gathered[comm.rank], out=gathered if here else None), all_ranks),
                    ("all_reduce", comm.all_reduce(own, "max", out=own.copy() if here else None), all_ranks[-1:]),
                ):
                    if not (got == right).all():
                        wrong.append(f"{name} {count} {one}")
        print(json.dumps(wrong))


class Stubborn(np.ndarray):
    """Memory like any other, that NumPy may not compute with."""

    __array_ufunc__ = None


def subclasses() -> None:
    """What a subclass makes of slices and of adding is its own affair."""
    with create_communicator() as comm:
        matrix = np.full((3, 2_000_000), comm.rank + 1.0).view(np.matrix)  # in pieces
        halves = np.full(9, comm.rank + 1, "f2").view(Stubborn)
        rows = np.full((comm.rank + 1, 2), comm.rank).view(np.matrix)
        comm.all_reduce(matrix, "max", out=matrix)
        average = comm.all_reduce(halves, "average")
        gathered = comm.all_gather_v(rows, counts=[rank + 1 for rank in range(comm.size)])
        print(json.dumps([matrix.min(), matrix.max(), average.tolist(), gathered.tolist()]))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
