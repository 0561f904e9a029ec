"""What one process of NCCL searches on: GPUs that it reaches only by network are taken out of its graph.

Such GPUs look like those of another host from then on: NCCL splits a machine in two where its GPUs reach each other
faster through their ports. Source: NCCL 2.30, graph/paths.cc, ncclTopoTrimSystem.
"""

from collections.abc import Collection

from fabricd.errors import InputError
from fabricd.graph.nccl_xml_types import NcclTopology
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.paths import PathTable
from fabricd.paths.nccl.rules import compute_paths
from fabricd.paths.nccl.system import Gpu, System


def domains(table: PathTable) -> list[list[Gpu]]:
    """Return the GPUs by domain, in order.

    A GPU joins the domain of an earlier one that it reaches better than by network; one pass, towards earlier ones.
    """
    gpus = table.system.gpus
    chosen: list[int] = []
    for gpu in gpus:
        near = (chosen[other.index] for other in gpus[: gpu.index] if table.get(gpu, other).kind < PathKind.NET)
        chosen.append(min(near, default=gpu.index))
    return [[gpu for gpu in gpus if chosen[gpu.index] == first] for first in sorted(set(chosen))]


def searched_paths(
    topology: NcclTopology, environment: NcclEnvironment | None = None, *, rank: int | None = None
) -> PathTable:
    """Return the paths that the search of one rank starts from: those within its domain, computed anew.

    Args:
        topology: the file.
        environment: settings.
        rank: whose view, by default that of the first GPU.

    Raises:
        InputError: NCCL fails on this file, or it has no such rank.
    """
    table = compute_paths(build_system(topology), environment)
    groups = domains(table)
    if not groups:
        raise InputError("no GPU of the file has a rank")
    ranks = {gpu.rank: group for group in groups for gpu in group}
    if rank is not None and rank not in ranks:
        raise InputError(f"no GPU of rank {rank} in the file", hint=f"ranks: {sorted(ranks)}")
    if len(groups) == 1:
        return table
    kept = {gpu.index for gpu in (groups[0] if rank is None else ranks[rank])}
    system = build_system(topology)
    _remove(system, [gpu for gpu in system.gpus if gpu.index not in kept])
    return compute_paths(system, environment)


def _remove(system: System, gpus: Collection[Gpu]) -> None:
    """Take GPUs out of a graph. The physical GPUs of removed ranks stay."""
    gone = {id(gpu) for gpu in gpus}
    system.gpus = [gpu for gpu in system.gpus if id(gpu) not in gone]
    for device in system.devices:
        device.links = [link for link in device.links if id(link.target) not in gone]
    system.number()
