"""Predictions of real clusters, each by a fit to the others: how far off they may be."""

import os
import statistics
from pathlib import Path

import pytest

from bench.predict import LARGE, Outcome, by_machine, calibrated, errors, fitted, judge, nccl, percentile
from bench.prediction.corpus import Case, cases, machine_of
from bench.prediction.fit import LEAST_BYTES, fit
from fabricd.plan.predict.parameters import Figures, parameters

pytestmark = pytest.mark.corpus


@pytest.fixture(scope="module")
def found() -> list[Case]:
    return cases(Path(os.environ["FABRICD_CORPUS"]))


@pytest.fixture(scope="module")
def left_out(found: list[Case]) -> dict[str, Figures]:
    return by_machine(found)


def by_size(outcomes: list[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    return (
        [one for one in outcomes if one.bytes >= LARGE],
        [one for one in outcomes if LEAST_BYTES <= one.bytes < LARGE],
    )


@pytest.mark.parametrize("known", ["told", "shown"])
def test_a_machine_never_seen(found: list[Case], left_out: dict[str, Figures], known: str) -> None:
    outcomes = judge(found, fitted(left_out, lambda case: getattr(case, known)))
    for part, point_limit, case_limit, most, most_good in zip(
        by_size(outcomes), (6, 20), (7, 20), (100, 300), (60, 140), strict=True
    ):
        points, medians = errors(part)
        good, _ = errors(one for one in part if one.case.ok)
        assert statistics.median(points) <= point_limit
        assert statistics.median(medians) <= case_limit
        assert percentile(points, 0.9) <= most
        assert percentile(good, 0.9) <= most_good


def test_one_large_result_of_the_machine(found: list[Case], left_out: dict[str, Figures]) -> None:
    good = [case for case in found if case.ok]
    for part, limit in zip(by_size(judge(good, calibrated(good, left_out))), (3, 12), strict=True):
        assert all(statistics.median(figures) <= limit for figures in errors(part))


def test_better_than_nccls_own_model(found: list[Case], left_out: dict[str, Figures]) -> None:
    ours, theirs = (by_size(judge(found, one)) for one in (fitted(left_out, lambda case: case.told), nccl))
    for our, their in zip(ours, theirs, strict=True):
        (points, _), (their_points, _) = errors(our), errors(their)
        assert statistics.median(points) < statistics.median(their_points)
        assert percentile(points, 0.9) < percentile(their_points, 0.9)


def test_the_package_has_the_fit(found: list[Case]) -> None:
    """``python -m bench.predict --fit`` has been run."""
    fresh, shipped = fit(found), parameters().figures
    for name in Figures.__slots__:
        assert getattr(shipped, name) == pytest.approx(getattr(fresh, name), rel=0.01), name


def test_configurations_of_one_machine_are_left_out_together() -> None:
    names = ("aws-p5-2x8-ar", "aws-p5-eks-2x8-ar", "polaris-2x4-setup1-ar", "coreweave-gb200-20rack-ar")
    assert [machine_of(name) for name in names] == ["aws-p5", "aws-p5", "polaris", "coreweave-gb200"]
