"""A rank that works until a file appears: ``python -m tests.faults.rank FILE``. It says in JSON how it ended."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from fabric_client import Communicator, FabricError, create_communicator

#: For all ranks to come and for MPI to start; and for each operation.
CREATE_SECONDS, OPERATION_SECONDS = 20.0, 5.0
SIZES = (1, 1_000, 300_000)


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def work(comm: Communicator, stop: Path) -> None:
    """Pass through operations, and check every result, until all ranks know that somebody has seen the file."""
    turn = 0
    while not comm.all_reduce(np.asarray(stop.exists()), "logical_or"):
        mine = np.full(SIZES[turn % len(SIZES)], comm.rank + 1.0)
        assert (comm.all_reduce(mine) == comm.size * (comm.size + 1) / 2).all()
        assert comm.all_gather(np.asarray(comm.rank)).tolist() == list(range(comm.size))
        root = turn % comm.size
        assert int(comm.broadcast(np.asarray(comm.rank), root=root)) == root
        turn += 1
        time.sleep(0.002)


def main() -> int:
    """Return 0 when it ended well, 1 when with an error of fabricd's tree."""
    try:
        with create_communicator(timeout=CREATE_SECONDS, operation_timeout=OPERATION_SECONDS) as comm:
            say(started=comm.rank)
            work(comm, Path(sys.argv[1]))
    except FabricError as error:
        say(error=type(error).__name__, text=str(error), at=time.time())
        return 1
    say(ended="well", at=time.time())
    return 0


if __name__ == "__main__":
    sys.exit(main())
