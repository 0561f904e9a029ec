"""Search for paths in a node's graph: the widest first, among those the quickest, among those the shortest.

A path is as wide as its narrowest hop. "Widest, then quickest" cannot be found in one sweep, because a quick way
to a vertex in the middle may be narrower than another, yet wide enough for what follows. So there are two: one
finds the greatest width between the ends, the other the quickest path that uses no narrower link. Both are
Dijkstra's algorithm, once on (max, min) and once on (min, +), and together they are exact.

What a path may lead through: switches, host bridges, NUMA nodes and cards always; a GPU only if a GPU is at one of
the ends (a relay is work for a GPU that takes part); a port never, it is an end, and so is "any memory".
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from heapq import heappop, heappush

from fabricd.errors import InputError
from fabricd.graph import nominal
from fabricd.graph.graph import Graph, VertexKind
from fabricd.model.path import Hop

Hops = tuple[Hop, ...]

#: Nobody reads more candidates of one pair, and each costs a search for every hop of the one before.
MAX_CANDIDATES = 16

#: For all pairs. The largest NVLink domains have 576 GPUs and as many ports.
MAX_ENDS = 1536

#: Width of a link whose bandwidth is not known: it cannot be called the bottleneck.
UNKNOWN_WIDTH = float("inf")

#: What leads from one node to another, and nowhere within one.
BETWEEN_NODES = frozenset({VertexKind.NIC, VertexKind.HCA_PORT, VertexKind.NETWORK})
_ENDS_ONLY = BETWEEN_NODES | {VertexKind.MEMORY}


def may_cross(kind: VertexKind, *, relay: bool) -> bool:
    """Tell whether a path may lead through such a vertex; ``relay``: a GPU is at one of its ends."""
    return kind not in _ENDS_ONLY and (relay or kind is not VertexKind.GPU)


@dataclass(frozen=True, slots=True)
class _Limits:
    """What one search may use."""

    relay: bool  #: through GPUs
    banned_vertices: Set[int] = frozenset()
    banned_edges: Set[int] = frozenset()


class PathSearch:
    """Finds paths in one graph, which must not change afterwards.

    Vertices and edges are numbered; ``_out`` holds the numbers of the edges that leave each vertex.

    Args:
        graph: to search.
        relays: whether GPUs may pass on what is for others.
    """

    def __init__(self, graph: Graph, *, relays: bool = True) -> None:
        self._name = [vertex.name for vertex in graph]
        self._number = {name: number for number, name in enumerate(self._name)}
        self._is_gpu = [vertex.kind is VertexKind.GPU for vertex in graph]
        self._passes = {
            relay: [may_cross(vertex.kind, relay=relay and relays) for vertex in graph] for relay in (False, True)
        }
        self._hop = list(graph.edges())
        self._src = [self._number[hop.src] for hop in self._hop]
        self._dst = [self._number[hop.dst] for hop in self._hop]
        self._width = [hop.bandwidth_bytes_per_second or UNKNOWN_WIDTH for hop in self._hop]
        # Whole picoseconds: sums are exact, so ties are ties whichever way they are added up.
        self._latency = [round((hop.latency_seconds or 0.0) * 1e12) for hop in self._hop]
        self._relay_latency = round(nominal.GPU_RELAY_LATENCY * 1e12)
        self._out: list[list[int]] = [[] for _ in self._name]
        for edge, src in enumerate(self._src):
            self._out[src].append(edge)
        self._back = self._find_way_back()
        self._wide_enough: dict[float, list[list[int]]] = {}

    def best(self, src: str, dst: str) -> Hops | None:
        """Return the hops of the best path, ``()`` from a vertex to itself, ``None`` where there is no path."""
        found = self.k_best(src, dst, 1)
        return found[0] if found else None

    def best_to_each(self, src: str, dsts: Iterable[str]) -> dict[str, Hops]:
        """Return the hops of the best path to each of some vertices that can be reached, in one search for all."""
        start = self._number[src]
        goals = {self._number[dst] for dst in dsts}
        return {self._name[goal]: self._hops(path) for goal, path in self._best_to_each(start, goals)}

    def k_best(self, src: str, dst: str, k: int) -> list[Hops]:
        """Return up to ``k`` paths without loops, best first (Yen's algorithm).

        Raises:
            InputError: ``k`` is not between 1 and ``MAX_CANDIDATES``.
        """
        if not 1 <= k <= MAX_CANDIDATES:
            raise InputError(f"{k} candidates asked for", hint=f"between 1 and {MAX_CANDIDATES}")
        start, goal = self._number[src], self._number[dst]
        # Asked from either side, a pair of a symmetric graph is searched from the same, so both answers are one.
        if self._back is not None and start > goal:
            return [self._hops(self._turn(path)) for path in self._k_best(goal, start, k)]
        return [self._hops(path) for path in self._k_best(start, goal, k)]

    def all_best(self, ends: Sequence[str], apart: Set[str] = frozenset()) -> Iterator[tuple[str, str, Hops]]:
        """Yield the best path of every ordered pair of different ends that has one.

        Args:
            ends: vertices.
            apart: those of them whose paths to each other are not wanted.

        Raises:
            InputError: more than ``MAX_ENDS`` ends.
        """
        if len(ends) > MAX_ENDS:
            raise InputError(f"{len(ends)} devices: too many for all pairs", hint="ask for the paths of one of them")
        numbers = sorted({self._number[name] for name in ends})
        not_wanted = {self._number[name] for name in apart}
        for start in numbers:
            goals = {goal for goal in numbers if goal > start or (self._back is None and goal != start)}
            if start in not_wanted:
                goals -= not_wanted
            for goal, path in self._best_to_each(start, goals):
                yield self._name[start], self._name[goal], self._hops(path)
                if self._back is not None:
                    yield self._name[goal], self._name[start], self._hops(self._turn(path))

    def _best_to_each(self, start: int, goals: Set[int]) -> Iterator[tuple[int, list[int]]]:
        gpus = {goal for goal in goals if self._is_gpu[goal]}
        if self._is_gpu[start]:
            yield from self._best_to(start, goals, _Limits(relay=True))
        else:
            yield from self._best_to(start, gpus, _Limits(relay=True))
            yield from self._best_to(start, goals - gpus, _Limits(relay=False))

    def _best_to(self, start: int, goals: Set[int], limits: _Limits) -> Iterator[tuple[int, list[int]]]:
        """Yield the best path from one vertex to each of several that can be reached."""
        left = set(goals)
        # No path is wider than the widest link at its start; often that is what most of them are.
        widest_link = max((self._width[edge] for edge in self._out[start]), default=0.0)
        yield from self._quickest(start, left, widest_link, limits)
        by_width: dict[float, set[int]] = {}
        for goal, width in self._widest(start, left, limits):
            by_width.setdefault(width, set()).add(goal)
        for width, wanted in by_width.items():
            yield from self._quickest(start, wanted, width, limits)

    def _k_best(self, start: int, goal: int, k: int) -> list[list[int]]:
        if start == goal:
            return [[]]
        relay = self._is_gpu[start] or self._is_gpu[goal]
        found = [path for _, path in self._best_to(start, {goal}, _Limits(relay=relay))]
        waiting: list[tuple[float, int, int, list[int]]] = []
        while found and len(found) < k:
            for path in self._spurs(found, goal, relay):
                entry = (-self._width_of(path), self._latency_of(path), len(path), path)
                if entry not in waiting:
                    heappush(waiting, entry)
            if not waiting:
                break
            found.append(heappop(waiting)[3])
        return found

    def _spurs(self, found: Sequence[list[int]], goal: int, relay: bool) -> Iterator[list[int]]:
        """Yield the best paths that leave the last one found at each of its vertices."""
        last = found[-1]
        for length, edge in enumerate(last):
            root = last[:length]
            limits = _Limits(
                relay=relay,
                banned_vertices={self._src[before] for before in root},
                banned_edges={path[length] for path in found if path[:length] == root and len(path) > length},
            )
            # Beyond the width of what lies before, more width gains nothing.
            cap = self._width_of(root)
            spur = self._src[edge]
            for _, width in self._widest(spur, {goal}, limits):
                for _, tail in self._quickest(spur, {goal}, min(width, cap), limits):
                    yield root + tail

    def _widest(self, start: int, left: set[int], limits: _Limits) -> Iterator[tuple[int, float]]:
        """Yield the greatest width to each goal that can be reached, widest first."""
        out, dst, widths, passes = self._out, self._dst, self._width, self._passes[limits.relay]
        done: set[int] = set(limits.banned_vertices)
        heap = [(-UNKNOWN_WIDTH, start)]
        while heap and left:
            narrowest, here = heappop(heap)
            if here in done:
                continue
            done.add(here)
            if here in left:
                left.discard(here)
                yield here, -narrowest
            if here != start and not passes[here]:
                continue
            for edge in out[here]:
                there = dst[edge]
                if there not in done and edge not in limits.banned_edges:
                    heappush(heap, (max(narrowest, -widths[edge]), there))

    def _quickest(self, start: int, left: set[int], width: float, limits: _Limits) -> Iterator[tuple[int, list[int]]]:
        """Yield the quickest path, with the fewest hops among those, over links of at least ``width``."""
        out, dst, latencies = self._edges_of_width(width), self._dst, self._latency
        passes = self._passes[limits.relay]
        came: dict[int, int] = dict.fromkeys(limits.banned_vertices, -1)
        heap = [(0, 0, start, -1)]
        while heap and left:
            latency, length, here, last = heappop(heap)
            if here in came:
                continue
            came[here] = last
            if here in left:
                left.discard(here)
                yield here, self._trace(came, here)
            if here != start:
                if not passes[here]:
                    continue
                latency += self._relay_latency if self._is_gpu[here] else 0
            for edge in out[here]:
                there = dst[edge]
                if there not in came and edge not in limits.banned_edges:
                    heappush(heap, (latency + latencies[edge], length + 1, there, edge))

    def _edges_of_width(self, width: float) -> list[list[int]]:
        """Return the edges of at least some width that leave each vertex. Kept: a graph has few different widths."""
        if width not in self._wide_enough:
            self._wide_enough[width] = [[edge for edge in edges if self._width[edge] >= width] for edges in self._out]
        return self._wide_enough[width]

    def _trace(self, came: dict[int, int], here: int) -> list[int]:
        path = []
        while (edge := came[here]) >= 0:
            path.append(edge)
            here = self._src[edge]
        path.reverse()
        return path

    def _find_way_back(self) -> list[int] | None:
        """Return each edge's other direction, or ``None`` unless every link is the same both ways."""
        between: dict[tuple[int, int, str], list[int]] = {}
        for edge, hop in enumerate(self._hop):
            between.setdefault((self._src[edge], self._dst[edge], hop.link), []).append(edge)
        back = [-1] * len(self._hop)
        for (src, dst, link), edges in between.items():
            twins = between.get((dst, src, link), [])
            if [self._figures(edge) for edge in edges] != [self._figures(edge) for edge in twins]:
                return None
            for edge, twin in zip(edges, twins, strict=True):
                back[edge] = twin
        return back

    def _figures(self, edge: int) -> tuple[float, int]:
        return self._width[edge], self._latency[edge]

    def _turn(self, path: Sequence[int]) -> list[int]:
        back = self._back
        return [back[edge] for edge in reversed(path)] if back is not None else []

    def _hops(self, path: Sequence[int]) -> Hops:
        return tuple([self._hop[edge] for edge in path])

    def _width_of(self, path: Sequence[int]) -> float:
        return min((self._width[edge] for edge in path), default=UNKNOWN_WIDTH)

    def _latency_of(self, path: Sequence[int]) -> int:
        relays = sum(self._is_gpu[self._src[edge]] for edge in path[1:])
        return sum(self._latency[edge] for edge in path) + relays * self._relay_latency
