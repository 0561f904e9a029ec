"""Laws of the path search, on random graphs: it finds what looking at every path finds, and obeys its laws."""

import random
from dataclasses import replace
from itertools import pairwise

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricd.errors import InputError
from fabricd.graph.graph import Graph, LinkKind, Vertex, VertexKind
from fabricd.graph.nominal import GPU_RELAY_LATENCY
from fabricd.paths.describe import bottleneck, describe
from fabricd.paths.flow import capacity
from fabricd.paths.rank import figures_of, rank_key
from fabricd.paths.search import MAX_CANDIDATES, PathSearch, may_cross

KINDS = [VertexKind.GPU, VertexKind.GPU, VertexKind.PCI_SWITCH, VertexKind.NUMA, VertexKind.NVSWITCH, VertexKind.NIC]
LINKS = list(LinkKind)
WIDTHS = [None, 1e9, 2e9, 3e9, 5e9]
LATENCIES = [None, 1e-7, 2e-7, 3e-6]


@st.composite
def graphs(draw, most=7):
    """Connected or not, with parallel links, unknown figures, and every kind of vertex."""
    count = draw(st.integers(2, most))
    graph = Graph()
    for number in range(count):
        graph.add(Vertex(name=f"v{number}", kind=draw(st.sampled_from(KINDS))))
    for _ in range(draw(st.integers(count - 1, 2 * count))):
        a, b = draw(st.integers(0, count - 1)), draw(st.integers(0, count - 1))
        if a != b:
            graph.connect(
                f"v{a}",
                f"v{b}",
                draw(st.sampled_from(LINKS)),
                bandwidth=draw(st.sampled_from(WIDTHS)),
                latency=draw(st.sampled_from(LATENCIES)),
            )
    return graph


def every_path(graph, src, dst):
    """All paths without loops that the rules allow, by plain recursion."""
    relay = VertexKind.GPU in (graph[src].kind, graph[dst].kind)

    def walk(here, seen):
        if here == dst:
            yield ()
            return
        if here != src and not may_cross(graph[here].kind, relay=relay):
            return
        for hop in graph.edges_from(here):
            if hop.dst not in seen:
                for rest in walk(hop.dst, seen | {hop.dst}):
                    yield (hop, *rest)

    return list(walk(src, {src}))


def width(hops):
    known = bottleneck(hops)
    return float("inf") if known is None else known


def order(graph, hops):
    relays = sum(graph[hop.src].kind is VertexKind.GPU for hop in hops[1:])
    latency = sum(round((hop.latency_seconds or 0) * 1e12) for hop in hops) + relays * round(GPU_RELAY_LATENCY * 1e12)
    return (-width(hops), latency, len(hops))


def pairs(graph):
    names = [vertex.name for vertex in graph]
    return [(a, b) for a in names for b in names if a != b]


@given(graphs())
def test_the_best_path_is_the_best_of_all_paths(graph):
    search = PathSearch(graph)
    for src, dst in pairs(graph):
        best, all_paths = search.best(src, dst), every_path(graph, src, dst)
        assert (best is None) == (not all_paths)
        if best is not None:
            assert best in all_paths
            assert order(graph, best) == min(order(graph, hops) for hops in all_paths)


@given(graphs(most=6), st.integers(1, 6))
def test_the_k_best_paths_are_the_first_k_of_all_paths(graph, k):
    search = PathSearch(graph)
    for src, dst in pairs(graph):
        found, all_paths = search.k_best(src, dst, k), every_path(graph, src, dst)
        assert len(found) == min(k, len(all_paths))
        assert len({tuple(map(id, hops)) for hops in found}) == len(found)  # two links alike are two paths
        assert [order(graph, hops) for hops in found] == sorted(order(graph, hops) for hops in all_paths)[:k]


@given(graphs())
def test_all_pairs_at_once_are_the_pairs_one_by_one(graph):
    search = PathSearch(graph)
    ends = [vertex.name for vertex in graph]
    at_once = {(src, dst): hops for src, dst, hops in search.all_best(ends)}
    assert at_once.keys() == {(src, dst) for src, dst in pairs(graph) if every_path(graph, src, dst)}
    for (src, dst), hops in at_once.items():
        assert order(graph, hops) == order(graph, search.best(src, dst))


@given(graphs())
def test_symmetry_both_ways_are_the_same_path(graph):
    search = PathSearch(graph)
    for src, dst in pairs(graph):
        there, back = search.best(src, dst), search.best(dst, src)
        if there is None or back is None:
            assert there is back
            continue
        a, b = describe(graph, src, dst, there), describe(graph, dst, src, back)
        assert [(hop.src, hop.dst) for hop in there] == [(hop.dst, hop.src) for hop in reversed(back)]
        assert (a.type, a.transport, a.bandwidth_bytes_per_second) == (
            b.type,
            b.transport,
            b.bandwidth_bytes_per_second,
        )
        assert a.latency_seconds == pytest.approx(b.latency_seconds, abs=1e-15)


@given(graphs())
def test_triangle_a_way_through_a_third_is_never_wider(graph):
    search = PathSearch(graph)
    best = {(src, dst): search.best(src, dst) for src, dst in pairs(graph)}
    for (a, b), first in best.items():
        for c in (vertex.name for vertex in graph if vertex.name not in (a, b)):
            second = best[b, c]
            relay = VertexKind.GPU in (graph[a].kind, graph[c].kind)
            # A relay that only the middle one justified is none that a and c may use.
            on_the_way = {hop.src for hop in (*(first or ())[1:], *(second or ()))}
            allowed = all(may_cross(graph[name].kind, relay=relay) for name in on_the_way)
            if first is not None and second is not None and allowed:
                assert width(best[a, c]) >= min(width(first), width(second))


