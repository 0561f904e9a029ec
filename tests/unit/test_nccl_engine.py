"""One rank of the NCCL engine, on CuPy's real binding, over the tests' library."""

import importlib
import time

import numpy as np
import pytest

from fabric_client.engine.device import DeviceArray
from fabric_client.engine.nccl_errors import MEANINGS, map_error
from fabric_client.ops import ReduceOp
from fabricd.errors import EngineError, InputError, OperationTimeoutError, RankLostError
from tests.support.nccl_library import HostArray, HostDevice, load

LOST = RankLostError("job", [3], during="all_reduce")


@pytest.fixture(scope="module")
def binding():
    pytest.importorskip("cupy", reason="CuPy is not installed")
    load()
    found = importlib.import_module("cupy.cuda.nccl")
    assert found.available
    return found


class Rank:
    """An engine of one rank, and what a daemon would say of its group."""

    def __init__(self, binding, call_limit=None):
        from fabric_client.engine.nccl import NcclEngine
        from fabric_client.engine.nccl_comm import NcclComm, Watchdog

        self.device = HostDevice("gpu0")
        self.device.library.shim_count_anew()
        self.failure = None
        watchdog = Watchdog(lambda what: self.failure, call_limit=call_limit)
        raw = binding.NcclCommunicator(1, binding.get_unique_id(), 0)
        self.engine = NcclEngine(NcclComm(binding, raw, self.device, watchdog), 0, 1)

    def all_reduce(self, values=(1.0, 2.0)):
        array = self.engine.arrays.as_input(HostArray(np.array(values, np.float32)))
        out = self.engine.arrays.as_result(None, array.shape, array.dtype)
        return self.engine.all_reduce(array, out, ReduceOp.SUM), out.owner.data


@pytest.fixture
def rank(binding):
    made = Rank(binding)
    yield made
    made.engine.abandon()


def wait(pending, seconds=5.0):
    deadline = time.monotonic() + seconds
    while not pending.test():
        assert time.monotonic() < deadline, "does not end"
        time.sleep(0.002)


def error_of(pending):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the caller looks at it
        wait(pending)
    return caught.value


def test_an_operation_waits_for_its_turn_in_the_stream(rank):
    stream = rank.device.library.shim_stream_create()
    rank.device.current = stream
    rank.device.library.shim_compute(60, stream)
    pending, out = rank.all_reduce()
    assert not pending.test()
    wait(pending)
    assert out.tolist() == [1.0, 2.0]
    assert rank.engine.shutdown(timeout=5)


def test_every_result_code_has_a_meaning(binding, monkeypatch):
    # The binding has no names for the last two, and reports them by a KeyError.
    assert sorted(MEANINGS) == list(range(1, 9))
    for status, meaning in MEANINGS.items():
        monkeypatch.setenv("NCCL_SHIM_FAULT", f"call:{status}")
        rank = Rank(binding)
        with pytest.raises(EngineError) as caught:
            rank.all_reduce()
        assert meaning.name in str(caught.value)
        assert caught.value.details == {"nccl_result": status, "peer_may_be_lost": meaning.peer}
        rank.engine.abandon()
    assert len({meaning.name for meaning in MEANINGS.values()}) == len(MEANINGS)


def test_a_code_of_a_newer_nccl_is_told_as_it_is():
    assert "99" in str(map_error(KeyError(99), "all_reduce"))
    assert "boom" in str(map_error(RuntimeError("boom"), "all_reduce"))


@pytest.mark.parametrize("status", [2, 6, 8])
def test_an_asynchronous_error_ends_what_is_pending_and_all_that_comes(binding, monkeypatch, status):
    monkeypatch.setenv("NCCL_SHIM_FAULT", f"async:{status}:2")
    rank = Rank(binding)
    pending, _ = rank.all_reduce()
    wait(pending)
    pending, _ = rank.all_reduce()
    error = error_of(pending)
    assert isinstance(error, EngineError)
    assert error.details["nccl_result"] == status
    with pytest.raises(EngineError):
        rank.all_reduce()


def test_a_lost_rank_ends_an_operation_that_nobody_waits_for(binding, monkeypatch):
    """The streams go on, so that a program that waits for its GPU is not stuck, and the operation tells why."""
    monkeypatch.setenv("NCCL_SHIM_FAULT", "hang")
    rank = Rank(binding)
    pending, _ = rank.all_reduce()
    time.sleep(0.05)
    assert not pending.reached()
    rank.failure = LOST
    deadline = time.monotonic() + 5
    while not pending.reached():
        assert time.monotonic() < deadline, "the stream is stuck"
        time.sleep(0.01)
    with pytest.raises(RankLostError):
        pending.test()


def test_a_lost_rank_ends_a_call_that_blocks(binding, monkeypatch):
    monkeypatch.setenv("NCCL_SHIM_FAULT", "block")
    rank = Rank(binding)
    rank.failure = LOST
    with pytest.raises(RankLostError):
        rank.all_reduce()


