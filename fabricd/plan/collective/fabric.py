"""One machine as arrays: capacities of its links, and the ways between its ranks and ports.

Two models of the ways. *Engine*: one route for each ordered pair, the one that NCCL takes; a plan that an engine is to
obey is made with it. *Free*: any path over the links, split at will; what is possible at all is judged by it.

Both are priced the same: given a length for each link, every pair costs what its cheapest way is long.
"""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.paths import PathTable
from fabricd.paths.nccl.system import Gpu, Link, Net, Node

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

#: A step of a plan: from one point to another. Points are ranks, then ports, each by its place in the fabric.
Step: TypeAlias = tuple[int, int]


class Fabric:
    """A machine's links and the points that data start from and end at.

    Attributes:
        table: NCCL's paths of the machine.
        gpus: the ranks, lowest first; points 0 to ``ranks - 1``.
        nets: the ports; the points after. Empty for a machine on its own.
        links: all links, of both directions.
        capacity: of each, GB/s.
        tails, heads: positions of the nodes that a link leaves and enters.
        places: position of each point's node.
        size: number of nodes.
    """

    def __init__(self, table: PathTable, *, between_nodes: bool) -> None:
        system = table.system
        self.table = table
        self.gpus: Sequence[Gpu] = sorted(system.gpus, key=lambda gpu: gpu.rank)
        self.nets: Sequence[Net] = system.nets if between_nodes else ()
        self.links: list[Link] = [
            link for node in system.nodes() for link in node.links if link.source is not link.target
        ]
        self.capacity: Floats = np.array([link.bandwidth for link in self.links])
        self.tails: Integers = np.array([link.source.position for link in self.links], dtype=np.int64)
        self.heads: Integers = np.array([link.target.position for link in self.links], dtype=np.int64)
        self.size = sum(1 for _ in system.nodes())
        points: list[Node] = [*self.gpus, *self.nets]
        self.places: Integers = np.array([node.position for node in points], dtype=np.int64)

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def points(self) -> int:
        """Number of ranks and ports."""
        return len(self.places)


class Routes(Protocol):
    """The ways between points."""

    fabric: Fabric

    def price(self, lengths: Floats) -> Floats:
        """Return what the cheapest way of each pair is long; infinite without one.

        Args:
            lengths: of each link, positive.

        Returns:
            Shape [points, points], from row to column.
        """

    def usage(self, steps: Sequence[Step]) -> Floats:
        """Return how often each link is crossed by steps, on the ways that were cheapest when last priced."""


class EngineRoutes:
    """One route for each ordered pair, that of NCCL's paths."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        numbers = {id(link): number for number, link in enumerate(fabric.links)}
        points: list[Node] = [*fabric.gpus, *fabric.nets]
        self._crossed: list[Integers] = []
        self._reached = np.zeros((len(points), len(points)), dtype=bool)
        for row, src in enumerate(points):
            for column, dst in enumerate(points):
                crossed: list[int] = []
                if src is not dst and (isinstance(src, Gpu) or isinstance(dst, Gpu)):
                    route = fabric.table.get(src, dst)
                    self._reached[row, column] = route.kind != PathKind.DIS
                    crossed = [numbers[id(link)] for link in route.links()]
                self._crossed.append(np.array(crossed, dtype=np.int64))
        starts = np.cumsum([0, *map(len, self._crossed)])
        flat = np.concatenate(self._crossed) if self._crossed else np.zeros(0, dtype=np.int64)
        shape = (len(self._crossed), len(fabric.links))
        self._matrix = csr_array((np.ones(len(flat)), flat, starts), shape=shape)

    def price(self, lengths: Floats) -> Floats:
        """See ``Routes``."""
        costs: Floats = self._matrix.dot(lengths).reshape(self._reached.shape)
        costs[~self._reached] = np.inf
        return costs

    def usage(self, steps: Sequence[Step]) -> Floats:
        """See ``Routes``."""
        points = self.fabric.points
        crossed = np.concatenate([self._crossed[src * points + dst] for src, dst in steps])
        return np.bincount(crossed, minlength=len(self.fabric.links)).astype(np.float64)


class FreeRoutes:
    """Any path over the links, whatever it crosses."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        order = np.lexsort((fabric.heads, fabric.tails))
        ends = np.stack([fabric.tails[order], fabric.heads[order]])
        first = np.append(True, np.any(ends[:, 1:] != ends[:, :-1], axis=0)) if len(order) else np.zeros(0, dtype=bool)
        self._order, self._starts = order, np.flatnonzero(first)
        self._tails, self._heads = ends[:, first]
        self._cheapest: Integers = np.zeros(0, dtype=np.int64)
        self._before: npt.NDArray[np.int32] = np.zeros((0, 0), dtype=np.int32)
        self._at = {
            (int(tail), int(head)): at for at, (tail, head) in enumerate(zip(self._tails, self._heads, strict=True))
        }

    def price(self, lengths: Floats) -> Floats:
        """See ``Routes``."""
        sorted_lengths = lengths[self._order]
        shortest = np.minimum.reduceat(sorted_lengths, self._starts)
        group = np.repeat(np.arange(len(self._starts)), np.diff(np.append(self._starts, len(self._order))))
        hit = np.flatnonzero(sorted_lengths == shortest[group])
        self._cheapest = np.empty(len(self._starts), dtype=np.int64)
        self._cheapest[group[hit][::-1]] = self._order[hit][::-1]  # of equal ones the first
        size = self.fabric.size
        graph = csr_array((shortest, (self._tails, self._heads)), shape=(size, size))
        costs, self._before = dijkstra(graph, indices=self.fabric.places, return_predecessors=True)
        found: Floats = costs[:, self.fabric.places]
        return found

    def usage(self, steps: Sequence[Step]) -> Floats:
        """See ``Routes``."""
        found = np.zeros(len(self.fabric.links))
        places = self.fabric.places
        for src, dst in steps:
            here = int(places[dst])
            while here != places[src]:
                before = int(self._before[src, here])
                found[self._cheapest[self._at[before, here]]] += 1
                here = before
        return found
