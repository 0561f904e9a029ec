"""What the benchmark runs: each collective with data whose result is known at every position of every rank."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fabric_client.communicator import Communicator
from fabric_client.ops import ReduceOp

Array = NDArray[Any]

#: Length of the pattern of the data. A prime, so that no block or segment repeats at the same place.
_PERIOD = 4093
#: Every element is one of 1, 2, 3: sums and products of many ranks stay exact in the small types, too.
_VALUES = 3
# Odd constants of 32 bits that mix well. Source: the golden ratio (Knuth) and the primes of xxHash.
_MIX_A, _MIX_B, _LOW_32 = np.uint64(2654435761), np.uint64(2246822519), np.uint64(0xFFFFFFFF)


def pattern(rank: int, dtype: Any) -> Array:
    """Return one period of a rank's data: it differs by rank and by position, as if drawn at random."""
    mixed = (np.arange(_PERIOD, dtype=np.uint64) * _MIX_A + np.uint64(rank) * _MIX_B) & _LOW_32
    mixed = ((mixed ^ (mixed >> np.uint64(15))) * _MIX_B) & _LOW_32
    return (mixed // 65536 % _VALUES + 1).astype(dtype)


def stretch(period: Array, count: int, offset: int = 0) -> Array:
    """Return ``count`` elements of a repeating pattern, from position ``offset`` on."""
    return np.resize(np.roll(period, -(offset % _PERIOD)), count)


def combine(op: ReduceOp, ranks: int, dtype: Any) -> Array:
    """Return one period of what the reduction of all ranks' patterns must be, exactly."""
    # Half is reduced in float, and so is its expectation.
    wide = np.float32 if np.dtype(dtype) == np.float16 else dtype
    functions: dict[ReduceOp, Callable[[Array, Array], Array]] = {
        ReduceOp.PRODUCT: np.multiply,
        ReduceOp.MIN: np.minimum,
        ReduceOp.MAX: np.maximum,
    }
    with np.errstate(over="ignore"):  # a product of very many ranks is inf on both sides
        total = reduce(functions.get(op, np.add), (pattern(rank, wide) for rank in range(ranks)))
        if op is ReduceOp.AVERAGE:
            total = np.divide(total, ranks, dtype=wide)
        return total.astype(dtype)


@dataclass(slots=True)
class Trial:
    """One collective at one size on one rank, with its arrays.

    Attributes:
        run: the operation out of place.
        run_in_place: the operation in place; None where there is no such thing.
        reset: puts every buffer into its first state, without the result.
        result: where ``run`` writes; None on ranks that receive nothing.
        result_in_place: where ``run_in_place`` writes.
        expected: what both must be.
    """

    run: Callable[[], object]
    run_in_place: Callable[[], object] | None
    reset: Callable[[], None]
    result: Array | None
    result_in_place: Array | None
    expected: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What a trial is made of."""

    dtype: Any
    op: ReduceOp
    root: int
    count: int  #: elements: of the whole buffer, or of one rank's block where the collective has blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A collective as nccl-tests measures it.

    Attributes:
        make: makes a trial.
        bus_factor: busbw over algbw for n ranks. Source: nccl-tests, doc/PERFORMANCE.md.
        blocks: the size counts one block for each rank.
        reduces: has an operator.
    """

    make: Callable[[Communicator, Spec], Trial]
    bus_factor: Callable[[int], float]
    blocks: bool = False
    reduces: bool = False


def count_wrong(result: Array | None, expected: Array) -> int:
    """Return how many elements are not what they must be."""
    return 0 if result is None else int(np.count_nonzero(result != expected))


def _fill(*pairs: tuple[Array | None, Array | int]) -> None:
    for array, content in pairs:
        if array is not None:
            array[...] = content


def _all_reduce(comm: Communicator, spec: Spec) -> Trial:
    data = stretch(pattern(comm.rank, spec.dtype), spec.count)
    out, own = np.empty_like(data), np.empty_like(data)
    return Trial(
        run=lambda: comm.all_reduce(data, spec.op, out=out),
        run_in_place=lambda: comm.all_reduce(own, spec.op, out=own),
        reset=lambda: _fill((own, data), (out, 0)),
        result=out,
        result_in_place=own,
        expected=stretch(combine(spec.op, comm.size, spec.dtype), spec.count),
    )


def _reduce(comm: Communicator, spec: Spec) -> Trial:
    data = stretch(pattern(comm.rank, spec.dtype), spec.count)
    own = np.empty_like(data)
    out = np.empty_like(data) if comm.rank == spec.root else None
    at_root = own if comm.rank == spec.root else None
    return Trial(
        run=lambda: comm.reduce(data, spec.op, spec.root, out=out),
        run_in_place=lambda: comm.reduce(own, spec.op, spec.root, out=at_root),
        reset=lambda: _fill((own, data), (out, 0)),
        result=out,
        result_in_place=at_root,
        expected=stretch(combine(spec.op, comm.size, spec.dtype), spec.count),
    )


def _reduce_scatter(comm: Communicator, spec: Spec) -> Trial:
    shape = (comm.size, spec.count)
    data = stretch(pattern(comm.rank, spec.dtype), comm.size * spec.count).reshape(shape)
    out, own = np.empty(spec.count, spec.dtype), np.empty_like(data)
    block = own[comm.rank]
    total = combine(spec.op, comm.size, spec.dtype)
    return Trial(
        run=lambda: comm.reduce_scatter(data, spec.op, out=out),
        run_in_place=lambda: comm.reduce_scatter(own, spec.op, out=block),
        reset=lambda: _fill((own, data), (out, 0)),
        result=out,
        result_in_place=block,
        expected=stretch(total, spec.count, comm.rank * spec.count),
    )


def _all_gather(comm: Communicator, spec: Spec) -> Trial:
    data = stretch(pattern(comm.rank, spec.dtype), spec.count)
    out, own = (np.empty((comm.size, spec.count), spec.dtype) for _ in range(2))
    block = own[comm.rank]
    return Trial(
        run=lambda: comm.all_gather(data, out=out),
        run_in_place=lambda: comm.all_gather(block, out=own),
        reset=lambda: _fill((own, 0), (block, data), (out, 0)),
        result=out,
        result_in_place=own,
        expected=np.stack([stretch(pattern(rank, spec.dtype), spec.count) for rank in range(comm.size)]),
    )


def _all_to_all(comm: Communicator, spec: Spec) -> Trial:
    shape = (comm.size, spec.count)
    data = stretch(pattern(comm.rank, spec.dtype), comm.size * spec.count).reshape(shape)
    out, own = np.empty(shape, spec.dtype), np.empty(shape, spec.dtype)
    mine = comm.rank * spec.count
    return Trial(
        run=lambda: comm.all_to_all(data, out=out),
        run_in_place=lambda: comm.all_to_all(own, out=own),
        reset=lambda: _fill((own, data), (out, 0)),
        result=out,
        result_in_place=own,
        expected=np.stack([stretch(pattern(rank, spec.dtype), spec.count, mine) for rank in range(comm.size)]),
    )


def _broadcast(comm: Communicator, spec: Spec) -> Trial:
    data = stretch(pattern(spec.root, spec.dtype), spec.count)
    buffer = np.empty_like(data)
    return Trial(  # MPI's broadcast knows one buffer: out of place and in place are the same
        run=lambda: comm.broadcast(buffer, spec.root),
        run_in_place=lambda: comm.broadcast(buffer, spec.root),
        reset=lambda: _fill((buffer, data if comm.rank == spec.root else 0)),
        result=buffer,
        result_in_place=buffer,
        expected=data,
    )


def _sendrecv(comm: Communicator, spec: Spec) -> Trial:
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    data = stretch(pattern(comm.rank, spec.dtype), spec.count)
    out = np.empty_like(data)
    return Trial(
        run=lambda: comm.sendrecv(data, after, out, before),
        run_in_place=None,
        reset=lambda: _fill((out, 0)),
        result=out,
        result_in_place=None,
        expected=stretch(pattern(before, spec.dtype), spec.count),
    )


COLLECTIVES = {
    "all_reduce": Collective(make=_all_reduce, bus_factor=lambda n: 2 * (n - 1) / n, reduces=True),
    "all_gather": Collective(make=_all_gather, bus_factor=lambda n: (n - 1) / n, blocks=True),
    "reduce_scatter": Collective(make=_reduce_scatter, bus_factor=lambda n: (n - 1) / n, blocks=True, reduces=True),
    "all_to_all": Collective(make=_all_to_all, bus_factor=lambda n: (n - 1) / n, blocks=True),
    "broadcast": Collective(make=_broadcast, bus_factor=lambda n: 1.0),
    "reduce": Collective(make=_reduce, bus_factor=lambda n: 1.0, reduces=True),
    "sendrecv": Collective(make=_sendrecv, bus_factor=lambda n: 1.0),
}
