"""What MPI does not hear of its connections: real sockets, set as UCX sets its own, and another process behind them."""

import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from fabric_client.engine.held_ends import KEEPALIVE, HeldEnds

#: Connects, accepts, speaks and ends its connections when told to.
PEER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
ones = []
for line in sys.stdin:
    word, *port = line.split()
    if word == "call":
        ones.append(socket.create_connection(("127.0.0.1", int(port[0]))))
    elif word == "accept":
        ones.append(server.accept()[0])
    while word == "end" and ones:
        one = ones.pop()
        one.sendall(b"last words")
        one.close()
    print("done", flush=True)
"""


class Peer:
    """The other process, and this one's ends of connections to it."""

    def __init__(self, process, stack):
        self._process = process
        self._stack = stack
        self._port = int(process.stdout.readline())

    def tell(self, *words):
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def called(self, idle=None):
        """Return a connection to the other process."""
        one = self._stack.enter_context(socket.create_connection(("127.0.0.1", self._port)))
        if idle is not None:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
        self.tell("accept")
        return one

    def listener(self, address="127.0.0.1", *, reuse=False):
        one = self._stack.enter_context(socket.socket())
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
        one.bind((address, 0))
        one.listen()
        return one

    def come(self, listener):
        """Return a connection from the other process."""
        self.tell("call", listener.getsockname()[1])
        return self._stack.enter_context(listener.accept()[0])

    def mpi(self, held):
        """Return connections as UCX has them: to others, and from others, to what it listens on."""
        idle = int(held.variables[KEEPALIVE].removesuffix("500ms")) if held.variables else 10
        listener = self.listener()
        return self.called(idle), self.come(listener), listener


@pytest.fixture
def peer():
    with (
        subprocess.Popen(
            [sys.executable, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        ExitStack() as stack,
    ):
        yield Peer(process, stack)
        process.kill()


def hears_end(one, seconds=0.1):
    one.settimeout(seconds)
    try:
        return one.recv(10) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_an_end_is_not_heard_until_it_may_be(peer):
    held = HeldEnds({})
    *ours, listener = peer.mpi(held)
    assert held.hold() == 3  # what listens, what came, what was called
    ours.append(peer.come(listener))  # later
    peer.tell("end")
    for one in ours:
        assert one.recv(10) == b"last words"
        assert not hears_end(one)
        one.sendall(b"x")  # the kernel of the other side says that nobody is there
        assert not hears_end(one)
    held.release()
    assert all(hears_end(one, 5) for one in ours)


def test_connections_of_other_code_are_left_alone(peer):
    older = peer.called()
    held = HeldEnds({})
    others = [older, peer.called(), peer.come(peer.listener(reuse=True)), peer.come(peer.listener("0.0.0.0"))]
    held.hold()
    peer.tell("end")
    for one in others:
        one.recv(10)
        assert hears_end(one, 5)


def test_connections_of_a_process_to_itself_are_left_alone(peer):
    """When it is killed nobody would let its kernel hear of either end."""
    held = HeldEnds({})
    _, _, listener = peer.mpi(held)
    with socket.create_connection(listener.getsockname()) as calls, listener.accept()[0] as accepted:
        assert held.hold() == 3
        calls.close()
        assert hears_end(accepted, 5)


@pytest.mark.parametrize(
    ("transports", "held"),
    [(None, True), ("self,sm,tcp", True), ("all", True), ("^rc", True), ("self,sm", False), ("^tcp", False)],
)
def test_ucx_is_told_nothing_that_it_has_no_use_for(transports, held):
    environ = {} if transports is None else {"UCX_TLS": transports}
    assert bool(HeldEnds(environ).variables) is held


def test_whoever_sets_the_keepalive_hears_all(peer):
    held = HeldEnds({KEEPALIVE: "10s"})
    one, _, _ = peer.mpi(held)
    assert (held.hold(), held.variables) == (0, {})
    peer.tell("end")
    one.recv(10)
    assert hears_end(one, 5)
