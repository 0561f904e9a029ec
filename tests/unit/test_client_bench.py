"""The benchmark finds wrong results, counts as nccl-tests does, and prints its columns."""

import json
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from fabric_client.cli import bench_worker
from fabric_client.cli.bench_cases import COLLECTIVES, combine, count_wrong, pattern, stretch
from fabric_client.cli.bench_measure import Row, Timing, measure
from fabric_client.cli.bench_options import COLLECTIVE_NAMES, OPERATORS, TYPES, BenchOptions
from fabric_client.cli.bench_table import HEADER, average_bus_bandwidth, row_text, summary, wrong_elements
from fabricd.errors import InputError


class Alone:
    """A group of one rank: every collective is a copy. ``spoil`` makes one element of each result wrong."""

    rank, size, group = 0, 1, "alone"

    def __init__(self, spoil=False):
        self.spoil = spoil

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def _copy(self, source, out):
        out.reshape(-1)[...] = source.reshape(-1)
        if self.spoil and out.size > 1:
            out.reshape(-1)[out.size // 2] += 1
        return out

    def all_reduce(self, array, op="sum", *, out=None):
        return array if out is None else self._copy(array, out)

    def reduce(self, array, op, root, *, out):
        return self._copy(array, out)

    def reduce_scatter(self, array, op, *, out):
        return self._copy(array[0], out)

    def all_gather(self, array, *, out):
        return self._copy(array, out[0])

    def all_to_all(self, array, *, out):
        return self._copy(array, out)

    def broadcast(self, array, root):
        return self._copy(array, array)

    def barrier(self):
        pass

    def explain(self):
        return "alone"


def rows_of(comm, **options):
    return list(measure(comm, BenchOptions(iterations=1, warmup=0, begin="1K", end="16K", **options), lambda *_: None))


@pytest.mark.parametrize("collective", [name for name in COLLECTIVE_NAMES if name != "sendrecv"])
def test_right_results_pass_and_one_wrong_element_is_found(collective):
    rows = rows_of(Alone(), collective=collective)
    assert [row.bytes for row in rows] == [1024, 4096, 16384]
    assert wrong_elements(rows) == 0
    for row in rows_of(Alone(spoil=True), collective=collective):
        assert row.out_of_place.wrong >= 1
        assert row.in_place.wrong >= 1


@pytest.mark.parametrize(("spoil", "status"), [(False, 0), (True, 1)])
def test_the_exit_status_tells_wrong_results(monkeypatch, capsys, spoil, status):
    monkeypatch.setattr(bench_worker, "create_communicator", lambda **_: Alone(spoil))
    assert bench_worker.run_rank(BenchOptions(end="4K", iterations=1)) == status
    assert ("FAILED" in capsys.readouterr().out) == spoil
    assert bench_worker.run_rank(BenchOptions(end="4K", iterations=1, json=True)) == status
    assert (json.loads(capsys.readouterr().out)["wrong"] > 0) == spoil


def test_there_is_a_case_for_every_name():
    assert tuple(COLLECTIVES) == COLLECTIVE_NAMES


def test_data_differ_by_rank_and_by_position():
    ranks = [pattern(rank, "f4") for rank in range(64)]
    for one, other in pairwise(ranks):
        assert np.count_nonzero(one != other) > one.size / 2
    long = stretch(ranks[3], 20_000)
    for shift in (1, 2, 8, 64, 1024, 4096):
        assert np.count_nonzero(long[shift:] != long[:-shift]) > (long.size - shift) / 2
    assert (stretch(ranks[3], 500, offset=7000) == long[7000:7500]).all()


@pytest.mark.parametrize(
    ("op", "dtype"), [(op, dtype) for op in OPERATORS for dtype in TYPES.values() if op != "avg" or dtype[0] == "f"]
)
def test_expectations_are_exact(op, dtype):
    data = np.stack([pattern(rank, "f8") for rank in range(5)])
    functions = {"sum": data.sum, "prod": data.prod, "min": data.min, "max": data.max, "avg": data.mean}
    expected = functions[op](axis=0)
    got = combine(OPERATORS[op], 5, dtype)
    assert got.dtype == np.dtype(dtype)
    if op == "prod" and dtype == "i1":
        expected = expected.astype("i8").astype("i1")  # 3**5 wraps around, as it does in C
    assert np.allclose(got.astype("f8"), expected, rtol=0 if op != "avg" else np.finfo(dtype).eps, atol=0)


def test_wrong_elements_are_counted():
    good = np.arange(5)
    assert count_wrong(good.copy(), good) == 0
    assert count_wrong(np.array([0, 1, 9, 3, 9]), good) == 2
    assert count_wrong(np.array([0.0, np.nan]), np.array([0.0, 1.0])) == 1
    assert count_wrong(None, good) == 0


@pytest.mark.parametrize(
    ("name", "at_2", "at_8"),
    [
        ("all_reduce", 1, 2 * 7 / 8), ("all_gather", 1 / 2, 7 / 8), ("reduce_scatter", 1 / 2, 7 / 8),
        ("all_to_all", 1 / 2, 7 / 8), ("broadcast", 1, 1), ("reduce", 1, 1), ("sendrecv", 1, 1),
    ],
)  # fmt: skip
def test_bus_factors_are_nccl_tests(name, at_2, at_8):
    assert COLLECTIVES[name].bus_factor(2) == at_2
    assert COLLECTIVES[name].bus_factor(8) == at_8


def test_counts_of_collectives_with_blocks_are_of_one_block():
    class Four(Alone):
        size = 4

        def all_gather(self, array, *, out):
            for rank in range(4):
                out[rank] = stretch(pattern(rank, "f4"), array.size)

    row = rows_of(Four(), collective="all_gather")[0]
    assert (row.bytes, row.count) == (1024, 64)
    assert row.out_of_place.bus_bytes_per_second == pytest.approx(row.out_of_place.algorithm_bytes_per_second * 3 / 4)


def test_the_table():
    timing = Timing(seconds=12.3456e-6, algorithm_bytes_per_second=1.5e9, bus_bytes_per_second=3e9, wrong=0)
    slow = Timing(seconds=0.25, algorithm_bytes_per_second=1e9, bus_bytes_per_second=2e9, wrong=7)
    row = Row(bytes=1024, count=256, type="float", op="sum", root=-1, out_of_place=timing, in_place=slow)
    text = row_text(row)
    assert text.split() == [
        "1024",
        "256",
        "float",
        "sum",
        "-1",
        "12.35",
        "1.50",
        "3.00",
        "0",
        "250000",
        "1.00",
        "2.00",
        "7",
    ]
    # Numbers stand under the end of their heading.
    heads = HEADER.splitlines()[2]
    assert heads.index("size") + len("size") == text.index("1024") + len("1024")
    assert len(heads) == len(text)
    one_way = Row(bytes=8, count=2, type="float", op="none", root=-1, out_of_place=timing, in_place=None)
    assert row_text(one_way).split()[-4:] == ["N/A"] * 4
    assert len(row_text(one_way)) == len(text)
    assert average_bus_bandwidth([row, one_way]) == pytest.approx((3e9 + 2e9 + 3e9) / 3)
    assert "# Out of bounds values : 7 FAILED" in summary([row])
    assert "# Out of bounds values : 0 OK" in summary([one_way])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collective": "allreduce"}, "valid: all_reduce"),
        ({"type": "fp8"}, "valid: int8"),
        ({"engine": "nccl"}, "in memory of the hosts.*valid: mpi, gloo"),
        ({"op": "average"}, "valid: sum, prod"),
        ({"op": "avg", "type": "int32"}, "avg of int32"),
        ({"begin": "1M", "end": "1K"}, "no size is from 1M"),
        ({"begin": "0"}, "no size is from 0"),
        ({"begin": "many"}, "not a size"),
        ({"factor": 1}, "factor"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, said):
    with pytest.raises(InputError, match=said):
        BenchOptions(**options).check()


def test_what_so_few_ranks_cannot_do_is_refused_before_they_start():
    rooted = BenchOptions(collective="broadcast", root=2)
    rooted.check()
    rooted.check(3)
    with pytest.raises(InputError, match=r"root 2 is not one of 2 ranks \(valid: 0 to 1\)"):
        rooted.check(2)
    BenchOptions(root=2).check(2)  # all_reduce has no root
    with pytest.raises(InputError, match="sendrecv needs two ranks"):
        BenchOptions(collective="sendrecv").check(1)


def test_specs_are_made_of_whole_elements():
    rows = list(measure(Alone(), BenchOptions(begin="3", end="3", type="double", iterations=1), lambda *_: None))
    assert [(row.bytes, row.count) for row in rows] == [(8, 1)]


def test_a_rank_without_a_launcher_says_what_is_missing():
    done = subprocess.run(
        [sys.executable, "-m", "fabric_client.cli.bench_worker"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert "no rank and world_size" in done.stderr
    assert "Traceback" not in done.stderr
