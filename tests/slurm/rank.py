"""One rank of a job under srun: makes a communicator as a user would, and prints a line of JSON.

python -m tests.slurm.rank [lose RANK]
"""

import json
import os
import signal
import sys

import numpy as np

from fabric_client import FabricError, create_communicator


def main() -> None:
    """Run as a rank."""
    comm = create_communicator()
    told = {"rank": comm.rank, "size": comm.size, "group": comm.group, "explain": comm.explain()}
    if sys.argv[1:2] == ["lose"]:
        comm.barrier()
        if comm.rank == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            comm.all_reduce(np.ones(1 << 20))
        except FabricError as error:
            print(json.dumps({**told, "error": f"{type(error).__name__}: {error}"}), flush=True)
        return
    total = comm.all_reduce(np.arange(1000.0) + comm.rank)
    exact = bool((total == comm.size * np.arange(1000.0) + sum(range(comm.size))).all())
    pair = comm.split(comm.rank // 2)
    told |= {"exact": exact, "pair": pair.size if pair else 0, "verdict": str(comm.verify().verdict)}
    comm.close()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
