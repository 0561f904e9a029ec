"""Timing a TCP connection: over loopback with real sockets, and what is made of the bytes that arrive."""

import socket
import threading
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import UnavailableError
from fabricd.measure import tcp
from fabricd.measure.burst import BURST_BYTES, steady_rate

HERE = "127.0.0.1"


class Served:
    """The other end, in a thread."""

    def __init__(self, client: str = HERE, address: str = HERE) -> None:
        self.listener = tcp.listen(address, "lo")
        self.port = self.listener.getsockname()[1]
        self.token = tcp.new_token()
        self.thread = threading.Thread(target=tcp.serve, args=(self.listener, self.token, client))
        self.thread.start()

    def measure(self, token: str = "", **options) -> tcp.Timing:
        return tcp.measure(HERE, "lo", HERE, self.port, token or self.token, **options)

    def ended(self, seconds: float = 5.0) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()


def test_both_directions_and_the_round_trip_are_measured():
    other = Served()
    timing = other.measure()
    assert timing.reachable
    assert timing.up.bytes == timing.down.bytes == BURST_BYTES
    assert timing.up.bytes_per_second > 1e8
    assert timing.down.bytes_per_second > 1e8
    assert 0 < timing.round_trip_seconds < 0.1
    assert other.ended(1.0)


def test_ipv6_too():
    listener = tcp.listen("::1", "lo")
    token = tcp.new_token()
    thread = threading.Thread(target=tcp.serve, args=(listener, token, "::1"))
    thread.start()
    assert tcp.measure("::1", "lo", "::1", listener.getsockname()[1], token).reachable
    thread.join(5)


def test_the_listener_is_for_one_measurement():
    other = Served()
    assert other.measure().reachable
    assert other.ended(1.0)
    again = other.measure()
    assert not again.reachable
    assert again.reason.startswith("refused")


def test_who_does_not_know_the_token_gets_nothing_and_spoils_nothing():
    other = Served()
    wrong = other.measure("0" * 32)
    assert not wrong.reachable
    assert "then broke" in wrong.reason
    assert other.measure().reachable
    assert other.ended(1.0)


def test_who_comes_from_elsewhere_gets_nothing():
    other = Served(client="127.0.0.9")
    assert not other.measure().reachable
    other.listener.shutdown(socket.SHUT_RDWR)
    assert other.ended(1.0)


def test_strangers_cannot_hold_it_open(monkeypatch):
    monkeypatch.setattr(tcp, "_STEP_SECONDS", 0.1)
    monkeypatch.setattr(tcp, "SERVE_SECONDS", 1.0)
    other = Served()
    silent = [socket.create_connection((HERE, other.port)) for _ in range(3)]
    begun = time.monotonic()
    assert other.ended()
    assert time.monotonic() - begun < 2.0
    for one in silent:
        one.close()


def test_it_ends_when_nobody_comes(monkeypatch):
    monkeypatch.setattr(tcp, "SERVE_SECONDS", 0.2)
    assert Served().ended(2.0)


