"""The fit: least squares on log time, every machine with equal weight, drawn towards prior figures."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.prediction.corpus import Case
from fabricd.plan.predict.conditions import Conditions
from fabricd.plan.predict.model import curve_of, time_of
from fabricd.plan.predict.parameters import Figures
from fabricd.plan.predict.terms import Terms, terms_of

#: Where the fit starts, and how far it may stray, as the standard deviation of the logarithm.
PRIORS = {
    "skew_domain": (5.0, 1.0),
    "skew_network": (20.0, 1.0),
    "skew_virtual": (20.0, 1.0),
    "hop_infiniband": (3.0, 0.7),
    "hop_efa": (20.0, 0.5),
    "hop_gpudirect_tcp": (25.0, 0.7),
    "hop_slingshot": (3.0, 0.7),
    "hop_ethernet": (15.0, 0.7),
    "nvls_gpu": (4.0, 0.7),
    "nvls_tree": (1.5, 0.35),
    "ring_surcharge": (1.0, 0.5),
    "reach_host": (0.8, 0.2),
    "reach_sockets": (0.5, 0.3),
    "socket_stream": (2.5, 0.4),
}
LEAST_BYTES = 1 << 20
#: Residuals beyond this count by their logarithm: runs that failed in ways no model knows.
_CAUCHY_SCALE = 0.12
#: Points of a machine together weigh as much as this many.
_POINTS_OF_A_MACHINE = 10.0


@dataclass(frozen=True, slots=True)
class _Row:
    terms: Terms
    conditions: Conditions
    log_time: float
    weight: float


def fit(cases: Sequence[Case]) -> Figures:
    """Return the figures that fit the good machines best."""
    from scipy.optimize import least_squares

    rows = _rows([case for case in cases if case.ok])
    names = list(PRIORS)
    centres = [math.log(PRIORS[name][0]) for name in names]
    deviations = [PRIORS[name][1] for name in names]

    def residuals(logs: Sequence[float]) -> list[float]:
        figures = Figures(**{name: math.exp(value) for name, value in zip(names, logs, strict=True)})
        out = []
        for row in rows:
            error = (math.log(time_of(row.terms, row.conditions, figures)) - row.log_time) / _CAUCHY_SCALE
            out.append(math.copysign(math.sqrt(row.weight * math.log1p(error * error)), error))
        out.extend(
            (value - centre) / deviation for value, centre, deviation in zip(logs, centres, deviations, strict=True)
        )
        return out

    best = least_squares(residuals, centres, ftol=1e-6, xtol=1e-4).x
    return Figures(**{name: round(math.exp(value), 3) for name, value in zip(names, best, strict=True)})


def _rows(cases: Sequence[Case]) -> list[_Row]:
    points = Counter[str]()
    for case in cases:
        points[case.machine] += sum(row.bytes >= LEAST_BYTES for row in case.rows)
    rows = []
    for case in cases:
        curve = curve_of(case.plan, case.told, case.collective)
        if curve is None:
            continue
        for row in case.rows:
            if row.bytes < LEAST_BYTES:
                continue
            way = curve.way(row.bytes)
            terms = terms_of(case.plan.job, case.collective, way, curve.lines[way], row.bytes)
            weight = _POINTS_OF_A_MACHINE / points[case.machine]
            rows.append(_Row(terms, case.told, math.log(row.time), weight))
    return rows
