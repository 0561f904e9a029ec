"""Calibration by results of the machine itself, and the command for it."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabric_client.cli.calibrate import load_calibration
from fabricd.errors import InputError, ParseError
from fabricd.graph.nccl_xml_read import read
from fabricd.model.codec import to_builtins
from fabricd.plan.nccl.emulate import plan
from fabricd.plan.nccl.job import Collective
from fabricd.plan.predict import Calibration, conditions_of, merge_ports, predict
from fabricd.plan.predict.calibrate import calibrated
from fabricd.plan.predict.calibration import Point, read_calibration, rising
from fabricd.plan.predict.nccl_tests import Row, Run
from tests.support.nccl_golden import OWN

XML = OWN / "nvswitch-sm90.xml"
TOPOLOGY = merge_ports(read(XML.read_text(), source="test"))
RANKS = 4
NCCL = {nodes: plan(TOPOLOGY, nodes=nodes) for nodes in (1, 2, 3)}
CONDITIONS = conditions_of(TOPOLOGY)
GIB = 1 << 30


def predicted(nodes=2, collective=Collective.ALL_REDUCE, size=GIB, calibration=None):
    return predict(NCCL[nodes], CONDITIONS, collective, size, calibration=calibration)


def row(size, microseconds, nodes=2, rounds=2):
    ranks = RANKS * nodes
    algbw = size / microseconds / 1e3
    return Row(size, microseconds, algbw, algbw * rounds * (ranks - 1) / ranks)


def calibration_of(*rows, nodes=2, name="all_reduce"):
    run = Run("results", name, {}, list(rows))
    return Calibration(results=(calibrated([run], name, NCCL[nodes], CONDITIONS),))


def test_the_machine_is_as_the_test_says():
    assert [NCCL[nodes].job.ranks for nodes in (1, 2, 3)] == [RANKS, 2 * RANKS, 3 * RANKS]


def test_one_large_result_scales_bandwidth():
    slow = 1.5 * predicted().time_seconds
    calibration = calibration_of(row(GIB, slow * 1e6))
    assert predicted(calibration=calibration).time_seconds == pytest.approx(slow)
    larger = predicted(size=4 * GIB, calibration=calibration)
    assert larger.time_seconds == pytest.approx(1.5 * predicted(size=4 * GIB).time_seconds, rel=0.05)
    small = predicted(size=1024, calibration=calibration)
    assert small.time_seconds == pytest.approx(predicted(size=1024).time_seconds, rel=0.05)
    assert "1 of this job's own results" in larger.basis


def test_measured_sizes_stand():
    plain = {size: predicted(size=size).time_seconds * 1e6 for size in (1 << 20, 1 << 24, GIB)}
    calibration = calibration_of(
        *(row(size, factor * plain[size]) for size, factor in zip(plain, (3, 2, 1.2), strict=True))
    )
    for size, factor in zip(plain, (3, 2, 1.2), strict=True):
        assert predicted(size=size, calibration=calibration).time_seconds * 1e6 == pytest.approx(factor * plain[size])
    below = predicted(size=1 << 19, calibration=calibration).time_seconds
    assert below < predicted(size=1 << 20, calibration=calibration).time_seconds


def test_measured_sizes_are_known_well_and_others_less():
    plain = {size: predicted(size=size).time_seconds * 1e6 for size in (1 << 24, GIB)}
    calibration = calibration_of(*(row(size, 1.2 * time) for size, time in plain.items()))

    def width(size, calibration=calibration):
        found = predicted(size=size, calibration=calibration)
        return found.busbw_high_bytes_per_second / found.busbw_low_bytes_per_second

    assert [width(1 << 24), width(1 << 28), width(GIB)] == pytest.approx([1.05 / 0.95] * 3)
    assert 1.11 < width(4 * GIB) < width(4 * GIB, None)


def test_other_rings_are_not_what_was_measured():
    gather = Collective.ALL_GATHER
    measured = row(GIB, 1.5e6 * predicted(collective=gather).time_seconds, rounds=1)
    calibration = calibration_of(measured, name="all_gather")
    assert predicted(collective=gather, calibration=calibration).time_seconds * 1e6 == pytest.approx(measured.time)
    wide = {"bandwidth": 4 * NCCL[2].ring_bandwidth * 1e9}
    plain, slow = (predict(NCCL[2], CONDITIONS, gather, GIB, calibration=one, **wide) for one in (None, calibration))
    assert slow.time_seconds * 1e6 < 0.5 * measured.time
    assert slow.time_seconds == pytest.approx(1.5 * plain.time_seconds, rel=0.15)


def test_other_jobs_get_the_scale_where_they_go_as_far():
    calibration = calibration_of(row(GIB, 1.5e6 * predicted().time_seconds))
    for nodes, collective in ((3, Collective.ALL_REDUCE), (2, Collective.ALL_GATHER)):
        plain, other = (predicted(nodes=nodes, collective=collective, calibration=one) for one in (None, calibration))
        assert other.time_seconds == pytest.approx(1.5 * plain.time_seconds, rel=0.1)
        assert other.basis == "bandwidth scaled by results of AllReduce on 8 ranks"
    assert predicted(nodes=1, calibration=calibration) == predicted(nodes=1)


@settings(max_examples=40)
@given(
    factors=st.lists(st.floats(0.6, 8), min_size=1, max_size=5),
    sizes=st.lists(st.integers(1, 1 << 34), min_size=2, max_size=6).map(sorted),
)
def test_time_rises_whatever_was_measured(factors, sizes):
    measured = [
        row(GIB >> (3 * step), factor * 1e6 * predicted(size=GIB >> (3 * step)).time_seconds)
        for step, factor in enumerate(factors)
    ]
    calibration = calibration_of(*measured)
    times = [predicted(size=size, calibration=calibration).time_seconds for size in sizes]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(times))


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8))
def test_rising(times):
    points = rising([Point(bytes=1 << place, time_seconds=time) for place, time in enumerate(times)])
    assert [point.bytes for point in points] == [1 << place for place in range(len(times))]
    assert all(low.time_seconds <= high.time_seconds for low, high in pairwise(points))
    if times == sorted(times):
        assert [point.time_seconds for point in points] == pytest.approx(times)


@pytest.mark.parametrize(
    ("run", "name", "message"),
    [
        (Run("r", rows=[row(GIB, 1e4)]), "", "do not say which collective"),
        (Run("r", rows=[row(GIB, 1e4)]), "alltoall", "no model of 'alltoall'"),
        (Run("r", rows=[row(GIB, 1e4)]), "all_gather", r"busbw is 1.750 times algbw, but 0.875"),
        (Run("r", rows=[row(GIB, 1e4, nodes=3)]), "all_reduce", r"busbw is 1.833 times algbw, but 1.750"),
        (Run("r", hosts={0: "a", 1: "b"}, rows=[row(GIB, 1e4)]), "all_reduce", "2 ranks, but the topology makes 8"),
        (Run("r", rows=[row(1 << 19, 50.0)]), "all_reduce", "1 MiB or more"),
    ],
)
def test_results_of_something_else(run, name, message):
    with pytest.raises(InputError, match=message):
        calibrated([run], name, NCCL[2], CONDITIONS)


def test_a_file_that_is_no_calibration():
    good = to_builtins(calibration_of(row(1 << 20, 300.0), row(GIB, 1e4)))
    assert read_calibration(json.dumps(good), source="x").results[0].points[0].bytes == 1 << 20
    one = good["results"][0]
    for wrong in (
        {"schema": 2, "results": [one]},
        {"results": []},
        {"results": [one | {"collective": "Dance"}]},
        {"results": [one | {"scale": 0}]},
        {"results": [one | {"scale": 1e9}]},
        {"results": [one | {"points": []}]},
        {"results": [one | {"points": [{"bytes": 0, "time_seconds": 1}]}]},
        {"results": [one | {"points": one["points"][::-1]}]},
        [],
    ):
        with pytest.raises(ParseError):
            read_calibration(json.dumps(wrong), source="x")


def results(nodes=2, name="all_reduce", microseconds=9000.0):
    ranks = RANKS * nodes
    hosts = [
        f"#  Rank {rank:2d} Group  0 Pid 1 on host-{rank // RANKS} device  0 [0000:04:00] GPU" for rank in range(ranks)
    ]
    one = row(GIB, microseconds, nodes)
    return "\n".join(
        [
            f"# Collective test starting: {name}_perf",
            *hosts,
            f"{GIB} 1 float sum -1 {one.time} {one.algbw:.2f} {one.busbw:.2f} 0",
        ]
    )


def test_command(fabricctl, tmp_path):
    for nodes in (1, 2):
        (tmp_path / f"{nodes}.txt").write_text(results(nodes))
    files = [tmp_path / "1.txt", tmp_path / "2.txt"]
    status, out, err = fabricctl("calibrate", *files, "--from", XML, "--out", tmp_path / "calibration.json")
    assert (status, err) == (0, "")
    lines = [line.split()[:5] for line in out.splitlines()]
    assert lines[1:] == [["all_reduce", "1", "4", "1", "1G"], ["all_reduce", "2", "8", "1", "1G"]]
    calibration = load_calibration(str(tmp_path / "calibration.json"))
    assert [one.nodes for one in calibration.results] == [1, 2]
    for nodes in (1, 2):
        assert predicted(nodes=nodes, calibration=calibration).time_seconds == pytest.approx(9e-3)
    using = ("--bytes", "1GiB", "--calibration", tmp_path / "calibration.json", "--json")
    status, out, _ = fabricctl("plan", "--from", XML, "--nodes", 2, *using)
    plain = next(one for one in json.loads(out)["alternatives"] if one["name"] == "nccl")
    assert plain["predicted"]["time_seconds"] == pytest.approx(9e-3)
    status, out, _ = fabricctl("calibrate", files[1], "--from", XML, "--json")
    assert read_calibration(out, source="output") == replace(calibration, results=calibration.results[1:])


def test_command_tells_what_it_left_out(fabricctl, tmp_path):
    file = tmp_path / "r.txt"
    file.write_text(results() + f"\n{GIB} 1 float sum -1 9000.0 119.30 208.78 7\n")
    status, out, _ = fabricctl("calibrate", file, "--from", XML)
    assert (status, out.splitlines()[-1].endswith("left out: 7 elements are wrong")) == (0, True)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("nothing", (), "holds no results"),
        (results(3), ("--nodes", "2"), "12 ranks, but the topology makes 8"),
        (results(2).replace("host-1", "host-0"), (), "8 ranks on 1 hosts, but the topology has 4 GPU(s)"),
        (results(), ("--collective", "dance"), "no model of 'dance'"),
        (results(), ("--out", "/nonexistent/x"), "cannot write /nonexistent/x"),
    ],
)
def test_command_refuses(fabricctl, tmp_path, text, options, message):
    file = tmp_path / "r.txt"
    file.write_text(text)
    status, _, err = fabricctl("calibrate", file, "--from", XML, *options)
    assert (status, message in err) == (2, True)