def test_refused_is_told_from_no_answer():
    with socket.socket() as closed:
        closed.bind((HERE, 0))
        refused = tcp.measure(HERE, "lo", HERE, closed.getsockname()[1], "t")
    assert refused.reason.startswith("refused")
    # A listener whose queue is full answers nobody, as a firewall that drops.
    with socket.socket() as full:
        full.bind((HERE, 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.create_connection((HERE, port))]
        silent = tcp.measure(HERE, "lo", HERE, port, "t", connect_seconds=0.3)
        assert silent.reason == "no answer within 0.3 s: nothing comes back, or a firewall drops it"
        waiting[0].close()


def test_no_way_is_told():
    # 203.0.113.0/24 is for documentation and leads nowhere through the loopback interface (RFC 5737).
    timing = tcp.measure(HERE, "lo", "203.0.113.7", 9, "t", connect_seconds=0.3)
    assert not timing.reachable
    assert timing.reason.startswith(("unreachable", "no answer", "cannot connect"))


def test_an_address_that_is_not_of_this_host_is_no_network_that_is_down():
    with pytest.raises(UnavailableError, match=r"203\.0\.113\.7 is not on lo any more"):
        tcp.measure("203.0.113.7", "lo", HERE, 9, "t")


def test_an_end_that_breaks_off_is_told():
    with socket.socket() as listener:
        listener.bind((HERE, 0))
        listener.listen()

        def rude():
            connection, _ = listener.accept()
            connection.recv(100)
            connection.close()

        thread = threading.Thread(target=rude)
        thread.start()
        timing = tcp.measure(HERE, "lo", HERE, listener.getsockname()[1], tcp.new_token())
        thread.join()
    assert not timing.reachable
    assert timing.busy
    assert "then broke" in timing.reason


def other_end(*answers):
    """Accept as many connections; on each, read what is said first, answer, and be silent."""
    listener = socket.socket()
    listener.bind((HERE, 0))
    listener.listen()

    def serve():
        with listener:
            for answer in answers:
                connection, _ = listener.accept()
                with connection, suppress(ConnectionResetError):  # the client closes without lingering
                    answer(connection)
                    while connection.recv(1 << 20):
                        pass

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return listener.getsockname()[1], thread


def echo_and_take(connection):
    """Do the first connection's part, and say that all of the burst came."""
    connection.recv(33, socket.MSG_WAITALL)
    while connection.recv(1) == b"p":
        connection.sendall(b"p")
    connection.sendall(tcp._RESULT.pack(BURST_BYTES, 1e9))


def test_an_end_that_is_too_busy_to_answer_is_not_unreachable_for_that(impatient):
    port, thread = other_end(lambda connection: None)
    timing = tcp.measure(HERE, "lo", HERE, port, tcp.new_token())
    thread.join(5)
    assert timing.busy
    assert timing.up is None
    assert timing.reason.startswith("timed out: the connection was made")


def test_an_end_that_answers_but_sends_no_burst_is_measured_again(impatient):
    port, thread = other_end(echo_and_take, lambda connection: None)
    timing = tcp.measure(HERE, "lo", HERE, port, tcp.new_token())
    thread.join(5)
    assert timing.busy
    assert timing.up.bytes == BURST_BYTES
    assert timing.reason.startswith("small packets pass")


def test_large_packets_that_are_lost_are_told_by_the_end_that_waits_for_them(impatient, monkeypatch):
    monkeypatch.setattr(tcp, "send_burst", lambda connection: None)
    other = Served()
    timing = other.measure()
    assert not timing.reachable
    assert not timing.busy
    assert timing.reason == "small packets pass and large ones do not: do the MTUs agree?"
    other.listener.shutdown(socket.SHUT_RDWR)
    assert other.ended()


class TestSteadyRate:
    def arrivals(self, rate: float, *, burst: int = 0, seconds: float = 0.5, chunk: int = 64 * 1024):
        """Arrivals through a token bucket: ``burst`` bytes at once, then ``rate`` bytes/s."""
        samples = [(0.0, max(burst, 1))]
        while (at := (samples[-1][1] + chunk - burst) / rate) < seconds and samples[-1][1] < BURST_BYTES:
            samples.append((at, samples[-1][1] + chunk))
        return samples

    @pytest.mark.parametrize("burst", [0, 256 << 10, 4 << 20])
    def test_a_token_bucket_does_not_fool_it(self, burst):
        assert steady_rate(self.arrivals(25e6, burst=burst)) == pytest.approx(25e6, rel=0.03)

    def test_a_receiver_that_was_held_up_does_not_fool_it(self):
        """Half a second of nothing, then all that had gathered at the speed of memory."""
        samples = [(0.0, 1000), (0.45, 1000), (0.4501, 11_000_000), (0.5, 12_500_000)]
        assert steady_rate(samples) == pytest.approx(25e6, rel=0.01)

    def test_too_little_to_tell(self):
        assert steady_rate([(1.0, 100)]) == 0.0
        assert steady_rate([(1.0, 100), (1.0, 200)]) == 0.0
        assert steady_rate([(1.0, 100), (1.5, 100)]) == 0.0

    @given(st.lists(st.tuples(st.floats(1e-6, 0.1), st.integers(1, 1 << 20)), min_size=2, max_size=50))
    def test_it_is_never_above_what_passed_in_all(self, steps):
        samples = [(0.0, 1)]
        for seconds, count in steps:
            samples.append((samples[-1][0] + seconds, samples[-1][1] + count))
        (begun, first), (ended, total) = samples[0], samples[-1]
        assert 0 < steady_rate(samples) <= (total - first) / (ended - begun) * 1.000001
