"""Linear programs, and what is told of those that are not solved.

A solver that gives up may hand out numbers all the same; they are no solution, and nothing here reads them.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from fabricd.plan.collective.fabric import Floats

#: Pivots of the simplex method, not seconds: the same on every machine. The largest programs here need some thousands.
_MAX_ITERATIONS = 500_000


@dataclass(frozen=True, slots=True)
class Optimum:
    """A solution.

    Attributes:
        values: of the variables.
        prices: of the constraints: how much more there would be for one more of ``most``.
    """

    values: Floats
    prices: Floats


def maximise(gains: Floats, uses: Floats, most: Floats, *, presolve: bool = True) -> Optimum | str:
    """Return variables, none below 0, with the greatest ``gains @ values`` where ``uses @ values <= most``.

    Args:
        gains: [variables].
        uses: [constraints, variables].
        most: [constraints].
        presolve: for small programs it takes longer than it saves.

    Returns:
        The optimum; in words why there is none if neither the simplex method nor, after it, the one through the
        interior proves one.
    """
    words = ""
    for method, first in (("highs-ds", presolve), ("highs-ipm", True)):
        options = {"presolve": first, "maxiter": _MAX_ITERATIONS}
        solved = linprog(-gains, A_ub=uses, b_ub=most, method=method, options=options)
        if solved.status == 0:
            return Optimum(np.maximum(0.0, solved.x), np.maximum(0.0, -solved.ineqlin.marginals))
        words = words or " ".join(str(solved.message).split())
    return words
