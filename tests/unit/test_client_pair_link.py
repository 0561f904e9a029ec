"""Sums of two ranks by a connection of their own: both ends in one process, joined by the kernel's TCP."""

import signal
import socket
import threading
from contextlib import closing, contextmanager, suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric_client.engine.mpi_requests import UNDER_WAY, drive_on
from fabric_client.engine.pair_connect import Place, _accept, _call, new_socket
from fabric_client.engine.pair_link import MOST_BYTES, PairLink
from fabric_client.pending import ENDED
from fabricd.errors import EngineError

DTYPES = ("i1", "u2", "i4", "f4", "f8", "c16", "g")


@contextmanager
def two_ends(buffer=None, drive=lambda: None):
    """Yield both ends. A small ``buffer`` makes the kernel take messages in parts."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as one:
        if buffer is not None:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                one.setsockopt(socket.SOL_SOCKET, option, buffer)
        one.connect(server.getsockname())
        other, _ = server.accept()
        if buffer is not None:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        before = len(UNDER_WAY)
        with closing(PairLink(one, drive)) as mine, closing(PairLink(other, drive)) as its:
            yield mine, its
        assert len(UNDER_WAY) == before


def until(*pending):
    """Test each in turn until all have ended, each once after that."""
    waiting = list(pending)
    for _ in range(100_000):
        waiting = [one for one in waiting if one is not ENDED and not one.test()]
        if not waiting:
            return
    pytest.fail(f"{len(waiting)} have not ended")


@st.composite
def sums(draw):
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 16), max_size=3)))
    if draw(st.integers(0, 9)) == 0:
        shape = (MOST_BYTES // np.dtype(dtype).itemsize,)
    return dtype, shape, draw(st.booleans()), draw(st.booleans())


@given(st.lists(sums(), min_size=1, max_size=12), st.randoms(use_true_random=False), st.sampled_from([None, 2048]))
def test_every_sum_is_right_in_whatever_order_they_are_tested(asked, chance, buffer):
    with two_ends(buffer) as ends:
        pending, results = [[], []], []
        for dtype, shape, *in_place in asked:
            parts = [np.full(shape, 3 + len(results) % 5, dtype), np.full(shape, 2, dtype)]
            expected = parts[0] + parts[1]
            for end in chance.sample((0, 1), 2):
                out = parts[end] if in_place[end] else np.zeros(shape, dtype)
                pending[end].append(ends[end].start(parts[end], out))
                results.append((out, expected))
        both = pending[0] + pending[1]
        until(*chance.sample(both, len(both)))
        for out, expected in results:
            np.testing.assert_array_equal(out, expected)


def test_overflows_are_infinite_in_silence_and_elsewhere_told_as_before():
    most = np.full(4, np.finfo("f4").max)
    with two_ends() as (mine, its):
        out = np.zeros(4, "f4")
        until(its.start(most, most.copy()), mine.start(most, out))
        assert np.isinf(out).all()
    with pytest.warns(RuntimeWarning, match="overflow"):
        most + most


def test_a_sum_whose_other_half_is_there_ends_when_it_is_started():
    with two_ends() as (mine, its):
        first, out = its.start(np.ones(3), np.empty(3)), np.empty(3)
        assert first is not ENDED
        assert mine.start(np.full(3, 2.0), out) is ENDED
        assert out.tolist() == [3, 3, 3]
        until(first)


def test_arrays_of_other_sizes_are_an_error_on_both_sides_which_stays():
    with two_ends() as (mine, its):
        pending = mine.start(np.ones(3), np.empty(3)), mine.start(np.ones(3), np.empty(3))
        with pytest.raises(EngineError, match="all_reduce of 40 bytes: the other rank's is of 24 bytes"):
            until(its.start(np.ones(5), np.empty(5)))
        for one in pending:
            with pytest.raises(EngineError, match="all_reduce of 24 bytes: the other rank's is of 40 bytes") as caught:
                until(one)
            assert not caught.value.details.get("peer_may_be_lost")


def test_arrays_of_as_many_bytes_and_another_dtype_are_told_as_such():
    with two_ends() as (mine, its):
        first = mine.start(np.ones(4, "f4"), np.empty(4, "f4"))
        told = "all_reduce of 16 bytes: the other rank's is of another dtype, and here of "
        with pytest.raises(EngineError, match=f"{told}int32"):
            until(its.start(np.ones(4, "i4"), np.empty(4, "i4")))
        with pytest.raises(EngineError, match=f"{told}float32"):
            until(first)


class Never:
    """An all_reduce by MPI to which the other rank does not come."""

    def test(self):
        return False


def test_a_sum_here_and_another_by_mpi_there_are_told():
    with two_ends() as (mine, its):
        until(mine.start(np.ones(3), np.empty(3)), its.start(np.ones(3), np.empty(3)))
        its.start(np.ones(3), np.empty(3))
        with pytest.raises(EngineError, match="all_reduce of 800000 bytes: the other rank's is a sum of 24 bytes"):
            until(mine.beside(Never(), 800000))


def test_who_is_ahead_is_not_taken_for_out_of_step():
    """The other rank's next sum may come before the end of what goes by MPI."""
    with two_ends() as (mine, its):
        by_mpi, its_by_mpi = mine.beside(Never(), 8), its.beside(Never(), 8)
        ahead = its.start(np.ones(3), np.empty(3))
        for _ in range(1000):
            assert not by_mpi.test()
        later = mine.start(np.ones(3), np.empty(3))
        until(ahead, later)
        for _ in range(1000):
            assert not its_by_mpi.test()


