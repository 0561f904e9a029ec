"""Ranks that meet trouble: ``python -m tests.e2e.rank_scenes SCENE``. A scene raises what its test is about."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import fabric_client
from fabric_client import Communicator, create_communicator, progress

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


def lives_in_a_thread() -> None:
    """A communicator is made, used and closed by a thread that is not the main one, beside a thread that computes."""
    found = []

    def live() -> None:
        with create_communicator() as comm:
            found.append(sum_of_ranks(comm))

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    say(fine=found == [True])


def forks_while_others_wait() -> None:
    """Workers forked between operations, as data loaders do, that end by themselves while operations go on."""
    with create_communicator() as comm:
        children = []
        for _ in range(3):
            child = os.fork()
            if child == 0:
                sys.exit(0)  # with all exit handlers
            children.append(child)
            assert sum_of_ranks(comm)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        say(fine=sum_of_ranks(comm), codes=codes)


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


def creates_twice() -> None:
    """One process asks for a second communicator after the end of the first."""
    create_communicator().close()
    try:
        create_communicator(group="another")
    except fabric_client.CommunicatorError as error:
        say(said=str(error))


def forks() -> None:
    """A forked child neither disturbs the parent nor hangs, and does not keep a killed parent alive for others."""
    comm = create_communicator()
    comm.all_reduce(ONES)
    if comm.rank == 0:
        child = os.fork()
        if child == 0:
            try:
                comm.all_reduce(ONES)
            except fabric_client.CommunicatorError as error:
                say(child=str(error))
            sys.exit(7)  # with all exit handlers
        say(status=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    fine = sum_of_ranks(comm)
    if comm.rank == 0:
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
        say(fine=fine, sleeper=child)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.all_reduce(ONES)


def has_children() -> None:
    """A program that a rank starts is no rank, and inherits nothing of one."""
    with create_communicator() as comm:
        comm.barrier()
        code = (
            "from mpi4py import MPI; import os; "
            "print(MPI.COMM_WORLD.size, [name for name in os.environ if name.startswith(('PMI', 'UCX_'))])"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True)
        say(child=done.stdout.strip())


def message_too_long() -> None:
    """A message that is longer than its receiver expects."""
    comm = create_communicator()
    if comm.rank == 0:
        comm.send(np.ones(100), 1)
    else:
        comm.recv(np.ones(10), 0)


def message_too_short() -> None:
    """A message that is shorter than its receiver expects: an error there, and the ranks stay in step."""
    with create_communicator() as comm:
        if comm.rank == 0:
            comm.send(np.ones(10), 1)
        else:
            try:
                comm.recv(np.ones(100), 0)
            except fabric_client.InputError as error:
                say(said=str(error))
        assert sum_of_ranks(comm)


def threads() -> None:
    """Messages from several threads beside collectives of the main thread."""
    with create_communicator() as comm:
        peer = 1 - comm.rank
        wrong = []

        def talk(tag: int) -> None:
            for turn in range(20):
                out = np.empty(2000)
                comm.sendrecv(np.full(2000, comm.rank * 100.0 + tag + turn), peer, out, peer, tag=tag)
                if not (out == peer * 100 + tag + turn).all():
                    wrong.append((tag, turn))

        talkers = [threading.Thread(target=talk, args=(tag,)) for tag in (1, 2, 3)]
        for talker in talkers:
            talker.start()
        fine = all(sum_of_ranks(comm) for _ in range(20))
        for talker in talkers:
            talker.join()
        say(fine=fine and not wrong)


def after_mpi() -> None:
    """MPI was started by the program before."""
    from mpi4py import MPI

    assert MPI.Is_initialized()
    create_communicator()


def leaves_nothing_open() -> None:
    """After close, no socket to the daemon and no thread of ours is left."""
    with create_communicator() as comm:
        assert sum_of_ranks(comm)
    left = []
    for entry in list(Path("/proc/self/fd").iterdir()):
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as found:
                if found.family in (socket.AF_INET, socket.AF_INET6) and found.getpeername():
                    left.append(str(found.getpeername()))
        except OSError:
            continue
    say(sockets=left, threads=[thread.name for thread in threading.enumerate() if thread.name == "fabricd-watch"])


if __name__ == "__main__":
    globals()[sys.argv[1]]()
