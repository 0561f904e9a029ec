"""Predicted against measured bus bandwidth of real clusters, each machine predicted by a fit to the others.

    python -m bench.predict [--corpus FOLDER] [--cases] [--fit]

The folder (by default that of FABRICD_CORPUS) holds ``measurements``. Errors are |predicted - measured| / measured bus
bandwidth, median / 90th percentile in percent, over points and over the medians of configurations. ``--fit`` writes
``fabricd/plan/predict/parameters.json`` anew, ``--cases`` lists each configuration.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from bench.prediction.corpus import Case, cases
from bench.prediction.fit import LEAST_BYTES, PRIORS, fit
from fabricd.model.codec import to_builtins
from fabricd.plan.predict.calibrate import scale_of
from fabricd.plan.predict.conditions import Conditions
from fabricd.plan.predict.model import bus_factor, curve_of, group_of
from fabricd.plan.predict.parameters import BANDS, CALIBRATED, DOMAIN, FAR, NEAR, Figures

PARAMETERS = Path(__file__).parent.parent / "fabricd" / "plan" / "predict" / "parameters.json"
FITTED, BY_CALIBRATION = "fitted, machine left out", "calibrated by the largest message, left out"
LARGE = 64 << 20
#: However alike the few machines of a group are.
LEAST_SPREAD = 0.05
#: A model gives the time of a row in us, or None where it has none.
Model = Callable[[Case, int], float | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A point and what a model says: the ratio of predicted to measured bus bandwidth."""

    case: Case
    bytes: int
    ratio: float

    @property
    def error(self) -> float:
        """Relative error of bus bandwidth, %."""
        return 100 * abs(self.ratio - 1)


def judge(found: Sequence[Case], model: Model) -> list[Outcome]:
    """Return what a model says of every row."""
    outcomes = []
    for case in found:
        factor = bus_factor(case.collective, case.plan.job.ranks)
        for row in case.rows:
            time = model(case, row.bytes)
            if time is None:
                continue
            # Bandwidths of small messages are printed with two decimals, of which little is left.
            ratio = factor * row.bytes / time / 1e3 / row.busbw if row.bytes >= LEAST_BYTES else row.time / time
            outcomes.append(Outcome(case, row.bytes, ratio))
    return outcomes


def by_machine(found: Sequence[Case]) -> dict[str, Figures]:
    """Return the fit to all other machines, by machine."""
    machines = sorted({case.machine for case in found})
    return {machine: fit([case for case in found if case.machine != machine]) for machine in machines}


def nccl(case: Case, size: int) -> float | None:
    """NCCL's own model."""
    choice = case.plan.choose(case.collective, size)
    return choice.time if choice else None


def fitted(left_out: dict[str, Figures], conditions: Callable[[Case], Conditions]) -> Model:
    """Return the model with the figures for each machine."""

    def model(case: Case, size: int) -> float | None:
        curve = curve_of(case.plan, conditions(case), case.collective, figures=left_out[case.machine])
        return curve.time(size) if curve else None

    return model


def calibrated(found: Sequence[Case], left_out: dict[str, Figures]) -> Model:
    """Return the model scaled by the largest message of each configuration, which itself is not predicted."""
    curves = {}
    for case in found:
        largest = case.rows[-1]
        curve = curve_of(case.plan, case.told, case.collective, figures=left_out[case.machine])
        if curve is not None:
            curves[case.name] = replace(curve, scale=scale_of(curve, largest.bytes, largest.time))

    def model(case: Case, size: int) -> float | None:
        return curves[case.name].time(size) if case.name in curves and size != case.rows[-1].bytes else None

    return model


def errors(outcomes: Iterable[Outcome]) -> tuple[list[float], list[float]]:
    """Return the errors of all points, and the median of each configuration, %."""
    by_case: dict[str, list[float]] = {}
    for one in outcomes:
        by_case.setdefault(one.case.name, []).append(one.error)
    return [error for part in by_case.values() for error in part], [statistics.median(one) for one in by_case.values()]