def test_an_end_that_goes_is_told_after_what_it_had_sent():
    with two_ends() as (mine, its):
        its.start(np.ones(3), np.empty(3))
        its.close()
        out = np.empty(3)
        until(mine.start(np.ones(3), out))
        assert out.tolist() == [2, 2, 2]
        with pytest.raises(EngineError, match="connection of the two ranks ended") as caught:
            until(mine.start(np.ones(3), out))
        assert caught.value.details["peer_may_be_lost"]
        drive_on()  # which another communicator's operation does


def test_what_is_not_there_soon_has_mpi_driven_on():
    driven = []
    with two_ends(drive=lambda: driven.append(1)) as (mine, its):
        waiting = mine.start(np.ones(3), np.empty(3))
        for _ in range(100):
            assert not waiting.test()
        assert 0 < len(driven) < 100
        until(its.start(np.ones(3), np.empty(3)), waiting)


def test_what_ends_with_the_group_leaves_the_reason_to_the_group():
    """As where another thread, or a signal's handler, has ended it."""
    with two_ends() as (mine, _):
        waiting = mine.start(np.ones(3), np.empty(3))
        mine.close()
        with pytest.raises(EngineError, match="was closed") as caught:
            until(waiting)
        assert caught.value.details["peer_may_be_lost"]


def test_mpi_is_driven_on_also_by_sums_that_nobody_waits_for():
    driven = []
    with two_ends(drive=lambda: driven.append(1)) as (mine, its):
        for _ in range(100):
            first = its.start(np.ones(3), np.empty(3))
            assert mine.start(np.ones(3), np.empty(3)) is ENDED
            until(first)
    assert 10 <= len(driven) <= 20


def test_what_waits_for_mpi_drives_sums_on():
    with two_ends(buffer=2048) as (mine, its):
        arrays = [np.ones(8000), np.empty(8000)]
        waiting = mine.start(*arrays)
        its.start(np.ones(8000), out := np.empty(8000))
        for _ in range(10_000):
            drive_on()
        assert out[-1] == 2
        until(waiting)
        assert arrays[1][-1] == 2


def test_many_shapes_are_not_remembered_for_ever():
    with two_ends() as (mine, its):
        for count in range(600):
            until(its.start(np.ones(count), np.empty(count)), mine.start(np.ones(count), np.empty(count)))
        assert len(mine._forms) <= 256


def test_ctrl_c_leaves_a_right_sum_or_an_error():
    def interrupt(*_):
        raise KeyboardInterrupt

    def start_other(its):
        with suppress(EngineError):  # this end was interrupted, and is gone
            its.start(np.full(3, 2.0), np.empty(3))

    before, interrupted, errors = signal.signal(signal.SIGALRM, interrupt), 0, []
    try:
        with two_ends() as (mine, its):
            for number in range(200):
                array = np.full(3, 1.0)
                pending = mine.start(array, array)
                peer = threading.Timer(0.0005, start_other, (its,))
                peer.start()
                signal.setitimer(signal.ITIMER_REAL, 0.0004 + number * 1e-6)
                try:
                    until(pending)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupted += 1
                peer.join()
                try:
                    until(pending)
                except EngineError as error:
                    errors.append(str(error))
                    break
                assert array.tolist() == [3, 3, 3]
                its.advance()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted
    assert errors in ([], ["a sum was interrupted in the moment in which it came or went"])


def test_strangers_do_not_take_the_place_of_the_other_rank():
    place = Place("lo", "127.0.0.1")
    with new_socket(place) as listener:
        listener.listen()
        where, found = listener.getsockname(), []
        accepting = threading.Thread(
            target=lambda: found.append(_accept(listener, say=b"a" * 16, hear=b"b" * 16)), daemon=True
        )
        accepting.start()
        with socket.create_connection(where), socket.create_connection(where) as liar:  # one says nothing
            liar.sendall(b"x" * 16)
            other = _call(place, where, say=b"b" * 16, hear=b"a" * 16)
            accepting.join(5)
        with other, found[0] as one:
            assert one.getpeername() == other.getsockname()


def test_who_cannot_connect_goes_without():
    place = Place("lo", "127.0.0.1")
    with new_socket(place) as listener:
        nobody = listener.getsockname()
    assert _call(place, nobody, say=b"b" * 16, hear=b"a" * 16) is None
    assert _call(Place("lo", "192.0.2.1"), nobody, say=b"b" * 16, hear=b"a" * 16) is None  # no address of this machine
