"""What the groups of a mesh cost in an order: time by the slowest edge of each group's ring.

Where nothing was measured, edges are taken for as fast as what they cross lets expect. Those figures are assumed: an
order depends on which is faster than which, not on by how much.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fabricd.plan.order.bandwidth import PairBandwidth
from fabricd.plan.order.mesh import Mesh, MeshAxis, traffic, units_of
from fabricd.plan.order.places import LEVELS, RankPlace

#: Assumed, bytes/s for each GPU: NVLink of the Hopper generation, and a port of 400 Gb/s.
NVLINK, PORT = 3.6e11, 4.5e10
#: Assumed: what crossing one more level outside costs, as a factor of time. Uplinks are shared.
_OUTER_LEVEL = 1.15
#: Seconds for each edge outside NVLink of a group that must stay inside: more than all times together.
_OUTSIDE_NVLINK = 1e6
#: Of equal slowest edges the ring with the faster others is better.
_REST = 0.01


@dataclass(frozen=True, slots=True)
class Group:
    """Groups of an axis that lie in the same units, one after another."""

    axis: int
    units: tuple[int, ...]  #: positions in the order, in units
    members: int
    count: int  #: how many such groups


class MeshCost:
    """Cost of orders of units; a unit is all ranks of a node, or one rank.

    Attributes:
        groups: that span several units.
        of_unit: by position, the numbers of the groups that it is in.
    """

    def __init__(
        self,
        mesh: Mesh,
        places: Sequence[RankPlace],
        size: int,
        bandwidth: PairBandwidth | None,
    ) -> None:
        """Find the groups.

        Args:
            mesh: the axes.
            places: of the units, by number: that of their first rank.
            size: ranks of a unit.
            bandwidth: measured between nodes.
        """
        self.mesh = mesh
        self._places = places
        self._bandwidth = bandwidth
        self._by_axis: Counter[int] = Counter()
        counted: Counter[tuple[int, tuple[int, ...], int]] = Counter()
        number = {axis.name: place for place, axis in enumerate(mesh.axes)}
        for axis, ranks in mesh.groups(len(places) * size):
            counted[number[axis.name], units_of(ranks, size), len(ranks)] += 1
            self._by_axis[number[axis.name]] += 1
        self.groups = [Group(*key, count) for key, count in counted.items()]
        self.of_unit: list[list[int]] = [[] for _ in places]
        for place, group in enumerate(self.groups):
            for unit in group.units if len(group.units) > 1 else ():
                self.of_unit[unit].append(place)

    def total(self, order: Sequence[int]) -> float:
        """Return the weighted time of all groups: of each axis, the mean over its groups, by its weight."""
        return sum(self.cost(group, order) for group in self.groups)

    def cost(self, group: Group, order: Sequence[int]) -> float:
        """Return what one group adds to the total."""
        axis = self.mesh.axes[group.axis]
        cost = axis.weight * self.seconds(group, order) * group.count / self._by_axis[group.axis]
        if axis.keep_inside:
            cost += _OUTSIDE_NVLINK * sum(not self._nvlink(a, b) for a, b in self._edges(axis, group, order))
        return cost

    def seconds(self, group: Group, order: Sequence[int]) -> float:
        """Return the time of one operation of a group.

        Args:
            group: which.
            order: by position, the unit that stands there.
        """
        axis = self.mesh.axes[group.axis]
        load = traffic(axis, group.members)
        times = [load / self.speed(a, b) for a, b in self._edges(axis, group, order)] or [load / NVLINK]
        return max(times) + _REST * sum(times) / len(times)

    def inside_nvlink(self, group: Group, order: Sequence[int]) -> bool:
        """Whether all edges of a group are NVLink."""
        return all(self._nvlink(a, b) for a, b in self._edges(self.mesh.axes[group.axis], group, order))

    def _edges(self, axis: MeshAxis, group: Group, order: Sequence[int]) -> Iterator[tuple[int, int]]:
        units = [order[position] for position in group.units]
        if len(units) < 2:
            return
        if axis.collective != "send_recv" and len(units) > 2:
            yield units[-1], units[0]
        yield from pairwise(units)

    def speed(self, a: int, b: int) -> float:
        """Return what an edge between two units carries, bytes/s for each GPU: NVLink, measured, or assumed."""
        if self._nvlink(a, b):
            return NVLINK
        ours, theirs = self._places[a], self._places[b]
        crossed = sum(getattr(ours, level) != getattr(theirs, level) for level in LEVELS if level != "domain")
        known = None if self._bandwidth is None else self._bandwidth.between(ours.node, theirs.node)
        return (known or PORT) / float(_OUTER_LEVEL**crossed)

    def _nvlink(self, a: int, b: int) -> bool:
        ours, theirs = self._places[a], self._places[b]
        return ours.node == theirs.node or bool(ours.domain and ours.domain == theirs.domain)
