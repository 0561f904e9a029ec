"""Smallest cuts of a machine's links, the rest of the cluster seen as one node behind the ports."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from fabricd.paths.nccl.system import Gpu
from fabricd.plan.collective.fabric import Fabric, Floats, Integers

#: The solver counts in 32-bit integers; that much is "no limit".
_ENDLESS = 1_000_000_000


class Cuts:
    """Finds sets of nodes that few links leave.

    A set is an array of truth values by node; its last element is the rest of the cluster, which ports lead to. Cuts
    are found in whole numbers, and what they carry is then summed up exactly: a cut is a bound however it was found.

    Attributes:
        ranks: nodes of the ranks, lowest first.
        rest: the node that stands for the rest of the cluster.
    """

    def __init__(self, fabric: Fabric, *, reverse: bool = False) -> None:
        """Prepare the graph, or that of all links turned round."""
        ports = fabric.places[fabric.ranks :]
        self.ranks: Integers = fabric.places[: fabric.ranks]
        self.rest = fabric.size
        outward = np.full(len(ports), self.rest, dtype=np.int64)
        tails = np.concatenate([fabric.tails, ports, outward])
        heads = np.concatenate([fabric.heads, outward, ports])
        self._tails, self._heads = (heads, tails) if reverse else (tails, heads)
        self._capacity: Floats = np.append(fabric.capacity, np.full(2 * len(ports), np.inf))
        # Not even all ranks together fill what counts as endless.
        self._scale = _ENDLESS / (4 * len(self.ranks) * _widest(fabric) + 1e-12)
        self._whole = self._rounded(self._capacity)
        self._source = self.rest + 1
        self._sink = self.rest + 2

    def _rounded(self, values: Floats) -> Integers:
        return np.minimum(values * self._scale, _ENDLESS).astype(np.int64)

    def crossed(self, inside: npt.NDArray[np.bool_]) -> Integers:
        """Return the numbers of the links that leave a set."""
        links = len(self._capacity)
        return np.flatnonzero(inside[self._tails[:links]] & ~inside[self._heads[:links]])

    def leaving(self, inside: npt.NDArray[np.bool_]) -> float:
        """Return what the links carry that leave a set, GB/s."""
        return float(self._capacity[self.crossed(inside)].sum())

    def held(self, inside: npt.NDArray[np.bool_]) -> int:
        """Return how many ranks are in a set."""
        return int(inside[self.ranks].sum())

    def smallest(self, inside: Iterable[int], outside: Iterable[int], *, each: float = 0.0) -> npt.NDArray[np.bool_]:
        """Return the set that fewest bytes can leave, each rank out of it counting as if it sent ``each`` GB/s.

        Args:
            inside: nodes that are in the set.
            outside: nodes that are not.
            each: 0 for the plain smallest cut.
        """
        sources = np.array(list(inside), dtype=np.int64)
        sinks = np.array(list(outside), dtype=np.int64)
        offered = self.ranks if each > 0 else self.ranks[:0]
        tails = [self._tails, np.full(len(sources) + len(offered), self._source), sinks]
        heads = [self._heads, sources, offered, np.full(len(sinks), self._sink)]
        capacity = [
            self._whole,
            np.full(len(sources), _ENDLESS),
            np.full(len(offered), self._rounded(np.array([each]))[0]),
            np.full(len(sinks), _ENDLESS),
        ]
        size = self.rest + 3
        graph = csr_array(
            (np.concatenate(capacity), (np.concatenate(tails), np.concatenate(heads))), shape=(size, size)
        )
        graph.sum_duplicates()
        graph.data = np.minimum(graph.data, _ENDLESS)
        graph = graph.astype(np.int32)
        left = graph - maximum_flow(graph, self._source, self._sink).flow
        left.eliminate_zeros()
        reached = breadth_first_order(left, self._source, return_predecessors=False)
        found = np.zeros(size, dtype=bool)
        found[reached] = True
        return found[: self.rest + 1]


def _widest(fabric: Fabric) -> float:
    """Return more than leaves any rank, GB/s: all links of its physical GPU, and of other ranks on it."""
    users = Counter(gpu.device.position for gpu in fabric.gpus)
    devices = fabric.table.system.devices
    return max(
        sum(link.bandwidth for link in device.links if users[device.position] > 1 or not isinstance(link.target, Gpu))
        for device in devices
    )
