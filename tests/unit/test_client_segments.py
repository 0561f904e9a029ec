"""How large reductions are cut, and in which order their pieces run."""

import os

import pytest

pytest.importorskip("mpi4py")
from fabric_client.engine.mpi_requests import UNDER_WAY, drive_on
from fabric_client.engine.piece_size import PieceSize, choose_piece_size
from fabric_client.engine.segments import Crowding, Segments
from fabricd.errors import EngineError
from fabricd.model.path import Transport
from fabricd.model.plan import NetworkChoice

MIB = 1 << 20


@pytest.fixture
def cores(monkeypatch):
    def have(*cpus):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus))

    have(0, 1)
    return have


def cached(root, cpu, *caches):
    """Write a processor's caches as sysfs tells them: level, size, shared_cpu_map."""
    for number, told in enumerate(caches):
        index = root / f"devices/system/cpu/cpu{cpu}/cache/index{number}"
        index.mkdir(parents=True)
        for name, text in zip(("level", "size", "shared_cpu_map"), told, strict=True):
            (index / name).write_text(text + "\n")
    return root


def test_a_piece_fits_into_a_ranks_share_of_the_last_cache(tmp_path, cores):
    root = cached(tmp_path, 0, ("1", "32K", "1"), ("2", "1024K", "1"), ("3", "32768K", "3"))
    piece = choose_piece_size(2, 2, sys_root=root)
    assert piece == PieceSize(2 * MIB, "an L3 cache of 32M for 2 ranks")
    assert choose_piece_size(1, 1, sys_root=root).nbytes == 4 * MIB


def test_ranks_are_taken_to_be_spread_over_the_caches(tmp_path, cores):
    cores(*range(32))  # four caches of 8 CPUs
    root = cached(tmp_path, 0, ("3", "32768K", "00000000,000000ff"))
    assert choose_piece_size(8, 8, sys_root=root).nbytes == 2 * MIB
    assert choose_piece_size(32, 32, sys_root=root).nbytes == MIB // 2
    cores(*range(8))  # a job that may use one of them only
    assert choose_piece_size(8, 8, sys_root=root).nbytes == MIB // 2


def test_where_pieces_cost_more_there_are_few(tmp_path, cores):
    root = cached(tmp_path, 0, ("3", "32768K", "3"))
    shared = choose_piece_size(3, 3, sys_root=root)
    assert shared == PieceSize(16 * MIB, "3 ranks share 2 CPUs, which each piece switches between")
    assert choose_piece_size(2, 1, sys_root=root).nbytes == 16 * MIB


def network(latency, bandwidth, transport=Transport.ETHERNET):
    return NetworkChoice(
        network="net", transport=transport, latency_seconds=latency, bandwidth_bytes_per_second=bandwidth
    )


