"""Ranks with several communicators, and with operations under way: ``python -m tests.e2e.rank_family SCENE``."""

import json
import os
import signal
import sys
import time
from typing import Any

import numpy as np

from fabric_client import Communicator, CommunicatorError, FabricError, RankLostError, Work, create_communicator


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def total(comm: Communicator) -> int:
    """Return the sum of all ranks' ones."""
    return int(comm.all_reduce(np.ones(1000, int))[-1])


def second_group() -> None:
    """Ranks 2 and 0 make a group of their own, with places of its own; all three make another one."""
    with create_communicator() as comm:
        found = []
        if comm.rank != 1:
            with create_communicator(f"{comm.group}-two", rank=comm.rank // -2 + 1, world_size=2) as two:
                got = two.all_gather(np.array([comm.rank]))
                found = got.reshape(-1).tolist()
        three = create_communicator(f"{comm.group}-three", rank=comm.rank, world_size=3)
        works = [comm.all_reduce(np.ones(5), async_op=True), three.all_reduce(np.ones(5), async_op=True)]
        sums = [float(work.wait()[0]) for work in reversed(works)]
        say(found=found, sums=sums, explain=three.explain())


def stranger() -> None:
    """Ranks 0 and 1 have a communicator and meet rank 2, which has none, in another group."""
    rank = int(os.environ["RANK"])
    first = create_communicator(world_size=2) if rank < 2 else None
    begun = time.monotonic()
    try:
        create_communicator(f"{os.environ['FABRICD_GROUP']}-all", rank=rank, world_size=3, timeout=20)
    except FabricError as error:
        say(kind=type(error).__name__, told=str(error), seconds=time.monotonic() - begun)
    if first is not None:
        say(total=total(first))
        first.close()


def rebuilds() -> None:
    """A new plan that is the old one needs no restart."""
    with create_communicator() as comm:
        again = comm.rebuild()
        more = again.rebuild()
        say(names=[again.group, more.group], sums=[total(comm), total(again), total(more)], stale=comm.stale)
        again.close()
        say(after=total(comm))


def killed_under_way() -> None:
    """Rank 1 is killed while the others have several operations under way, on two communicators."""
    comm = create_communicator()
    pair = comm.split(0 if comm.rank != 2 else 1)
    assert pair is not None
    comm.barrier()
    works: list[Work] = []
    if comm.rank != 1:
        works += [comm.all_reduce(np.ones(100_000), async_op=True) for _ in range(3)]
        works.append(pair.all_gather(np.ones(10), async_op=True))
        if comm.rank == 0:
            works.append(comm.recv(np.empty(7), 1, async_op=True))
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    said = []
    for work in works:
        try:
            work.wait()
        except RankLostError as error:
            said.append([list(error.ranks), str(error)])
        except CommunicatorError as error:
            said.append([[], str(error)])
    try:
        pair.barrier()
    except CommunicatorError as error:
        say(said=said, seconds=time.monotonic() - begun, done=all(work.done() for work in works), then=str(error))


def leaves_works() -> None:
    """Ends without waiting for what is under way, and without close()."""
    comm = create_communicator()
    comm.all_reduce(np.ones(1_000_000), async_op=True)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.send(np.ones(500_000), after, async_op=True)
    got = comm.recv(np.empty(500_000), before, async_op=True)
    say(got=bool((got.wait() == 1).all()))


def main() -> None:
    """Play the scene."""
    globals()[sys.argv[1]]()


if __name__ == "__main__":
    main()
