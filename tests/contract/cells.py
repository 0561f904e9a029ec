"""What all cells of the contract share."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator
from tests.contract.expected import BFLOAT16, data
from tests.contract.subject import Subject

Array = NDArray[Any]

#: Elements: none, 0-d, an odd few, more than an eager message of most types.
SHAPES: list[tuple[int, ...]] = [(0,), (), (3, 5), (20_011,)]
LARGE = SHAPES[-1]


class Cells:
    """Counts cells and what is wrong in them; knows the data of all ranks."""

    def __init__(self, comm: Communicator, subject: Subject) -> None:
        self.comm = comm
        self.size = comm.size
        self.subject = subject
        self.put, self.get = subject.put, subject.get
        self.cells = 0
        self.wrong: list[str] = []

    @property
    def numeric(self) -> list[Any]:
        return [*self.subject.numeric, BFLOAT16]

    @property
    def moved(self) -> list[Any]:
        return [*self.numeric, *self.subject.moved]

    def check(self, name: str, said: str) -> None:
        self.cells += 1
        if said:
            self.wrong.append(f"{name}: {said}")

    def inputs(self, shape: tuple[int, ...], dtype: Any) -> list[Array]:
        return [data(rank, shape, dtype) for rank in range(self.size)]

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.put(np.zeros(shape, dtype))

    def ways(self, mine: Array) -> Iterator[tuple[str, Any, Any]]:
        """Yield new array, given array, and in place."""
        yield "new", self.put(mine), None
        yield "out", self.put(mine), self.empty(mine.shape, mine.dtype)
        own = self.put(mine)
        yield "in place", own, own
