"""One rank of the contract of collectives: every cell against NumPy. Prints {"cells": N, "wrong": [...]} as JSON.

Every rank makes the data of all ranks, so it knows what each result must be. Results of integers, minima, maxima and
moved data must be exact; sums, products and averages of floats may differ by the bound of
:func:`tests.contract.expected.tolerance`, because an engine adds in its own order.

    python -m tests.contract.rank_collectives mpi
"""

import json
import sys

import numpy as np

from tests.contract.cells_moves import Moves
from tests.contract.cells_reductions import Reductions
from tests.contract.cells_works import Works
from tests.contract.subject import SUBJECTS


class Contract(Reductions, Moves, Works):
    """All cells for one communicator."""

    def run(self) -> None:
        self.reductions()
        self.moves()
        self.works()


def main() -> None:
    subject = SUBJECTS[sys.argv[1]]
    with subject.create() as comm:
        contract = Contract(comm, subject)
        with np.errstate(over="ignore"):
            contract.run()
        json.dump({"cells": contract.cells, "wrong": contract.wrong[:20]}, sys.stdout)


if __name__ == "__main__":
    main()
