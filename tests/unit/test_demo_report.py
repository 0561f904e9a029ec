"""The trap's verdict: judged by the worst size that counts, and by nothing smaller."""

import random

import pytest

from demo.draw import Draw, draw
from demo.hosts import NetworkSpec
from demo.job import Burst
from demo.measure import Series, plan_turns
from demo.report import excuse, judge

MIB = 1 << 20
DRAWN = Draw(
    networks=(NetworkSpec("A", "10.1.0.0/24"), NetworkSpec("B", "10.2.0.0/24", bits_per_second=200_000_000)),
    slow="B",
    control="A",
)


def series(size: int, seconds: float, on_slow: int = 0, wrong: int = 0) -> Series:
    sent = {"A": 2 * size - on_slow, "B": on_slow}
    return Series(size=size, ranks=2, bursts=[Burst(seconds=(seconds, 9.0), wrong=wrong, sent_bytes=sent)])


def verdict(plan=None):
    """The verdict on a plan at 1, 16 and 64 MiB, beside a default ten times as slow as the best by hand."""
    sizes = (MIB, 16 * MIB, 64 * MIB)
    cases = {
        "default": {size: series(size, size / 1e8, on_slow=size) for size in sizes},
        "hand A": {size: series(size, size / 1e9) for size in sizes},
        "hand B": {size: series(size, size / 2e7, on_slow=2 * size) for size in sizes},
        "plan": {size: series(size, size / 1e9) for size in sizes} | (plan or {}),
    }
    return judge(DRAWN, cases, default="default", plan="plan")


def test_level_with_the_best_by_hand_is_good():
    found = verdict()
    assert found.good
    assert found.kept_off
    assert found.times_default == pytest.approx(10)
    assert found.times_best_by_hand == pytest.approx(1)
    assert str(found).startswith("good: 10.0 times")


def test_a_busy_machine_is_told_where_it_blurs_the_verdict_and_only_there():
    slow = verdict({16 * MIB: series(16 * MIB, 16 * MIB / 4e8)})
    assert "a load of 12 on 2 CPUs" in excuse(slow, 11.7, 2)
    assert excuse(slow, 3.0, 2) == ""
    assert excuse(verdict(), 11.7, 2) == ""
    assert excuse(verdict({64 * MIB: series(64 * MIB, 64 * MIB / 1e9, wrong=1)}), 11.7, 2) == ""


@pytest.mark.parametrize(
    "plan",
    [
        {16 * MIB: series(16 * MIB, 16 * MIB / 4e8)},  # 0.4 of the best by hand
        {64 * MIB: series(64 * MIB, 64 * MIB / 8.9e8)},
        {64 * MIB: series(64 * MIB, 64 * MIB / 1e9, on_slow=10 * MIB)},
        {64 * MIB: series(64 * MIB, 64 * MIB / 1e9, wrong=1)},
    ],
    ids=["slow at 16 MiB", "slow at 64 MiB", "bytes on the slow network", "a wrong element"],
)
def test_one_bad_size_is_enough_to_fail(plan):
    assert not verdict(plan).good


@pytest.mark.parametrize(("on_slow", "wrong", "kept_off"), [(0, 0, True), (10 * MIB, 0, False), (0, 1, False)])
def test_a_plan_that_is_only_slow_kept_off_all_the_same(on_slow, wrong, kept_off):
    found = verdict({64 * MIB: series(64 * MIB, 1.0, on_slow=on_slow, wrong=wrong)})
    assert (found.kept_off, found.good) == (kept_off, False)


def test_below_16_mib_nothing_is_judged():
    assert verdict({MIB: series(MIB, 1.0, on_slow=2 * MIB)}).good


def test_shares_and_speeds_are_of_the_best_all_reduce_and_of_all_bytes():
    found = series(16 * MIB, 0.1, on_slow=8 * MIB)
    assert found.bus_bytes_per_second == pytest.approx(16 * MIB / 0.1)
    assert found.sent_share("B") == pytest.approx(0.25)
    assert found.sent_bytes("A") == pytest.approx(12 * MIB)  # two all_reduces in the burst


@pytest.mark.parametrize(
    ("seconds", "count", "turns"), [(0.0025, 20, 23), (0.03, 3, 13), (0.14, 1, 8), (0.5, 1, 2), (1.6, 1, 1)]
)
def test_quick_jobs_get_longer_bursts_and_more_of_them(seconds, count, turns):
    found = Series(size=MIB, ranks=2)
    plan_turns(found, seconds)
    assert (found.count, found.turns) == (count, turns)


@pytest.mark.parametrize(
    ("seconds", "settled"), [((1.0, 1.02, 1.03), True), ((1.0, 1.02, 1.2), False), ((1.0, 1.0), False)]
)
def test_a_best_has_settled_when_it_was_found_several_times(seconds, settled):
    bursts = [Burst(seconds=(one,), wrong=0, sent_bytes={}) for one in reversed(seconds)]
    assert Series(size=MIB, ranks=2, bursts=bursts).settled == settled


def test_draws_differ_in_all_that_chance_decides_and_are_repeatable():
    drawn = [draw(random.Random(seed)) for seed in range(40)]
    assert drawn[0] == draw(random.Random(0))
    assert {one.slow for one in drawn} == {one.control for one in drawn} == {"A", "B"}
    assert {one.slow == one.control for one in drawn} == {True, False}
    for one in drawn:
        names = [name for spec in one.networks for name in spec.interfaces]
        assert len(set(names)) == 4
        assert one.networks[0].subnet != one.networks[1].subnet
        assert {one.slow, one.fast} == {"A", "B"}
