"""A rank whose path gets worse while it is idle; lines of JSON out, a line in when the path is good again."""

import json
import sys
import time
from typing import Any

import numpy as np

from fabric_client import CommunicatorError, create_communicator


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def main() -> None:
    """Wait until the plan is stale, rebuild in vain, and go on when told to."""
    with create_communicator() as comm:
        say(stale=comm.stale, total=int(comm.all_reduce(np.ones(1, int))[0]))
        deadline = time.monotonic() + 20
        while not comm.stale and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            comm.rebuild(timeout=20)
        except CommunicatorError as error:
            say(stale=comm.stale, refused=str(error))
        sys.stdin.readline()
        say(total=int(comm.all_reduce(np.ones(100_000, int))[0]), group=comm.rebuild(timeout=20).group)


if __name__ == "__main__":
    main()
