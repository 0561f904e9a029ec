"""One rank whose waits are interrupted, at every step that Python makes in them, and tried again. Prints JSON.

    python -m tests.e2e.rank_interrupts

Prints {"wrong": [...], "interrupted": N}.
"""

import dis
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client import Communicator, Work, create_communicator

_MOST_STEPS = 1500
#: After these CPython looks for signals; between others it does not, so that ``with`` holds what it enters.
_HEARD_AFTER = ("RESUME", "CALL", "JUMP_BACKWARD")
_BEYOND = 3  #: waits in a row that were over before their moment came: no step is left


class Interrupt:
    """Raises KeyboardInterrupt before one step of the client's code.

    Args:
        step: which, from where it is entered.
    """

    def __init__(self, step: int) -> None:
        self._left = step
        self._before: dict[FrameType, int] = {}
        self.came = False

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        """See sys.settrace."""
        if "/fabric_client/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not self.came:
            before = self._before.get(frame, 0)
            self._before[frame] = frame.f_lasti
            if dis.opname[frame.f_code.co_code[before]].startswith(_HEARD_AFTER):
                self._left -= 1
                if self._left < 0:
                    self.came = True
                    self._before.clear()
                    raise KeyboardInterrupt
        return self.trace


def waited(work: "Work[Any]", step: int) -> tuple[Any, bool]:
    """Return what a work gives whose wait is interrupted and tried again, and whether it was."""
    interrupt = Interrupt(step)
    sys.settrace(interrupt.trace)
    try:
        work.wait(20)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return work.wait(20), interrupt.came


def operations(comm: Communicator) -> dict[str, tuple[Callable[[], "Work[Any]"], float]]:
    """Return what is started, and the number that it gives everywhere."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    average, total = (comm.size + 1) / 2, comm.size * (comm.size + 1) / 2

    def own(dtype: str, count: int = 50) -> Any:
        return np.full(count, comm.rank + 1, dtype)

    def message() -> "Work[Any]":
        comm.send(own("f4"), after, async_op=True)
        return comm.recv(np.zeros(50, "f4"), before, async_op=True)

    def in_place(op: str, count: int) -> "Work[Any]":
        array: NDArray[Any] = own("f4", count)
        work: Work[NDArray[Any]] = comm.all_reduce(array, op, out=array, async_op=True)
        return work

    return {
        "average": (lambda: in_place("average", 50), average),
        "sum of some": (lambda: in_place("sum", 9_000), total),
        "average of some": (lambda: in_place("average", 9_000), average),
        "sum of many": (lambda: in_place("sum", 150_000), total),
        "average of float16": (lambda: comm.all_reduce(own("f2"), "average", async_op=True), average),
        "reduce_scatter": (lambda: comm.reduce_scatter(own("f2", comm.size), "average", async_op=True), average),
        "message": (message, before + 1.0),
    }


def main() -> None:
    """Interrupt each operation's wait at each of its steps."""
    wrong, interrupted = [], 0
    with create_communicator() as comm:
        for name, (start, right) in operations(comm).items():
            beyond = 0
            for step in range(_MOST_STEPS):
                work = start()
                comm.barrier()  # mostly, it has ended then
                got, came = waited(work, step)
                interrupted += came
                if not (got == right).all():
                    wrong.append(f"{name} at {step}: {got.reshape(-1)[0]} instead of {right}")
                beyond = 0 if came else beyond + 1
                if comm.all_reduce(np.array([beyond >= _BEYOND]), "min")[0]:
                    break
    json.dump({"wrong": wrong[:20], "interrupted": interrupted}, sys.stdout)


if __name__ == "__main__":
    main()
