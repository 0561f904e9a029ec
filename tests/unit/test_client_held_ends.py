"""What MPI does not hear of its connections: real sockets, set as UCX sets its own."""

import socket

import pytest

from fabric_client.engine.held_ends import KEEPALIVE, HeldEnds


class Ends:
    """Connections that MPI has, and one that somebody else has."""

    def __init__(self, environ):
        self.peer = socket.create_server(("127.0.0.1", 0))
        held = self.held = HeldEnds(environ)
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.listening.listen()
        self.called = socket.create_connection(self.peer.getsockname())
        seconds = int(held.variables[KEEPALIVE].removesuffix("500ms")) if held.variables else 10
        self.called.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        self.calls_called, _ = self.peer.accept()
        self.calls, self.accepted = self.come()
        self.other = socket.create_connection(self.peer.getsockname())
        self.calls_other, _ = self.peer.accept()

    def come(self):
        """Return both ends of a new connection to what MPI listens on."""
        calls = socket.create_connection(self.listening.getsockname())
        accepted, _ = self.listening.accept()
        return calls, accepted

    def close(self):
        for one in vars(self).values():
            if isinstance(one, socket.socket):
                one.close()


@pytest.fixture
def make():
    made = []

    def call(environ):
        made.append(Ends(environ))
        return made[-1].held, made[-1]

    yield call
    for one in made:
        one.close()


def hears_end(one, seconds=0.1):
    one.settimeout(seconds)
    try:
        return one.recv(10) == b""
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False


def test_an_end_is_not_heard_until_it_may_be(make):
    held, ends = make({})
    assert held.hold() == 3  # what listens, what came, what was called
    for mine, peer in ((ends.called, ends.calls_called), (ends.accepted, ends.calls)):
        peer.sendall(b"last words")
        peer.close()
        assert mine.recv(10) == b"last words"
        assert not hears_end(mine)
        mine.sendall(b"x")  # the kernel of the other side says that nobody is there
        assert not hears_end(mine)
    held.release()
    assert hears_end(ends.called, 5)
    assert hears_end(ends.accepted, 5)


def test_what_comes_later_is_held_as_well_and_let_go_with_the_rest(make):
    held, ends = make({})
    held.hold()
    calls, accepted = ends.come()
    with calls, accepted:
        calls.close()
        assert not hears_end(accepted)
        held.release()
        assert hears_end(accepted, 5)


def test_connections_of_other_code_are_left_alone(make):
    before = socket.create_server(("127.0.0.1", 0))
    with before, socket.create_connection(before.getsockname()) as older:
        newer, _ = before.accept()
        held, ends = make({})
        with newer, socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as anywhere:
            anywhere.listen()
            calls = [socket.create_connection(("127.0.0.1", one.getsockname()[1])) for one in (server, anywhere)]
            with calls[0], calls[1], server.accept()[0] as served, anywhere.accept()[0] as also_served:
                held.hold()
                pairs = ((ends.other, ends.calls_other), (older, newer), (served, calls[0]), (also_served, calls[1]))
                for mine, peer in pairs:
                    peer.close()
                    assert hears_end(mine, 5)


@pytest.mark.parametrize(
    ("transports", "held"),
    [(None, True), ("self,sm,tcp", True), ("all", True), ("^rc", True), ("self,sm", False), ("^tcp", False)],
)
def test_ucx_is_told_nothing_that_it_has_no_use_for(transports, held):
    environ = {} if transports is None else {"UCX_TLS": transports}
    assert bool(HeldEnds(environ).variables) is held


def test_whoever_sets_the_keepalive_hears_all(make):
    held, ends = make({KEEPALIVE: "10s"})
    assert (held.hold(), held.variables) == (0, {})
    ends.calls_called.close()
    assert hears_end(ends.called, 5)
