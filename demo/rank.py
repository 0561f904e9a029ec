"""One rank of the demonstration's benchmark: all_reduce on demand.

``python -m demo.rank mpi`` uses MPI's world as its launcher made it; ``python -m demo.rank fabricd`` asks a daemon for
a communicator; ``gloo`` and ``fabricd-gloo`` are the same choice for PyTorch on CPUs. All run the same loop. Commands
come on standard input, one JSON object a line, answers go out the same way::

    {"bytes": 1048576, "count": 3}  ->  {"seconds": [0.0011, 0.0010, 0.0012], "wrong": 0}

The first line out is ``{"rank": R, "size": N, "explain": "..."}``. Between commands a rank waits without spinning, so
that several jobs can be alive at once and be measured in turns. ``DEMO_CPU`` in the environment keeps it on one CPU:
hosts that are namespaces of one machine share its CPUs, and the kernel may let two of them take turns on one.
``DEMO_NICE`` puts it before other programs of the machine, or behind them; for the kernel each rank is a session, and
its nice value counts within that alone (sched(7), autogroup). ``DEMO_REALTIME`` lets nothing else run in its stead
while it measures.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What the benchmark needs of an engine."""

    rank: int
    size: int
    all_reduce: Callable[[Array, Array], object]  #: (in, out): the sum of all ranks' arrays
    barrier: Callable[[], object]
    close: Callable[[], object]
    explain: str = ""


def open_mpi() -> World:
    """Use the library as it is."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    return World(
        rank=world.Get_rank(),
        size=world.Get_size(),
        all_reduce=world.Allreduce,
        barrier=world.Barrier,
        close=MPI.Finalize,
    )


def open_fabricd() -> World:
    """Ask the daemon for a communicator on the best path."""
    import fabric_client

    communicator = fabric_client.create_communicator(engine="mpi")
    return World(
        rank=communicator.rank,
        size=communicator.size,
        all_reduce=lambda array, out: communicator.all_reduce(array, out=out),
        barrier=communicator.barrier,
        close=communicator.close,
        explain=str(communicator.explain()),
    )


def open_gloo() -> World:
    """Use PyTorch as it is; MASTER_ADDR and the like tell it where ranks meet."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return _of_torch("")


def open_fabricd_gloo() -> World:
    """Ask the daemon for PyTorch's process group on the best path."""
    import fabric_client.torch

    return _of_torch(fabric_client.torch.init_process_group("gloo").explain())


def _of_torch(explain: str) -> World:
    import torch
    import torch.distributed as dist

    def all_reduce(array: Array, out: Array) -> None:
        out[:] = array
        dist.all_reduce(torch.from_numpy(out))

    return World(
        rank=dist.get_rank(),
        size=dist.get_world_size(),
        all_reduce=all_reduce,
        barrier=dist.barrier,
        close=dist.destroy_process_group,
        explain=explain,
    )


_ENGINES = {"mpi": open_mpi, "fabricd": open_fabricd, "gloo": open_gloo, "fabricd-gloo": open_fabricd_gloo}


def burst(world: World, size: int, count: int) -> dict[str, Any]:
    """Run ``count`` all_reduces of ``size`` bytes; time each, and check every element of the last result.

    One follows the other, without a barrier, which ranks leave at different times.
    """
    array = np.full(size // 4, world.rank + 1, dtype=np.float32)
    out = np.zeros_like(array)
    world.barrier()
    clock = [time.perf_counter()]
    for _ in range(count):
        world.all_reduce(array, out)
        clock.append(time.perf_counter())
    expected = world.size * (world.size + 1) / 2
    seconds = [end - begin for begin, end in pairwise(clock)]
    return {"seconds": seconds, "wrong": int(np.count_nonzero(out != expected))}


def main() -> None:
    """Serve commands until standard input ends."""
    if "DEMO_CPU" in os.environ:
        os.sched_setaffinity(0, {int(os.environ["DEMO_CPU"])})
    if "DEMO_NICE" in os.environ:
        os.setpriority(os.PRIO_PROCESS, 0, int(os.environ["DEMO_NICE"]))
        with suppress(FileNotFoundError):  # a kernel without autogroups
            Path("/proc/self/autogroup").write_text(os.environ["DEMO_NICE"])
    world = _ENGINES[sys.argv[1]]()
    if "DEMO_REALTIME" in os.environ:  # only now: what it waited for until here has to run as well
        for thread in Path("/proc/self/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_FIFO, os.sched_param(1))
    print(json.dumps({"rank": world.rank, "size": world.size, "explain": world.explain}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        print(json.dumps(burst(world, command["bytes"], command["count"])), flush=True)
    world.close()


if __name__ == "__main__":
    main()
