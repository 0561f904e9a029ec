"""What two devices can exchange over all paths at once: the greatest flow between them, and the cut that bounds it."""

from collections import deque

from fabricd.graph.graph import Graph, VertexKind
from fabricd.model.path import Capacity, Hop
from fabricd.paths.search import BETWEEN_NODES, may_cross


def capacity(graph: Graph, src: str, dst: str, *, across: bool = False) -> Capacity:
    """Return what can flow from one vertex to another over all paths at once.

    A link of unknown bandwidth bounds nothing; where one is crossed, the answer is an upper bound. What may be
    crossed is the same as in the search for single paths. Edmonds and Karp's algorithm in whole bytes/s.

    Args:
        graph: of one node, or of two joined by networks.
        src: a vertex.
        dst: another.
        across: whether ports and networks may be crossed.
    """
    if src == dst:
        return Capacity(bandwidth_bytes_per_second=None)
    residual = _Residual(graph, src, dst, across)
    total = 0
    while path := residual.shortest(src, dst):
        total += residual.push(path)
        if total >= residual.unlimited:
            return Capacity(bandwidth_bytes_per_second=None)
    return Capacity(bandwidth_bytes_per_second=float(total), bottleneck=residual.cut(src))


class _Residual:
    """Capacity left on each edge (even numbers) and on its reverse (the next odd number)."""

    def __init__(self, graph: Graph, src: str, dst: str, across: bool) -> None:
        relay = VertexKind.GPU in (graph[src].kind, graph[dst].kind)
        kinds = {kind for kind in VertexKind if may_cross(kind, relay=relay)} | (BETWEEN_NODES if across else set())
        usable = {vertex.name for vertex in graph if vertex.kind in kinds} | {src, dst}
        self.hops = [hop for hop in graph.edges() if hop.src in usable and hop.dst in usable]
        self.unlimited = 1 + sum(round(hop.bandwidth_bytes_per_second or 0) for hop in self.hops)
        self._left: list[int] = []
        self._ends: list[str] = []
        self._out: dict[str, list[int]] = {name: [] for name in usable}
        for hop in self.hops:
            known = hop.bandwidth_bytes_per_second
            self._left += [self.unlimited if known is None else round(known), 0]
            self._ends += [hop.dst, hop.src]
            self._out[hop.src].append(len(self._left) - 2)
            self._out[hop.dst].append(len(self._left) - 1)

    def shortest(self, src: str, dst: str) -> list[int]:
        """Return the edges of a path with the fewest hops that still has capacity, ``[]`` when there is none."""
        came = self._explore(src)
        path: list[int] = []
        here = dst
        while here != src:
            if here not in came:
                return []
            path.append(came[here])
            here = self._ends[came[here] ^ 1]
        return path

    def push(self, path: list[int]) -> int:
        """Send as much along a path as it takes."""
        amount = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
        return amount

    def cut(self, src: str) -> tuple[Hop, ...]:
        """Return the full edges between what the source can still reach and the rest."""
        reached = self._explore(src).keys() | {src}
        return tuple(hop for hop in self.hops if hop.src in reached and hop.dst not in reached)

    def _explore(self, src: str) -> dict[str, int]:
        """Return the edge by which each vertex is first reached."""
        came: dict[str, int] = {}
        waiting = deque([src])
        while waiting:
            here = waiting.popleft()
            for edge in self._out[here]:
                there = self._ends[edge]
                if self._left[edge] and there != src and there not in came:
                    came[there] = edge
                    waiting.append(there)
        return came
