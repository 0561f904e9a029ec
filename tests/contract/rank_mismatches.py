"""One rank whose calls are compared with the others': ``python -m tests.contract.rank_mismatches ENGINE EVERY``.

The last rank calls something else, for each operation in each way that a call can differ, or in every third of them and
so on. Prints ``{"said": {case:
error}, "right": bool}`` as JSON: what this rank was told, and whether the same calls made alike went well in between.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from fabric_client import Communicator, InputError
from tests.contract.subject import SUBJECTS, Subject

Play = Callable[[bool], Any]


def cases(comm: Communicator, subject: Subject) -> dict[str, Play]:
    """Return calls by name, each given whether this rank is the one that is wrong."""
    rank, size = comm.rank, comm.size

    def ones(*shape: int, dtype: Any = "f4") -> Any:
        return subject.put(np.ones(shape, dtype))

    def at_root(array: Any) -> Any:
        return array if rank == 0 else None

    twos = [2] * size
    plain = Communicator(comm._runner, comm._identity)  # compares nothing but what goes with counts anyway

    def last(wrong: bool) -> list[int]:
        return [*twos[1:], 2 + wrong]

    return {
        "all_reduce shape": lambda wrong: comm.all_reduce(ones(3 + wrong)),
        "all_reduce axes": lambda wrong: comm.all_reduce(ones(3, 2) if wrong else ones(2, 3)),
        "all_reduce dtype": lambda wrong: comm.all_reduce(ones(3, dtype="f8" if wrong else "f4")),
        "all_reduce operator": lambda wrong: comm.all_reduce(ones(3), "max" if wrong else "sum"),
        "all_reduce in the background": lambda wrong: comm.all_reduce(ones(3 + wrong), async_op=True).wait(20),
        "reduce shape": lambda wrong: comm.reduce(ones(3 + wrong)),
        "reduce root": lambda wrong: comm.reduce(ones(3), root=1 if wrong else 0),
        "reduce_scatter shape": lambda wrong: comm.reduce_scatter(ones(size, 3 + wrong)),
        "reduce_scatter_v counts": lambda wrong: comm.reduce_scatter_v(
            ones(2 * size), [1, 3, *twos[2:]] if wrong else twos
        ),
        "broadcast shape": lambda wrong: comm.broadcast(ones(3 + wrong)),
        "broadcast root": lambda wrong: comm.broadcast(ones(3), 1 if wrong else 0),
        "all_gather shape": lambda wrong: comm.all_gather(ones(3 + wrong)),
        "all_gather_v row": lambda wrong: plain.all_gather_v(ones(2, 3 + wrong)),
        "all_gather_v counts": lambda wrong: comm.all_gather_v(ones(2 + wrong), counts=last(wrong)),
        "all_gather_v counts left out": lambda wrong: comm.all_gather_v(ones(2), counts=None if wrong else twos),
        "gather shape": lambda wrong: comm.gather(ones(3 + wrong)),
        "gather_v row": lambda wrong: plain.gather_v(ones(2, 3 + wrong)),
        "gather_v none": lambda wrong: plain.gather_v(ones(0, dtype="f8") if wrong else ones(2)),
        "gather_v root": lambda wrong: plain.gather_v(ones(2), 1 if wrong else 0),
        "gather_v counts": lambda wrong: comm.gather_v(ones(2 + wrong), counts=last(wrong)),
        "scatter shape": lambda wrong: comm.scatter(at_root(ones(size, 3)), out=ones(3 + wrong)),
        "scatter dtype": lambda wrong: comm.scatter(at_root(ones(size, 3)), out=ones(3, dtype="f8" if wrong else "f4")),
        "scatter_v counts": lambda wrong: comm.scatter_v(at_root(ones(2 * size)), at_root(twos), out=ones(2 + wrong)),
        "all_to_all shape": lambda wrong: comm.all_to_all(ones(size, 3 + wrong)),
        "all_to_all_v row": lambda wrong: plain.all_to_all_v(ones(2 * size, 3 + wrong), twos),
        "all_to_all_v counts": lambda wrong: comm.all_to_all_v(
            ones(2 * size), twos, recv_counts=[3, *twos[1:]] if wrong else twos
        ),
        "barrier": lambda wrong: comm.broadcast(ones(3)) if wrong else comm.barrier(),
        "dup": lambda wrong: comm.split(0) if wrong else comm.dup(),
        "subgroup": lambda wrong: comm.subgroup([rank] if wrong else [0, 1]),
        "of a split": lambda wrong: _half(comm).all_reduce(ones(3 + wrong)),
    }


def _half(comm: Communicator) -> Communicator:
    made = comm.split(0)
    assert made is not None
    return made


def main() -> None:
    subject = SUBJECTS[sys.argv[1]]
    if os.environ["RANK"] == "1":  # what one asks for, all do
        os.environ["FABRICD_CHECK_CALLS"] = "1"
    said, right = {}, True
    with subject.create() as comm:
        played = list(cases(comm, subject).items())[:: int(sys.argv[2])]
        for name, play in played:
            play(False)
            try:
                play(comm.rank == comm.size - 1)
            except InputError as error:
                said[name] = str(error)
            total = subject.get(comm.all_reduce(subject.put(np.arange(4.0))))
            right = right and bool((total == comm.size * np.arange(4.0)).all())
    print(json.dumps({"cases": [name for name, _ in played], "said": said, "right": right}))


if __name__ == "__main__":
    main()
