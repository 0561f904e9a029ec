"""One rank between the two machines, over RDMA or TCP as its environment says: this client's all_reduce and MPI's own.

``python -m tests.rdma.speed RANK WORLD_SIZE URL GROUP`` prints one JSON object: the median seconds of each, by bytes.
The environment takes precedence over the plan, so with UCX_TLS and UCX_NET_DEVICES set this is a choice by hand.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

import fabric_client

SIZES = (1 << 10, 64 << 10, 1 << 20)
_TIMES, _WARM = 9, 2
_SECONDS = 300.0


def timed(operation: Callable[[], object]) -> float:
    """Return the median seconds of an operation, after some that do not count."""
    seconds = []
    for _ in range(_WARM + _TIMES):
        begun = time.perf_counter()
        operation()
        seconds.append(time.perf_counter() - begun)
    return median(seconds[_WARM:])


def main() -> None:
    rank, size, url, group = sys.argv[1:]
    with fabric_client.create_communicator(
        group=group, rank=int(rank), world_size=int(size), url=url, timeout=_SECONDS, engine="mpi"
    ) as comm:
        from mpi4py import MPI  # only now: the client starts it

        found = {}
        for nbytes in SIZES:
            array, out = np.ones(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
            ours = timed(partial(comm.all_reduce, array, out=out))
            assert (out == comm.size).all()
            theirs = timed(partial(MPI.COMM_WORLD.Allreduce, array, out))
            found[nbytes] = {"fabric_client": ours, "MPI": theirs}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
