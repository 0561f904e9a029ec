"""Ranks whose process does more than communicate: ``python -m tests.e2e.rank_process SCENE``."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import fabric_client
from fabric_client import create_communicator
from tests.e2e.rank_scenes import ONES, say, sum_of_ranks


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
