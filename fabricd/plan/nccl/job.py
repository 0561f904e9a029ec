"""A job as NCCL's model of time sees it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fabricd.paths.nccl.system import System
from fabricd.plan.nccl import constants
from fabricd.plan.nccl.graphs import SearchGraph


class Collective(StrEnum):
    """Collectives in NCCL's names."""

    BROADCAST = "Broadcast"
    REDUCE = "Reduce"
    ALL_GATHER = "AllGather"
    REDUCE_SCATTER = "ReduceScatter"
    ALL_REDUCE = "AllReduce"


#: By the names of nccl-tests, which are ours.
COLLECTIVES: Mapping[str, Collective] = {
    "all_reduce": Collective.ALL_REDUCE,
    "all_gather": Collective.ALL_GATHER,
    "reduce_scatter": Collective.REDUCE_SCATTER,
    "broadcast": Collective.BROADCAST,
    "reduce": Collective.REDUCE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What tuning depends on.

    Attributes:
        nodes: machines, or NVLink domains that span several; parts of a machine that NCCL splits count each.
        ranks: GPUs in all.
        sm: lowest compute capability times ten of all GPUs.
        sm_max: highest.
        arch: of the processors, "" where they differ.
        vendor: of the processors, "mixed" where they differ.
        ring: its search's result, the worst over all machines.
        tree: likewise.
        nvls: likewise.
        channels: rings in use at last, see ``fabricd.plan.nccl.channels``.
    """

    nodes: int
    ranks: int
    sm: int
    sm_max: int
    arch: str
    vendor: str
    ring: SearchGraph
    tree: SearchGraph
    nvls: SearchGraph
    channels: int

    @classmethod
    def of(
        cls,
        systems: Sequence[System],
        *,
        nodes: int,
        ranks: int,
        ring: SearchGraph,
        tree: SearchGraph,
        nvls: SearchGraph,
        channels: int,
    ) -> "Job":
        """Return a job.

        Args:
            systems: NCCL's graph of one machine of each kind.
            nodes: number of machines.
            ranks: GPUs in all.
            ring: search results, as ``tree`` and ``nvls``.
            tree: see ``ring``.
            nvls: see ``ring``.
            channels: rings in use at last.
        """
        sms = [device.sm for system in systems for device in system.devices]
        archs = {system.cpus[0].arch for system in systems}
        vendors = {system.cpus[0].vendor for system in systems}
        return cls(
            nodes=nodes,
            ranks=ranks,
            sm=min(sms),
            sm_max=max(sms),
            arch=archs.pop() if len(archs) == 1 else "",
            vendor=vendors.pop() if len(vendors) == 1 else "mixed",
            ring=ring,
            tree=tree,
            nvls=nvls,
            channels=channels,
        )

    @property
    def ranks_per_node(self) -> float:
        """Ranks on a machine, on average."""
        return self.ranks / self.nodes

    @property
    def generation(self) -> int:
        """Row of the tables."""
        return sum(self.sm >= least for least in constants.GENERATIONS)

    @property
    def column(self) -> int:
        """Column of the tables."""
        return min(self.nodes, 3) - 1

    def graph(self, algorithm: str) -> SearchGraph:
        """Return the search result that an algorithm runs on."""
        if algorithm == "Ring":
            return self.ring
        return self.nvls if algorithm.startswith("NVLS") else self.tree

    def channels_of(self, algorithm: str) -> int:
        """Return the number of channels the model counts; rings and trees have equally many."""
        if algorithm.startswith("NVLS"):
            return len(self.nvls.channels)
        return min(len(self.ring.channels), len(self.tree.channels))
