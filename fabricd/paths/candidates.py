"""The candidates that are worth showing for a pair: the best, and the best of each other kind."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from fabricd.graph.graph import Graph, LinkKind, VertexKind
from fabricd.model.path import Hop, Path, PathType
from fabricd.paths.describe import describe
from fabricd.paths.rank import rank_key
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
    found = sorted((describe(graph, src, dst, one) for one in hops if not _doubles_back(graph, one)), key=rank_key)
    different: dict[tuple[object, ...], Path] = {}
    for path in found:
        different.setdefault(_likeness(path), path)
    first_of_type: dict[PathType, Path] = {}
    for path in different.values():
        first_of_type.setdefault(path.type, path)
    firsts = list(first_of_type.values())
    others = [path for path in different.values() if first_of_type[path.type] is not path]
    return sorted([*firsts, *others][:count], key=rank_key)


def best_of_each(paths: Sequence[Path], count: int) -> list[int]:
    """Return the places of up to ``count`` of some paths between nodes that are in order, in that order.

    The best of each transport has precedence, then its best by the ports nearest to the ends and its best by relay,
    then the best of each network, and those with and without GPUDirect: so it can be seen what each is worth.
    """
    chosen: list[int] = []
    kinds: Sequence[Callable[[Path], object]] = (
        lambda path: path.transport,
        lambda path: path.transport if all(end.nearest and not end.relay for end in path.ends) else None,
        lambda path: path.transport if any(end.relay for end in path.ends) else None,
        lambda path: path.network,
        lambda path: (path.transport, path.gdr),
    )
    for kind in kinds:
        seen = {None, *(kind(paths[place]) for place in chosen)}
        for place, path in enumerate(paths):
            what = kind(path)
            if what not in seen:
                seen.add(what)
                chosen.append(place)
    return sorted(chosen[:count])


def _doubles_back(graph: Graph, hops: Sequence[Hop]) -> bool:
    """Tell whether a path goes from one NUMA node to another over the machine, which is some NUMA node itself."""
    over = (VertexKind.NUMA, VertexKind.MACHINE, VertexKind.NUMA)
    return any((graph[a.src].kind, graph[a.dst].kind, graph[b.dst].kind) == over for a, b in pairwise(hops))


def _likeness(path: Path) -> tuple[object, ...]:
    """What two paths must share for one of them to stand for both."""
    links = tuple(hop.link for hop in path.hops)
    return (path.type, path.bandwidth_bytes_per_second, path.latency_seconds, links)
