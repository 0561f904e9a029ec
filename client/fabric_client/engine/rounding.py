"""What engines of host memory do around a reduction: 16-bit floats in float32, averages from sums, inf in silence."""

import contextvars
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fabric_client.arrays import Array
from fabric_client.ops import ReduceOp


def reduced_in_float32(array: Array) -> bool:
    """Tell whether an array is of 16-bit floats: float16, or bfloat16, the only one of its kind that is reduced."""
    return array.dtype.char == "e" or array.dtype.kind == "V"


def divided(out: Array, op: ReduceOp, size: int) -> Callable[[], None] | None:
    """Return what makes an average of a sum, for AVERAGE."""
    if op is not ReduceOp.AVERAGE:
        return None
    # Not an int: NumPy makes a long double of one by way of text, and whoever asks Python for text hears signals.
    return once(np.divide, out, out.dtype.type(size), out)


def narrowed(wide: Array, out: Array, op: ReduceOp, size: int) -> Callable[[], None]:
    """Return what brings a reduction back from the float32 that it was done in."""

    def narrow() -> None:
        with np.errstate(over="ignore"):  # beyond its range is inf, as in any arithmetic of 16 bits
            if op is ReduceOp.AVERAGE:
                np.divide(wide, size, out=out, casting="unsafe")
            else:
                out[...] = wide

    return narrow


def once(function: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
    """Return what makes a call when it is first called, and then never: also where Ctrl-C ends the caller right after.

    The call and the knowledge of it are one: no signal is heard between them.

    Args:
        function: written in C, and which hears no signals with these arguments.
        arguments: of it.
    """
    calls = map(function, *((argument,) for argument in arguments))

    def call() -> None:
        next(calls, None)

    return call


def silent_add() -> Callable[[Array, Array, Array], object]:
    """Return what adds two arrays into a third, inf and nan in silence, as MPI has it. Not for two threads at once."""
    add: Callable[..., object] = np.add
    if int(np.__version__.partition(".")[0]) < 2:  # such a choice is a thread's, and is put back each time
        return np.errstate(over="ignore", invalid="ignore")(lambda one, other, out: add(one, other, out))
    # Later NumPy keeps it in a context. Choosing anew for each sum would take longer than adding.
    context = contextvars.copy_context()
    context.run(np.seterr, over="ignore", invalid="ignore")
    return partial(context.run, add)