def changed(graph, at, **figures):
    """The graph with both directions of its link number ``at`` changed."""
    new = Graph()
    for vertex in graph:
        new.add(vertex)
    for number, hop in enumerate(one for one in graph.edges() if one.src < one.dst):
        one = replace(hop, **figures) if number == at else hop
        new.connect(
            one.src,
            one.dst,
            LinkKind(one.link),
            bandwidth=one.bandwidth_bytes_per_second,
            latency=one.latency_seconds,
        )
    return new


@given(graphs(), st.data())
def test_monotonicity_a_faster_link_makes_no_path_slower(graph, data):
    links = [hop for hop in graph.edges() if hop.src < hop.dst]
    at = data.draw(st.integers(0, max(0, len(links) - 1)))
    before = PathSearch(changed(graph, -1))
    wider = PathSearch(changed(graph, at, bandwidth_bytes_per_second=10e9))
    quicker_graph = changed(graph, at, latency_seconds=0.0)
    quicker = PathSearch(quicker_graph)
    known = bool(links) and links[at].bandwidth_bytes_per_second is not None
    for src, dst in pairs(graph):
        old = before.best(src, dst)
        if old is None:
            continue
        if known:  # from unknown to a figure is no speed-up
            assert width(wider.best(src, dst)) >= width(old)
        new = quicker.best(src, dst)
        assert width(new) == width(old)
        assert order(quicker_graph, new) <= order(graph, old)


@given(graphs(), st.integers(1, 4))
def test_candidates_come_in_the_order_of_ranks(graph, k):
    search = PathSearch(graph)
    for src, dst in pairs(graph):
        keys = [rank_key(figures_of(describe(graph, src, dst, hops))) for hops in search.k_best(src, dst, k)]
        # The search knows nothing of types; width and latency it orders the same way.
        assert [key[1] for key in keys] == sorted(key[1] for key in keys)


@given(graphs(), st.randoms(use_true_random=False))
def test_the_order_of_paths_is_total_and_does_not_depend_on_the_order_of_arrival(graph, chance):
    src, dst = chance.choice(pairs(graph))
    paths = [describe(graph, src, dst, hops) for hops in set(every_path(graph, src, dst))]
    keys = [rank_key(figures_of(path)) for path in paths]
    for a, b in pairwise(sorted(zip(keys, paths, strict=True), key=lambda pair: pair[0])):
        assert a[0] < b[0] or [hop.dst for hop in a[1].hops] == [hop.dst for hop in b[1].hops]
    shuffled = paths[:]
    chance.shuffle(shuffled)
    assert sorted(keys) == sorted(rank_key(figures_of(path)) for path in shuffled)


@given(graphs())
@settings(max_examples=60)
def test_the_flow_is_what_networkx_finds_and_never_less_than_one_path(graph):
    search = PathSearch(graph)
    for src, dst in pairs(graph):
        relay = VertexKind.GPU in (graph[src].kind, graph[dst].kind)
        other = networkx.DiGraph()
        other.add_nodes_from([src, dst])
        for hop in graph.edges():
            if all(end in (src, dst) or may_cross(graph[end].kind, relay=relay) for end in (hop.src, hop.dst)):
                more = hop.bandwidth_bytes_per_second
                known = other.get_edge_data(hop.src, hop.dst, {"capacity": 0}).get("capacity")
                total = None if more is None or known is None else known + more
                other.add_edge(hop.src, hop.dst, **({} if total is None else {"capacity": total}))
                if total is None:
                    other[hop.src][hop.dst].pop("capacity", None)
        flow = capacity(graph, src, dst)
        try:
            expected = networkx.maximum_flow_value(other, src, dst)
        except networkx.NetworkXUnbounded:
            expected = None
        assert flow.bandwidth_bytes_per_second == expected
        if expected is not None:
            assert sum(hop.bandwidth_bytes_per_second for hop in flow.bottleneck) == expected
            assert expected >= (width(search.best(src, dst)) if expected else 0)


def test_one_direction_alone_is_a_path_one_way_only():
    graph = Graph()
    for name in "abc":
        graph.add(Vertex(name=name, kind=VertexKind.PCI_SWITCH))
    graph.connect("a", "b", LinkKind.PCIE, bandwidth=2.0)
    graph.add_edge(replace(next(graph.edges()), src="b", dst="c"))
    search = PathSearch(graph)
    assert [hop.dst for hop in search.best("a", "c")] == ["b", "c"]
    assert search.best("c", "a") is None
    assert {(src, dst) for src, dst, _ in search.all_best("abc")} == {("a", "b"), ("b", "a"), ("b", "c"), ("a", "c")}


def test_the_number_of_candidates_is_bounded():
    graph = Graph()
    graph.add(Vertex(name="a", kind=VertexKind.NUMA))
    for k in (0, MAX_CANDIDATES + 1):
        with pytest.raises(InputError, match="between 1 and 16"):
            PathSearch(graph).k_best("a", "a", k)
    assert PathSearch(graph).best("a", "a") == ()


def test_a_large_random_graph_is_searched_in_bounded_work():
    chance = random.Random(7)
    graph = Graph()
    for number in range(400):
        graph.add(Vertex(name=f"v{number}", kind=VertexKind.PCI_SWITCH))
    for number in range(1, 400):
        for _ in range(3):
            other = chance.randrange(number)
            graph.connect(f"v{number}", f"v{other}", LinkKind.PCIE, bandwidth=chance.randrange(1, 50) * 1e9)
    assert len(PathSearch(graph).k_best("v0", "v399", MAX_CANDIDATES)) == MAX_CANDIDATES
