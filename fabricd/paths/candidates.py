"""The candidates that are worth showing for a pair: the best, and the best of each other kind."""

from collections.abc import Sequence
from itertools import pairwise

from fabricd.graph.graph import Graph, LinkKind, VertexKind
from fabricd.model.path import Hop, Path, PathType
from fabricd.paths.describe import describe
from fabricd.paths.rank import RankKey, figures_of, rank_key
from fabricd.paths.search import MAX_CANDIDATES, PathSearch

#: Of paths that are alike the first stands for all, so more are searched than shown; but not in a graph so large
#: that this takes seconds. The largest nodes have 500 vertices.
_LARGE = 2000


def candidates_in(graph: Graph, src: str, dst: str, count: int) -> list[Path]:
    """Return up to ``count`` different paths between two vertices, best first.

    The best path comes first, whatever kind it is. Then the best of each type of path has precedence over a second
    of a type, so that it can be seen what a way without relays, or without NVLink, would be.
    """
    searched = MAX_CANDIDATES if len(graph) < _LARGE else count
    searches = [(PathSearch(graph), searched), (PathSearch(graph, relays=False), 2)]
    if any(edge.link == LinkKind.NVLINK for edge in graph.edges()):
        searches.append((PathSearch(graph.without(LinkKind.NVLINK)), 2))
    hops = dict.fromkeys(hops for search, most in searches for hops in search.k_best(src, dst, most))
    found = sorted((describe(graph, src, dst, one) for one in hops if not _doubles_back(graph, one)), key=_key)
    different: dict[tuple[object, ...], Path] = {}
    for path in found:
        different.setdefault(_likeness(path), path)
    first_of_type: dict[PathType, Path] = {}
    for path in different.values():
        first_of_type.setdefault(path.type, path)
    firsts = list(first_of_type.values())
    others = [path for path in different.values() if first_of_type[path.type] is not path]
    return sorted([*firsts, *others][:count], key=_key)


def _key(path: Path) -> RankKey:
    return rank_key(figures_of(path))


def _doubles_back(graph: Graph, hops: Sequence[Hop]) -> bool:
    """Tell whether a path goes from one NUMA node to another over the machine, which is some NUMA node itself."""
    over = (VertexKind.NUMA, VertexKind.MACHINE, VertexKind.NUMA)
    return any((graph[a.src].kind, graph[a.dst].kind, graph[b.dst].kind) == over for a, b in pairwise(hops))


def _likeness(path: Path) -> tuple[object, ...]:
    """What two paths must share for one of them to stand for both."""
    links = tuple(hop.link for hop in path.hops)
    return (path.type, path.bandwidth_bytes_per_second, path.latency_seconds, links)
