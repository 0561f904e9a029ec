"""Files by which mpirun places ranks: a hostfile with slots, and a rankfile that binds each rank beside its GPU.

Source: mpirun(1) of Open MPI 4.1 and 5.0.
"""

from collections.abc import Mapping, Sequence

from fabricd.errors import InputError
from fabricd.model.snapshot import Snapshot
from fabricd.units import format_ranges


def hostfile(nodes: Mapping[str, Snapshot]) -> str:
    """Return one line a node, in order, with a slot for each GPU; a node without GPUs has one.

    Raises:
        InputError: a name that such a file cannot hold.
    """
    return "".join(f"{_checked(name)} slots={len(snapshot.gpus) or 1}\n" for name, snapshot in nodes.items())


def rankfile(nodes: Mapping[str, Snapshot], order: Sequence[int] = ()) -> str:
    """Return one line a rank: its node, and the processors of the NUMA node that its GPU is nearest to.

    Args:
        nodes: by name, in order of their ranks.
        order: by new rank, the rank as it was, counted over the GPUs of ``nodes``; empty: as they are.

    Raises:
        InputError: an order of other ranks, or a name that such a file cannot hold.
    """
    ranks = [(name, _processors(snapshot, gpu)) for name, snapshot in nodes.items() for gpu in _gpus(snapshot)]
    order = order or range(len(ranks))
    if sorted(order) != list(range(len(ranks))):
        raise InputError(f"an order of {len(order)} ranks, and the nodes have {len(ranks)}")
    lines = [(rank, *ranks[old]) for rank, old in enumerate(order)]
    return "".join(f"rank {rank}={_checked(name)} slot={slots}\n" for rank, name, slots in lines)


def _gpus(snapshot: Snapshot) -> Sequence[int | None]:
    """Return the NUMA node of each GPU; of a node without GPUs one that is not known."""
    return [gpu.numa_node for gpu in snapshot.gpus] or [None]


def _processors(snapshot: Snapshot, numa: int | None) -> str:
    cpus = next((node.cpus for node in snapshot.numa if node.index == numa), ())
    return format_ranges(cpus) or "*"


def _checked(name: str) -> str:
    if not name or not name.isprintable() or set(name) & set(" =#\"'"):
        raise InputError(f"the node's name {name[:80]!r} cannot stand in a host file")
    return name