def summary(outcomes: Iterable[Outcome]) -> str:
    """Return median and 90th percentile by point and by configuration."""
    return "".join(
        f"{statistics.median(part):>8.1f} /{percentile(part, 0.9):>7.1f}" if part else f"{'-':>17}"
        for part in errors(outcomes)
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which a share of all lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def show(title: str, outcomes: Sequence[Outcome]) -> None:
    """Print a line of the table."""
    large = [one for one in outcomes if one.bytes >= LARGE]
    small = [one for one in outcomes if LEAST_BYTES <= one.bytes < LARGE]
    print(f"{title:<44}{summary(large)}{summary(small)}")


def spreads(by_fit: Sequence[Outcome], by_calibration: Sequence[Outcome]) -> dict[str, list[dict[str, float]]]:
    """Return the 10 and 90 % quantiles of the ratio by group and size, on good machines.

    A machine weighs as the root of its points: neither may one machine with many sizes decide, nor one with two.
    Sizes that nobody measured in a group have the spread of the tuned networks.
    """
    groups: dict[str, list[Outcome]] = {NEAR: [], DOMAIN: [], FAR: []}
    for one in (one for one in by_fit if one.case.ok):
        groups[group_of(one.case.plan.job, one.case.told)].append(one)
    groups[CALIBRATED] = [one for one in by_calibration if one.case.ok]
    ends = (0, *BANDS, sys.maxsize)
    found: dict[str, list[dict[str, float]]] = {}
    for name, part in groups.items():
        bands = [[one for one in part if low <= one.bytes < high] for low, high in pairwise(ends)]
        found[name] = [_quantiles(band) if band else found[NEAR][place] for place, band in enumerate(bands)]
    return found


def _quantiles(outcomes: Sequence[Outcome]) -> dict[str, float]:
    count = Counter(one.case.machine for one in outcomes)
    whole = sum(math.sqrt(points) for points in count.values())
    ordered = sorted((one.ratio, 1 / math.sqrt(count[one.case.machine]) / whole) for one in outcomes)
    total, found = 0.0, dict[str, float]()
    for ratio, weight in ordered:
        total += weight
        if total >= 0.1:
            found.setdefault("low", round(min(ratio, 1 - LEAST_SPREAD), 3))
        if total >= 0.9:
            found.setdefault("high", round(max(ratio, 1 + LEAST_SPREAD), 3))
    return found


def write(found: Sequence[Case], by_fit: Sequence[Outcome], by_calibration: Sequence[Outcome]) -> None:
    """Write the parameters that the package ships."""
    figures = fit(found)
    machines = sorted({case.machine for case in found if case.ok})
    count = sum(row.bytes >= LEAST_BYTES for case in found if case.ok for row in case.rows)
    fitted_to = f"{count} published results of {len(machines)} machines"
    document = {
        "about": "Written by `python -m bench.predict --fit` from published outputs of nccl-tests. `spread` is where "
        "the ratio of predicted to measured bus bandwidth lay for 80 % of the points of machines left out.",
        "machines": machines,
        "basis": f"NCCL's choice, priced by {len(PRIORS)} figures fitted to {fitted_to}",
        "figures": to_builtins(figures),
        "spread": spreads(by_fit, by_calibration),
    }
    PARAMETERS.write_text(json.dumps(document, indent=1) + "\n")
    print(f"written: {PARAMETERS}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, default=os.environ.get("FABRICD_CORPUS"), metavar="FOLDER")
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--cases", action="store_true")
    options = parser.parse_args()
    if options.corpus is None:
        print("nothing to predict: --corpus FOLDER, or FABRICD_CORPUS, names the folder that holds measurements/")
        return
    found = cases(options.corpus)
    left_out = by_machine(found)
    print(f"{'':<44}{'from 64 MiB':^34}{'1 to 64 MiB':^34}")
    print(f"{'median / 90th percentile, %':<44}" + f"{'by point':>17}{'by config':>17}" * 2)
    judged = {
        "NCCL's model, ports merged": judge(found, nccl),
        FITTED: judge(found, fitted(left_out, lambda case: case.told)),
        "  the topology file alone": judge(found, fitted(left_out, lambda case: case.shown)),
        BY_CALIBRATION: judge(found, calibrated(found, left_out)),
    }
    for part, chosen in (("all", found), ("quality ok", [case for case in found if case.ok])):
        print(f"{part}: {len(chosen)} configurations of {len({case.machine for case in chosen})} machines")
        for title, outcomes in judged.items():
            show(title, [one for one in outcomes if one.case in chosen])
    if options.cases:
        show_cases(found, judged[FITTED])
    if options.fit:
        write(found, judged[FITTED], judged[BY_CALIBRATION])


def show_cases(found: Sequence[Case], outcomes: Sequence[Outcome]) -> None:
    """Print what each configuration was taken for, and its ratios."""
    for case in found:
        kind = "virtual" if case.told.virtual else "real"
        print(f"\n{case.name} ({case.machine}): {case.told.transport}, {kind}, {case.plan.job.ring.type_inter.name}")
        curve = curve_of(case.plan, case.told, case.collective)
        for one in outcomes:
            if one.case is case and one.bytes >= LEAST_BYTES and curve is not None:
                print(f"  {one.bytes:>12} {one.ratio:6.2f}  {'/'.join(curve.way(one.bytes))}")


if __name__ == "__main__":
    main()
