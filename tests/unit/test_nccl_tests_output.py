"""Outputs of nccl-tests: versions, launchers, JSON, and what is no result."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabricd.errors import ParseError
from fabricd.plan.predict.nccl_tests import Row, parse_results

HEADER = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on     node-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6733 on     node-b device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
REDUCED = "  1073741824  268435456  float  sum  -1   6759.0  158.86  297.86      0   6752.3  159.02  298.16      0"
ROW = Row(1073741824, 6759.0, 158.86, 297.86)


def the_run(text):
    (run,) = parse_results(text, source="out.txt")
    return run


def test_all_reduce_of_two_hosts():
    run = the_run("$ mpirun /opt/nccl-tests/build/all_reduce_perf -b 8 -e 8G -f 2 -g 1\n" + HEADER + REDUCED)
    assert (run.collective, run.hosts) == ("all_reduce", {0: "node-a", 1: "node-b"})
    assert (run.rows, run.notes) == ([ROW], [])


@pytest.mark.parametrize(
    ("line", "row"),
    [
        pytest.param("[1,0]<stdout>:1073741824 268435456 float sum -1 6759.0 158.86 297.86 0", ROW, id="mpirun"),
        pytest.param("mpi-launcher-x: 1073741824 268435456 float sum -1 6759.0 158.86 297.86 0", ROW, id="kubectl"),
        pytest.param(
            "1073741824 268435456 float sum 6759.0 158.86 297.86 4e-07 6752.3 159.02 298.16 4e-07", ROW, id="2.0"
        ),
        pytest.param("1073741824 268435456 bfloat16 none -1 6759.0 158.86 297.86 N/A", ROW, id="unchecked"),
        pytest.param("1073741824 268435456 float 6759.0 158.86 297.86 0", ROW, id="no operator, no root"),
        pytest.param("1073741824 268435456 float none 3 6759.0 158.86 297.86 0", ROW, id="broadcast from 3"),
        pytest.param("1024 256 float none 3 6759 0.00 0.00 0", Row(1024, 6759.0, 0.0, 0.0), id="root 3, small"),
        pytest.param("1024 256 float none 0 24.51 0.04 0.04 0", Row(1024, 24.51, 0.04, 0.04), id="root 0"),
        pytest.param(
            "17179869184 4294967296 float sum -1 1.3e+07 1.30 2.44 0", Row(17179869184, 1.3e7, 1.3, 2.44), id="slow"
        ),
    ],
)
def test_rows(line, row):
    run = the_run("# Collective test starting: all_reduce_perf\n" + line)
    assert (run.rows, run.notes) == ([row], [])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("1073741824 268435456 float sum -1 6759.0 158.86 297.86 12 6752.3 159.02 298.16 0", "12 elements are wrong"),
        ("1073741824 268435456 float sum -1 6759.0 58.86 97.86 0", "do not agree"),
        ("1073741824 268435456 float sum -1 6759.0 158.86", "do not agree"),
    ],
)
def test_left_out(line, why):
    run = the_run(REDUCED + "\n" + line)
    assert run.rows == [ROW]
    assert [note for note in run.notes if note.startswith("line 2 left out") and why in note]


def test_several_runs_in_a_file():
    text = "\n".join(
        f"# Collective test starting: {name}_perf\n" + HEADER + REDUCED for name in ("all_gather", "reduce_scatter")
    )
    assert [run.collective for run in parse_results(text, source="x")] == ["all_gather", "reduce_scatter"]


def test_an_attempt_that_failed_before():
    failed = HEADER.replace("node-b", "node-z").split("#\n#  ")[0]
    run = the_run(
        "# Collective test starting: all_gather_perf\n" + failed + "Test NCCL failure: timeout\n" + HEADER + REDUCED
    )
    assert (run.collective, set(run.hosts.values()), run.rows) == ("all_gather", {"node-a", "node-b"}, [ROW])


def test_jobs_that_did_not_join():
    with pytest.raises(ParseError, match=r"rank 0 is listed twice.*MPI=1"):
        parse_results(HEADER.replace("Rank  1", "Rank  0") + REDUCED, source="x")


def report(**body):
    return {
        "version": 1,
        "args": ["/opt/build/all_reduce_perf", "-b", "1G"],
        "env": ["SECRET=1"],
        "config": {"devices": [{"rank": 0, "hostname": "a", "pid": 1}, {"rank": 1, "hostname": "b", "pid": 1}]},
        "results": [{"size": 1073741824, "count": 1, "root": "-1", "out_of_place": body or None, "in_place": None}],
    }


@pytest.mark.parametrize("key", ["time", "cpu_time"])
def test_json(key):
    run = the_run(json.dumps(report(**{key: 6759.0, "alg_bw": 158.86, "bus_bw": 297.86, "nwrong": None})))
    assert (run.collective, run.hosts, run.rows) == ("all_reduce", {0: "a", 1: "b"}, [ROW])


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEADER,
        "{",
        json.dumps(report()),
        json.dumps(report(time=1.0, alg_bw=158.86, bus_bw=297.86, nwrong=0.0)),
        json.dumps(report(time=6759.0, alg_bw=158.86, bus_bw=297.86, nwrong=3.0)),
        json.dumps({"results": [{"size": "many"}]}),
        "float " * 10_000,
        "9" * 1_000_000 + " 1 float sum -1 1 1 1 0",
        "float 1 float sum -1 1 1 1 0",
    ],
)
def test_nothing_to_read(text):
    with pytest.raises(ParseError):
        parse_results(text, source="x")


WORDS = st.sampled_from(
    ["1073741824", "268435456", "float", "sum", "-1", "6759.0", "158.86", "0", "N/A", "#", "nan", "1e99"]
)


@given(st.lists(st.lists(WORDS, max_size=14).map(" ".join), max_size=5).map("\n".join))
def test_whatever_is_read_agrees_with_itself(text):
    try:
        runs = parse_results(text, source="x")
    except ParseError:
        return
    for row in (row for run in runs for row in run.rows):
        assert row.bytes / row.time / 1e3 == pytest.approx(row.algbw, rel=0.07, abs=0.007)
