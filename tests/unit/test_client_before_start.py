"""Before an operation is started: what became of the group while this process did not run, and who needs to know."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fabric_client.connection import Connection
from fabric_client.engine.piece_size import PieceSize
from fabric_client.engine.segments import Segments
from fabric_client.locate import find_daemon
from fabric_client.membership import Membership
from fabric_client.rendezvous import Member, Rendezvous, new_claim
from fabric_client.runner import Runner
from fabric_client.watch import GroupWatch
from fabricd.errors import GroupAbortedError, RankLostError
from fabricd.model.plan import GroupPlan


class Daemon(BaseHTTPRequestHandler):
    """A group's event stream that calls the roll, of which it never takes an answer, and ends the group when told."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self._say({"kind": "roll"})
        self.server.ending.wait(30)
        self._say(*[{"kind": "left", "ranks": [0]}] * 1000, {"kind": "aborted"})
        self.server.ended.set()
        self.server.over.wait(30)
        self.close_connection = True

    def _say(self, *events):
        lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        self.wfile.write(b"%x\r\n%b\r\n" % (len(lines), lines))

    def do_PUT(self):
        self.server.asked.set()
        self.server.over.wait(30)
        self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        """Say nothing."""


@pytest.fixture
def daemon():
    with ThreadingHTTPServer(("127.0.0.1", 0), Daemon) as server:
        server.daemon_threads = True
        server.asked, server.ending, server.ended, server.over = (threading.Event() for _ in range(4))
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        yield server
        server.ending.set()
        server.over.set()
        server.shutdown()
        serving.join()


@pytest.fixture
def membership(daemon):
    """A rank that answers a roll call, and goes on to do so for as long as the test lasts."""
    connection = Connection(find_daemon(f"http://127.0.0.1:{daemon.server_port}"))
    rendezvous = Rendezvous(connection, Member("g", 0, 2, 0, new_claim()))
    made = Membership(rendezvous, GroupWatch(rendezvous), GroupPlan(engine="mpi", size=2, ranks=()))
    made.watch.start(timeout=10)
    assert daemon.asked.wait(10)
    yield made
    made.watch.stop()
    connection.close()


def test_who_was_stopped_hears_first_what_became_of_the_group(membership, daemon):
    assert membership.before_start(10.0, 9.5, "all_reduce") is None
    assert membership.before_start(10.0, 5.0, "all_reduce") is None, "there is nothing to hear"
    daemon.ending.set()
    assert daemon.ended.wait(10)
    assert isinstance(membership.before_start(10.0, 5.0, "all_reduce"), GroupAbortedError)
    assert isinstance(membership.before_start(10.0, 9.5, "all_reduce"), GroupAbortedError)


class Watch:
    """What has been heard."""

    alert = True

    def __init__(self, *, left):
        self.error = RankLostError("g", [1])
        self.error.details["left"] = left

    def failure(self, during):
        return self.error


class Engine:
    """One whose operations end at once."""

    name, rank, size = "test", 0, 2
    started = 0

    def start(self):
        self.started += 1
        return self

    def test(self):
        return True

    def abandon(self):
        pass


def runner_that_heard(*, left):
    membership = Membership(None, Watch(left=left), GroupPlan(engine="mpi", size=2, ranks=()))
    return Runner(Engine(), membership, "g", timeout=1.0, ranks_on_host=1)


def test_nothing_is_started_in_a_group_that_is_over():
    runner = runner_that_heard(left=False)
    with pytest.raises(RankLostError):
        runner.run("barrier", "barrier", None, 0, runner.engine.start)
    other = runner_that_heard(left=False)
    with pytest.raises(RankLostError):
        other.work("barrier", "barrier", None, 0, lambda: None, other.engine.start)
    assert runner.engine.started == other.engine.started == 0
    assert not runner.usable


def test_ranks_that_left_in_peace_may_not_be_needed():
    runner = runner_that_heard(left=True)
    runner.run("send", "send", None, 0, runner.engine.start)
    assert runner.engine.started == 1


def test_no_further_piece_is_started_in_a_group_that_is_over():
    told = [None, None, GroupAbortedError("over")]
    segments = Segments(None, PieceSize(40, "for a test"), lambda *_: told.pop(0))
    engine = Engine()
    pending = segments.run(4, 160, lambda part: engine.start())
    with pytest.raises(GroupAbortedError, match="over"):
        pending.test()
    assert engine.started == 2
