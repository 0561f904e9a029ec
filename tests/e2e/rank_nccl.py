"""Ranks of the NCCL engine that meet trouble: ``python -m tests.e2e.rank_nccl SCENE``; each raises what it is about.

Rank 1 has the fault that the variable FAULT names; see ``tests/nccl_shim/shim.h``.
"""

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from fabric_client import Communicator, create_communicator
from tests.support.nccl_library import HostArray, HostDevice

RANK = os.environ["RANK"]


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def create(gpu: str = f"gpu{RANK}", **more: Any) -> Communicator:
    """Create the communicator, with this rank's fault."""
    if RANK == "1" and "FAULT" in os.environ:
        os.environ["NCCL_SHIM_FAULT"] = os.environ["FAULT"]
    options = {"timeout": 20.0, "operation_timeout": 20.0} | more
    return create_communicator(engine="nccl", device=HostDevice(gpu), **options)


def works() -> None:
    """The plain case, said in detail; and a second communicator in the same process."""
    with create() as comm:
        total = comm.all_reduce(HostArray(np.arange(3.0) + comm.rank))
        explain = comm.explain()
        stats = {name: one.calls for name, one in comm.stats().items()}
        with create(group=f"{comm.group}-second") as other:
            rank = other.all_gather(HostArray(np.array([other.rank]))).data.ravel().tolist()
    say(total=total.data.tolist(), explain=explain, stats=stats, second=rank)


def tells_of_memory() -> None:
    """What NCCL's log says of connections is told by all ranks together; VIA0 and VIA1 are what it says there."""
    os.environ["NCCL_SHIM_VIA"] = os.environ[f"VIA{RANK}"]
    with create() as comm:
        first = comm.verify(1 << 20)
        with create(group=f"{comm.group}-second") as other:
            second = other.verify(1 << 20)
    left = [name for name in os.environ if name.startswith("NCCL_DEBUG")]
    say(first=first.direct_memory, second=second.direct_memory, because=first.because[-1], variables=left)


def killed() -> None:
    """Rank 1 is killed in the middle of a loop of all_reduces."""
    comm, big = create(), HostArray(np.ones(300_000))
    for turn in range(1_000_000):
        if comm.rank == 1 and turn == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(big, out=big, op="max")


def killed_in_background() -> None:
    """Rank 1 is killed while the others have an operation under way that nobody waits for."""
    comm = create()
    if comm.rank == 1:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    work = comm.all_reduce(HostArray(np.ones(10)), async_op=True)
    event = comm._runner.engine.comm.device.record(0)
    began = time.monotonic()
    while not event.done():  # as a program waits for its GPU
        time.sleep(0.01)
    say(freed_after=time.monotonic() - began)
    work.wait()


def same_gpu() -> None:
    """Ranks 1 and 2 are on one GPU."""
    create("0000:17:00.0" if RANK in "12" else "0000:18:00.0")


def slow() -> None:
    """Rank 1 does not come to an operation."""
    comm = create()
    if comm.rank == 1:
        time.sleep(1.5)
    comm.barrier(timeout=0.5)


def operates() -> None:
    """All_reduce until something breaks."""
    comm = create()
    while True:
        comm.all_reduce(HostArray(np.ones(10)))


def starts() -> None:
    """Only create it, in two seconds."""
    create(timeout=2.0)


def early() -> None:
    """Rank 1 ends without closing, while the others are in an operation that it never comes to."""
    comm = create()
    if comm.rank == 1:
        return
    comm.all_reduce(HostArray(np.ones(10)))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