def test_a_call_that_blocks_has_a_deadline(binding, monkeypatch):
    monkeypatch.setenv("NCCL_SHIM_FAULT", "block")
    rank = Rank(binding, call_limit=0.2)
    with pytest.raises(OperationTimeoutError, match=r"did not return within 0\.2 s"):
        rank.all_reduce()


def test_an_idle_communicator_survives_a_lost_rank_until_it_is_used(rank):
    rank.failure = LOST
    time.sleep(0.3)
    rank.failure = None
    pending, out = rank.all_reduce()
    wait(pending)
    assert out.tolist() == [1.0, 2.0]


def test_after_an_end_in_order_nothing_can_be_started(rank):
    assert rank.engine.shutdown(timeout=5)
    assert rank.engine.shutdown(timeout=5)
    with pytest.raises(Exception, match="closed"):
        rank.all_reduce()


def test_a_split_waits_for_what_is_under_way(rank):
    stream = rank.device.library.shim_stream_create()
    rank.device.current = stream
    rank.device.library.shim_compute(80, stream)
    pending, _ = rank.all_reduce()
    making = rank.engine.split(7, 0)
    time.sleep(0.03)
    assert not making.test()
    wait(making)
    assert pending.reached()
    assert (making.engine().rank, making.engine().size) == (0, 1)
    nobody = rank.engine.split(None, 0)
    wait(nobody)
    assert nobody.engine() is None


def test_a_tag_is_refused(rank):
    array = rank.engine.arrays.as_input(HostArray(np.ones(3)))
    for start in (lambda: rank.engine.send(array, 0, 1), lambda: rank.engine.receive(array, 0, 1)):
        with pytest.raises(InputError, match="tag 1: NCCL has no tags"):
            start()


class TestArrays:
    @pytest.fixture
    def door(self, rank):
        return rank.engine.arrays

    def test_what_is_in_memory_of_the_host_is_refused(self, door):
        for array in (np.ones(3), [1.0], b"123"):
            with pytest.raises(InputError, match=r"is not in a GPU's memory.*cupy\.asarray"):
                door.as_input(array)

    def test_a_strided_input_is_copied_and_a_strided_output_refused(self, door):
        strided = HostArray(np.arange(12.0).reshape(3, 4)[:, ::2])
        copied = door.as_input(strided)
        assert copied.owner.data.tolist() == strided.data.tolist()
        assert copied.owner.data.flags.c_contiguous
        with pytest.raises(InputError, match="not contiguous"):
            door.check_writable(strided, "out")

    def test_axes_of_one_element_may_have_any_stride(self, door):
        data = np.arange(24.0).reshape(4, 6)[1:2, :]
        assert door.check_writable(HostArray(data), "out").address == data.ctypes.data
        assert door.as_input(HostArray(np.arange(12.0).reshape(3, 4)[:, 1:2][1:2])).nbytes == 8

    def test_outputs_must_fit(self, door):
        frozen = np.ones(3)
        frozen.flags.writeable = False
        for out, said in (
            (HostArray(frozen), "read-only"),
            (HostArray(np.ones(4)), r"out is float64 of shape \(4,\), but the result is float64 of shape \(3,\)"),
            (HostArray(np.ones(3, np.float32)), "out is float32"),
        ):
            with pytest.raises(InputError, match=said):
                door.as_result(out, (3,), np.dtype(np.float64))

    def test_bfloat16_has_no_name_in_the_interface_and_is_known_by_the_arrays_own(self, door):
        ml_dtypes = pytest.importorskip("ml_dtypes")
        assert door.as_input(HostArray(np.ones(3, ml_dtypes.bfloat16))).dtype == ml_dtypes.bfloat16

    def test_rows_are_views(self, door):
        data = np.arange(24, dtype=np.int32).reshape(4, 6)
        rows = door.as_input(HostArray(data))[1:3]
        assert (rows.shape, rows.nbytes, rows.address - data.ctypes.data) == ((2, 6), 48, 24)
        assert door.as_input(HostArray(data))[5:6].nbytes == 0

    def test_overlaps_are_copied_and_what_works_in_place_is_told_by_identity(self, door):
        memory = HostArray(np.arange(10.0))
        whole = door.as_input(memory)
        result = door.check_writable(memory[0:6], "out")
        assert door.apart(door.as_input(memory[0:6]), result, allowed=result) is result
        apart = door.as_input(memory[6:10])
        assert door.apart(apart, result, allowed=result) is apart
        copied = door.apart(whole, result, allowed=result)
        assert isinstance(copied, DeviceArray)
        assert not copied.overlaps(whole)

    def test_what_nccl_cannot_reduce_is_refused(self, door):
        for op, dtype, said in (
            (ReduceOp.BITWISE_OR, "i4", "NCCL has no bitwise_or"),
            (ReduceOp.SUM, "i2", "NCCL cannot reduce int16"),
            (ReduceOp.SUM, "g", "NCCL cannot reduce"),
            (ReduceOp.PRODUCT, "F", "cannot multiply complex64"),
            (ReduceOp.SUM, ">f4", "byte order"),
            (ReduceOp.AVERAGE, "i4", "no meaning"),
        ):
            with pytest.raises(InputError, match=said):
                door.check_reducible(op, np.dtype(dtype))
