"""Ranks that meet trouble: ``python -m tests.e2e.rank_scenes SCENE``. A scene raises what its test is about."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fabric_client import Communicator, create_communicator, progress, runner

ONES = np.ones(50_000)


def say(**facts: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(facts), flush=True)


def sum_of_ranks(comm: Communicator) -> bool:
    """All_reduce and tell whether the result is right."""
    total = comm.all_reduce(np.full(1000, float(comm.rank + 1)))
    return bool((total == comm.size * (comm.size + 1) / 2).all())


def works() -> None:
    """The plain case, said in detail."""
    with create_communicator() as comm:
        from mpi4py import MPI

        fine = sum_of_ranks(comm)
        with ThreadPoolExecutor(1) as other:
            main = [MPI.Is_thread_main(), other.submit(MPI.Is_thread_main).result()]
        say(rank=comm.rank, size=comm.size, fine=fine, main_thread=main, explain=comm.explain())


def killed() -> None:
    """Rank 1 is killed in the middle of a loop of all_reduces."""
    comm = create_communicator()
    big = np.ones(300_000)
    for turn in range(1_000_000):
        if comm.rank == 1 and turn == 30:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(big, out=big, op="max")


def killed_under_sends() -> None:
    """Rank 1 is killed, and rank 0 starts one message to it after another, which need no answer."""
    comm = create_communicator()
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    while True:
        comm.broadcast(ONES[:10], root=0)


def killed_in_start() -> None:
    """Rank 1 is killed when its MPI says the word of the second argument to PMI, or some ms after MPI began."""
    from fabric_client import pmi

    word = sys.argv[2]
    answer = pmi.PmiSession.answer

    def watched(self: pmi.PmiSession, line: str) -> str | None:
        if word.isdigit():
            threading.Timer(int(word) / 1000, os.kill, (os.getpid(), signal.SIGKILL)).start()
        elif f"cmd={word}" in line:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer(self, line)

    if os.environ["RANK"] == "1":
        pmi.PmiSession.answer = watched  # type: ignore[method-assign]
    comm = create_communicator(timeout=20)
    while True:
        comm.all_reduce(ONES)


def starts_when_told() -> None:
    """MPI goes on from its first word to PMI when the file of the second argument is there; then works and ends."""
    from fabric_client import pmi

    stop = Path(sys.argv[2])
    answer = pmi.PmiSession.answer

    def held(self: pmi.PmiSession, line: str) -> str | None:
        if "cmd=init" in line:
            say(started=True)
            while not stop.exists():
                time.sleep(0.01)
        return answer(self, line)

    pmi.PmiSession.answer = held  # type: ignore[method-assign]  # MPI's own words go through it
    try:
        works()
    finally:
        say(finally_ran=True)


def runs_until_told() -> None:
    """All_reduce until the file of the second argument is there, then close."""
    with create_communicator() as comm:
        turns, fine = 0, True
        say(started=True)
        while not comm.all_reduce(np.asarray(Path(sys.argv[2]).exists()), "logical_or"):
            fine = fine and sum_of_ranks(comm)
            turns += 1
            time.sleep(0.005)
    say(turns=turns, fine=fine)


def ends_early() -> None:
    """Rank 0 ends without a word while the others need it."""
    comm = create_communicator()
    if comm.rank != 0:
        comm.all_reduce(ONES)


def ends_without_close() -> None:
    """All ranks end their programs, not quite at once, and none closes."""
    comm = create_communicator()
    say(fine=sum_of_ranks(comm))
    time.sleep(0.2 * comm.rank)


def sends_and_ends() -> None:
    """Rank 0 ends as soon as its messages are sent, which is well before rank 1 receives them."""
    comm = create_communicator()
    numbers, array = range(100), np.zeros(4096, np.uint8)
    if comm.rank == 0:
        runner._EXIT_SECONDS = 0.05
        for number in numbers:
            comm.send(np.full_like(array, number), 1)
        return
    time.sleep(1.0)
    say(received=[int(comm.recv(array, 0).max()) for _ in numbers])


def fails() -> None:
    """Rank 0 raises; the others wait for it."""
    with create_communicator() as comm:
        if comm.rank == 0:
            raise ValueError("the secret of rank 0")
        comm.all_reduce(ONES)


def fails_without_with() -> None:
    """The same, without a with statement."""
    comm = create_communicator()
    if comm.rank == 0:
        raise ValueError("the secret of rank 0")
    comm.all_reduce(ONES)


def times_out() -> None:
    """Rank 0 comes too late for the others' patience."""
    comm = create_communicator()
    if comm.rank == 0:
        time.sleep(1.5)
        comm.all_reduce(ONES)
    comm.all_reduce(ONES, timeout=0.5)


def calls_something_else() -> None:
    """Rank 0 waits for a message that nobody sends, the others for a sum, one of them in the background."""
    progress.PATIENCE_SECONDS = 0.5
    comm = create_communicator(operation_timeout=2)
    comm.barrier()
    if comm.rank == 0:
        comm.recv(ONES.copy(), 1, timeout=4)
    elif comm.rank == 1:
        comm.all_reduce(ONES)
    else:
        comm.all_reduce(ONES, async_op=True).wait()


def is_interrupted() -> None:
    """Rank 1 gets Ctrl-C while it waits in the operation of the second argument, which rank 0 does not call."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    comm = create_communicator()
    if comm.rank == 1:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        match sys.argv[2]:
            case "recv":
                comm.recv(ONES.copy(), 0)
            case "all_reduce":
                comm.all_reduce(ONES)
            case "work":
                comm.all_reduce(ONES, async_op=True).wait()
    comm.recv(ONES.copy(), 1 - comm.rank)


def is_interrupted_while_joining() -> None:
    """Rank 0 gets Ctrl-C while it waits for a rank that does not come."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT)).start()
    create_communicator()


def ends_with_work_pending() -> None:
    """Rank 0 ends its program with an operation in the background that can never end, and does not close."""
    comm = create_communicator()
    comm.barrier()
    if comm.rank == 0:
        comm.all_reduce(ONES, async_op=True)
        return
    comm.recv(ONES.copy(), 0)


def is_stopped() -> None:
    """Rank 1 is stopped for longer than a lost rank is waited for, and goes on."""
    with create_communicator() as comm:
        if comm.rank == 1:
            waker = subprocess.Popen(["/bin/sh", "-c", f"sleep 4; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
            waker.wait()
        say(fine=sum_of_ranks(comm))


def waits_for_a_stopped_one() -> None:
    """Rank 1 is stopped for longer than the others wait in an operation."""
    comm = create_communicator()
    if comm.rank == 1:
        subprocess.Popen(["/bin/sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.all_reduce(ONES, timeout=1.0)


def aborts() -> None:
    """Rank 0 aborts the group with a reason."""
    comm = create_communicator()
    if comm.rank == 0:
        comm.abort("the loss is NaN")
    else:
        comm.barrier()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