@pytest.mark.parametrize(
    ("size", "joined", "piece"),
    [
        (2, network(10e-6, 1e9), PieceSize(MIB // 4, "an L2 cache of 1M")),
        (2, network(50e-6, 1e9), PieceSize(MIB, "50 us at 1 GB/s over net")),
        (8, network(50e-6, 1e9), PieceSize(4 * MIB, "50 us at 1 GB/s over net")),
        (2, network(5e-3, 1e9, Transport.INTERNET), PieceSize(16 * MIB, "5 ms at 1 GB/s over net")),
        (2, network(None, 1e9), PieceSize(16 * MIB, "how fast net is is not known")),
        (
            2,
            network(2e-6, 25e9, Transport.INFINIBAND),
            PieceSize(16 * MIB, "ranks on other hosts: as few pieces as memory is reused with"),
        ),
    ],
)
def test_by_tcp_a_piece_fits_into_a_cpus_own_cache_unless_the_way_is_long(tmp_path, cores, size, joined, piece):
    root = cached(tmp_path, 0, ("1", "32K", "1"), ("2", "1024K", "1"), ("3", "32768K", "3"))
    assert choose_piece_size(size, 1, joined, sys_root=root) == piece


def test_by_tcp_a_cache_that_is_not_told_is_assumed(tmp_path, cores):
    piece = choose_piece_size(2, 1, network(1e-6, 1e9), sys_root=tmp_path)
    assert piece == PieceSize(MIB // 4, "the L2 cache's size is unknown")


@pytest.mark.parametrize(
    "told", [(), (("x", "32768K", "3"),), (("3", "K", "3"),), (("3", "0K", "3"),), (("3", "32768K", "0"),)]
)
def test_a_cache_that_is_not_told_is_assumed(tmp_path, cores, told):
    assert choose_piece_size(2, 2, sys_root=cached(tmp_path, 0, *told)) == PieceSize(MIB, "the cache's size is unknown")


class Operation:
    """Pieces that end when they are told to."""

    def __init__(self, name, log):
        self.name = name
        self.log = log
        self.ready = 0
        self.error = None

    def start(self, part):
        self.log.append((self.name, part.start, part.stop))
        return self

    def test(self):
        if self.error is not None:
            raise self.error
        self.ready -= 1
        return self.ready >= 0


class Alone:
    """MPI's world of one rank, as far as it is asked."""

    def Iallreduce(self, *buffers):  # noqa: N802 - as mpi4py spells it
        return self

    def Test(self, status):  # noqa: N802
        return True


@pytest.fixture
def segments():
    yield Segments(Alone(), PieceSize(40, "for a test"))
    assert UNDER_WAY == []


def test_pieces_are_alike_and_run_one_after_another(segments):
    log = []
    operation = Operation("a", log)
    pending = segments.run(25, 100, operation.start)
    assert log == [("a", 0, 9)]
    assert not pending.test()
    operation.ready = 1
    assert not pending.test()
    assert log == [("a", 0, 9), ("a", 9, 18)]
    operation.ready = 2
    assert pending.test()
    assert log == [("a", 0, 9), ("a", 9, 18), ("a", 18, 27)]


def test_operations_run_in_the_order_of_their_starts_whichever_is_waited_for(segments):
    log = []
    first, second = Operation("a", log), Operation("b", log)
    works = [segments.run(2, 80, operation.start) for operation in (first, second)]
    second.ready = 9
    assert not works[1].test()
    assert log == [("a", 0, 1)]
    first.ready = 9
    drive_on()  # as any wait does
    assert log == [("a", 0, 1), ("a", 1, 2), ("b", 0, 1), ("b", 1, 2)]
    assert [work.test() for work in works] == [True, True]


def test_an_error_ends_all_and_is_told_by_each(segments):
    log = []
    first, second = Operation("a", log), Operation("b", log)
    works = [segments.run(2, 80, operation.start) for operation in (first, second)]
    first.error = EngineError("a connection broke")
    drive_on()  # whoever waits for something else is not told
    for work in [*works, works[0]]:
        with pytest.raises(EngineError, match="a connection broke"):
            work.test()
    assert log == [("a", 0, 1)]


def test_a_piece_whose_start_was_interrupted_is_not_started_again(segments):
    log = []
    operation = Operation("a", log)
    pending = segments.run(2, 80, operation.start)

    def interrupted(part):
        raise KeyboardInterrupt

    operation.ready, pending._start = 1, interrupted
    with pytest.raises(KeyboardInterrupt):
        pending.test()
    pending._start = operation.start
    operation.ready = 9
    with pytest.raises(EngineError, match="interrupted"):
        pending.test()
    assert log == [("a", 0, 1)]


def test_nothing_is_started_once_it_is_given_up(segments):
    log = []
    operation = Operation("a", log)
    pending = segments.run(2, 80, operation.start)
    segments.abandon()
    operation.ready = 9
    assert not pending.test()
    assert log == [("a", 0, 1)]


def test_it_may_be_given_up_in_the_middle_of_a_step(segments):
    """As a signal's handler does that ends the group."""
    log = []
    operation = Operation("a", log)
    pending = segments.run(4, 160, operation.start)

    def start(part):
        segments.abandon()
        return operation.start(part)

    operation.ready, pending._start = 9, start
    assert not pending.test()
    assert not pending.test()
    assert log == [("a", 0, 1), ("a", 1, 2)]


def test_a_process_that_is_often_displaced_is_crowded():
    now, switches = [0.0], [1000]
    crowding = Crowding(lambda: switches[0], lambda: now[0])
    assert not crowding.look()
    now[0], switches[0] = 0.05, 1100
    assert not crowding.look()  # too short to tell
    now[0] = 1.0
    assert crowding.look()
    now[0], switches[0] = 3.0, 1190
    assert not crowding.look()


def test_crowded_ranks_cut_into_few_pieces(segments, monkeypatch):
    log = []
    monkeypatch.setattr(Crowding, "look", lambda self: True)
    operation = Operation("a", log)
    pending = segments.run(33 * MIB, 33 * MIB, operation.start)
    assert log == [("a", 0, 11 * MIB)]
    operation.ready = 3
    assert pending.test()
