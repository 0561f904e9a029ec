"""The order of ranks over nodes: against brute force where that is possible, by its laws elsewhere."""

import itertools
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fabricd.errors import InputError, ParseError
from fabricd.plan.order import PairBandwidth, RankPlace, rank_order
from fabricd.plan.order.cost import EdgeCost
from fabricd.plan.order.mesh import Mesh, MeshAxis
from fabricd.plan.order.mesh_order import mesh_order
from fabricd.plan.order.pairs_csv import read_pairs
from fabricd.plan.order.places import LEVELS, crossings, sites_of

MATRIX = Path(os.environ.get("FABRICD_CORPUS", "")) / "measurements/pairwise-17node-h100.csv"


def on_nodes(nodes, ranks_per_node=1):
    """Return the ranks of a job, node by node; ``nodes`` are keyword arguments of their places."""
    return [
        RankPlace(rank=number * ranks_per_node + own, **{"node": f"n{number}", **place})
        for number, place in enumerate(nodes)
        for own in range(ranks_per_node)
    ]


def pairs_of(figures):
    return PairBandwidth({(f"n{a}", f"n{b}"): value for (a, b), value in figures.items()})


@st.composite
def nested_clusters(draw):
    """Nodes below leaves below spines, in any order."""
    leaves = draw(st.integers(1, 6))
    spine_of = [draw(st.integers(0, 2)) for _ in range(leaves)]
    leaf_of = draw(st.lists(st.integers(0, leaves - 1), min_size=1, max_size=40))
    return [{"leaf": f"l{leaf}", "spine": f"s{spine_of[leaf]}"} for leaf in leaf_of]


@given(nested_clusters(), st.integers(1, 3))
def test_nested_groups_are_left_as_seldom_as_can_be(nodes, ranks_per_node):
    found = rank_order(on_nodes(nodes, ranks_per_node))
    assert sorted(found.order) == list(range(len(nodes) * ranks_per_node))
    assert found.optimal
    for one in found.crossings:
        assert one.after == one.least <= max(one.before, one.least)
    node_of = [rank // ranks_per_node for rank in found.order]
    assert len(list(itertools.groupby(node_of))) == len(nodes), "the ranks of a node stay together"


@st.composite
def small_clusters(draw):
    count = draw(st.integers(2, 6))
    nodes = [{"leaf": draw(st.sampled_from("ab")), "domain": draw(st.sampled_from("xyz"))} for _ in range(count)]
    pairs = itertools.combinations(range(count), 2)
    return nodes, {pair: draw(st.sampled_from([5e9, 10e9, 20e9, 40e9])) for pair in pairs}


@given(small_clusters())
@settings(max_examples=60)
def test_few_nodes_are_ordered_as_brute_force_does(cluster):
    nodes, figures = cluster
    places, bandwidth = on_nodes(nodes), pairs_of(figures)
    sites = sites_of(places)
    cost = EdgeCost(sites, bandwidth)

    def rated(order):
        crossed = crossings(sites, order)
        return [crossed[LEVELS.index("domain")], crossed[LEVELS.index("leaf")], -cost.bottleneck(order)]

    best = min(rated((0, *rest)) for rest in itertools.permutations(range(1, len(nodes))))
    found = rank_order(places, bandwidth=bandwidth)
    assert rated(found.order) == best
    assert found.optimal
    assert found.slowest_after.bandwidth_bytes_per_second <= found.bound_bytes_per_second


@given(nested_clusters(), st.data())
@settings(max_examples=60, deadline=None)
def test_fixed_ranks_keep_their_number_whatever_else_moves(nodes, data):
    per_node = 2
    fixed = data.draw(st.sets(st.integers(0, len(nodes) * per_node - 1), max_size=5))
    found = rank_order(on_nodes(nodes, per_node), fixed=fixed)
    assert sorted(found.order) == list(range(len(nodes) * per_node))
    assert all(found.order[rank] == rank for rank in fixed)


@given(st.lists(st.integers(1, 3), min_size=2, max_size=7), st.data())
@settings(max_examples=40, deadline=None)
def test_nodes_of_different_sizes_keep_fixed_ranks_in_place(sizes, data):
    places = [
        RankPlace(rank=0, node=f"n{node}", leaf=data.draw(st.sampled_from("ab")))
        for node, size in enumerate(sizes)
        for _ in range(size)
    ]
    leaf_of = {place.node: place.leaf for place in places}
    places = [replace(place, rank=rank, leaf=leaf_of[place.node]) for rank, place in enumerate(places)]
    fixed = data.draw(st.sets(st.integers(0, len(places) - 1), min_size=1, max_size=3))
    found = rank_order(places, fixed=fixed)
    assert sorted(found.order) == list(range(len(places)))
    assert all(found.order[rank] == rank for rank in fixed)
    assert all(one.after <= one.before for one in found.crossings)


@given(st.integers(2, 5), st.integers(1, 3), st.data())
@settings(max_examples=40, deadline=None)
def test_ranks_dealt_out_over_nodes_keep_fixed_ones_or_say_that_they_cannot(nodes, ranks_per_node, data):
    count = nodes * ranks_per_node
    leaves = data.draw(st.lists(st.sampled_from("ab"), min_size=nodes, max_size=nodes))
    places = [RankPlace(rank=rank, node=f"n{rank % nodes}", leaf=leaves[rank % nodes]) for rank in range(count)]
    fixed = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    mesh = Mesh(axes=(MeshAxis(name="tp", size=ranks_per_node), MeshAxis(name="dp", size=nodes)))
    try:
        orders = [rank_order(places, fixed=fixed).order, mesh_order(places, mesh, fixed=fixed).order]
    except InputError:  # two ranks of one node, in places that it cannot both have
        assume(False)
    for order in orders:
        assert sorted(order) == list(range(count))
        assert all(order[rank] == rank for rank in fixed)


def test_the_answer_does_not_depend_on_the_order_of_the_question():
    nodes = [{"leaf": f"l{number % 3}"} for number in range(20)]
    figures = {pair: 1e9 * random.Random(str(pair)).randint(10, 40) for pair in itertools.combinations(range(20), 2)}
    places = on_nodes(nodes, 2)
    shuffled = random.Random(5).sample(places, len(places))
    assert rank_order(places, bandwidth=pairs_of(figures)) == rank_order(shuffled, bandwidth=pairs_of(figures))


def test_levels_that_do_not_nest_are_searched():
    """Domains cut across leaves: no order is best for both; the outer of the two decides."""
    nodes = [{"leaf": f"l{number % 2}", "domain": f"d{number // 5}"} for number in range(20)]
    found = rank_order(on_nodes(nodes))
    crossed = {one.level: one.after for one in found.crossings}
    assert crossed == {"domain": 4, "leaf": 4}, "each domain has both leaves, so it is crossed inside once"


def test_ranks_dealt_out_over_nodes_are_put_together():
    places = [RankPlace(rank=rank, node=f"n{rank % 3}") for rank in range(9)]
    assert rank_order(places).order == (0, 3, 6, 1, 4, 7, 2, 5, 8)


@pytest.mark.parametrize(
    ("places", "told"),
    [
        ([], "0 ranks"),
        ([RankPlace(rank=1, node="a")], "expected 0 to n - 1"),
        ([RankPlace(rank=0, node="a", leaf="x"), RankPlace(rank=1, node="a", leaf="y")], "two places"),
    ],
)
def test_places_that_cannot_be_are_refused(places, told):
    with pytest.raises(InputError, match=told):
        rank_order(places)


def test_fixed_ranks_that_cannot_stay_are_refused():
    with pytest.raises(InputError, match="no rank 9"):
        rank_order(on_nodes([{}, {}]), fixed={9})
    dealt = [RankPlace(rank=rank, node=f"n{rank % 2}") for rank in range(4)]
    with pytest.raises(InputError, match="rank 2 of n0 cannot keep its number"):
        rank_order(dealt, fixed={0, 2})


@pytest.mark.corpus
@pytest.mark.skipif(not MATRIX.is_file(), reason="the measured matrix is not here")
@pytest.mark.parametrize(("test", "gpus", "gain"), [("alltoall_perf", "8", 1.5), ("sendrecv_perf", "4", 2.6)])
def test_a_measured_cluster_gains_what_is_possible(test, gpus, gain):
    pairs = read_pairs(MATRIX.read_text(), where={"test": test, "G": gpus})
    names = pairs.names
    places = [RankPlace(rank=number, node=name) for number, name in enumerate(names)]
    found = rank_order(places, bandwidth=pairs)
    before, after = (edge.bandwidth_bytes_per_second for edge in (found.slowest_before, found.slowest_after))
    assert after > gain * before
    faster = [
        sum(
            1 << other for other, peer in enumerate(names) if peer != name and pairs.between(name, peer) > 1.005 * after
        )
        for name in names
    ]
    assert not has_ring(faster), "there is an order whose slowest edge is faster"


def has_ring(neighbours):
    """Whether a graph has a Hamiltonian cycle: by sets of visited vertices, the ends of paths over each."""
    count = len(neighbours)
    ends = [0] * (1 << count)
    ends[1] = 1
    for visited in range(1, 1 << count, 2):
        for vertex in range(1, count) if ends[visited] else ():
            if not visited >> vertex & 1 and neighbours[vertex] & ends[visited]:
                ends[visited | 1 << vertex] |= 1 << vertex
    return bool(ends[-1] & neighbours[0])


class TestMesh:
    def test_the_order_serves_all_groups_and_is_no_worse(self):
        nodes = [{"leaf": f"l{number % 2}"} for number in range(8)]
        places = on_nodes(nodes, 8)
        mesh = Mesh(
            axes=(
                MeshAxis(name="tp", size=8, bytes=64 << 20, weight=100),
                MeshAxis(name="dp", size=4, bytes=1 << 30),
                MeshAxis(name="pp", size=2, collective="send_recv", bytes=16 << 20, weight=8),
            )
        )
        found = mesh_order(places, mesh)
        assert sorted(found.order) == list(range(64))
        assert found.weighted_seconds < found.weighted_seconds_before
        tensor, data, pipeline = found.axes
        assert tensor.inside_nvlink == tensor.groups == 8
        assert data.slowest_seconds < data.slowest_seconds_before, "each stage's replicas hang on one leaf"
        leaves = [places[rank].leaf for rank in found.order]
        assert leaves == [leaves[0]] * 32 + [leaves[-1]] * 32
        assert pipeline.groups == 32

    def test_the_heavier_axis_gets_the_near_nodes(self):
        """Stages pass on more than replicas: then it is the stages that stay on a leaf."""
        places = on_nodes([{"leaf": f"l{number // 2}"} for number in range(4)], 1)
        axes = (
            MeshAxis(name="dp", size=2, bytes=1),
            MeshAxis(name="pp", size=2, collective="send_recv", bytes=1 << 30),
        )
        found = mesh_order(places, Mesh(axes=axes))
        leaves = [places[rank].leaf for rank in found.order]
        assert leaves[0] == leaves[2]
        assert leaves[1] == leaves[3]

    def test_tensor_parallel_groups_stay_in_their_nvlink_domain(self):
        places = on_nodes([{"domain": f"d{number % 2}"} for number in range(8)], 4)
        axes = (MeshAxis(name="tp", size=16, weight=0.001), MeshAxis(name="dp", size=2, bytes=1 << 34))
        found = mesh_order(places, Mesh(axes=axes))
        assert found.axes[0].inside_nvlink_before == 0
        assert found.axes[0].inside_nvlink == 2

    def test_what_no_order_can_keep_inside_is_said(self):
        found = mesh_order(on_nodes([{}, {}], 4), Mesh(axes=(MeshAxis(name="tp", size=8),)))
        assert found.because == ("tp: 1 of 1 groups leave NVLink: the largest NVLink domain has 4 ranks",)

    def test_an_axis_with_a_stride_lies_within_others(self):
        mesh = Mesh(
            axes=(MeshAxis(name="tp", size=2), MeshAxis(name="dp", size=4), MeshAxis(name="ep", size=2, stride=2))
        )
        groups = [ranks for axis, ranks in mesh.groups(8) if axis.name == "ep"]
        assert groups == [(0, 2), (1, 3), (4, 6), (5, 7)]

    def test_fixed_ranks_keep_their_number(self):
        places = on_nodes([{"leaf": f"l{number % 2}"} for number in range(8)], 2)
        axes = (MeshAxis(name="tp", size=2), MeshAxis(name="dp", size=8))
        found = mesh_order(places, Mesh(axes=axes), fixed={0, 1, 7})
        assert [found.order[rank] for rank in (0, 1, 7)] == [0, 1, 7]

    def test_single_ranks_move_where_that_is_allowed(self):
        """Ranks dealt out over the nodes: node by node they are inside NVLink, and so they are rank by rank."""
        places = [RankPlace(rank=rank, node=f"n{rank % 2}") for rank in range(8)]
        mesh = Mesh(axes=(MeshAxis(name="tp", size=4), MeshAxis(name="dp", size=2)))
        for whole in (True, False):
            found = mesh_order(places, mesh, whole_nodes=whole)
            assert found.axes[0].inside_nvlink_before == 0
            assert found.axes[0].inside_nvlink == 2

    @pytest.mark.parametrize(
        ("axes", "told"),
        [
            ((), "0 axes"),
            ((MeshAxis(name="tp", size=4), MeshAxis(name="tp", size=2)), "a name of its own"),
            ((MeshAxis(name="tp", size=4),), "tp 4 has 4 ranks, and there are 8"),
            ((MeshAxis(name="tp", size=0), MeshAxis(name="dp", size=8)), "do not divide"),
            ((MeshAxis(name="tp", size=8, collective="gossip"),), "no collective 'gossip'"),
            ((MeshAxis(name="tp", size=8, weight=float("nan")),), "weight nan"),
        ],
    )
    def test_meshes_that_cannot_be_are_refused(self, axes, told):
        with pytest.raises(InputError, match=told):
            mesh_order(on_nodes([{}, {}], 4), Mesh(axes=axes))


class TestPairs:
    def test_both_forms_of_pairs_are_read(self):
        told = read_pairs("src,dst,bandwidth_GBs\na,b,10\nb,a,8\n")
        assert told.between("b", "a") == 8e9
        told = read_pairs('nodes,G,busbw\n"n[1-2]",8,10\n"n[1,3]",8,\n', where={"G": "8"})
        assert told.measured("n1", "n2") == 10e9
        assert told.measured("n1", "n3") is None, "an empty figure is not measured"

    @pytest.mark.parametrize(
        ("text", "where", "told"),
        [
            ("", {}, "names no pair"),
            ("a,b\n1,2\n", {}, "names no pair"),
            ("src,dst,busbw\na,b,fast\n", {}, "'fast' between a and b is no bandwidth"),
            ("src,dst,busbw\na,b,-1\n", {}, "no bandwidth"),
            ("src,dst,busbw\na,b\n", {}, "line 2: fields are missing"),
            ("src,dst,busbw\na,b,1,2\n", {}, "line 2: fields are missing, or too many"),
            ("src,dst,busbw\na,a,1\n", {}, "cannot be"),
            ("src,dst,busbw,test\na,b,1,x\na,b,2,y\n", {}, "several rows for a and b: test x and y"),
            ("src,dst,busbw,test\na,b,1,x\n", {"test": "z"}, "no row is left"),
            ("src,dst,busbw\na,b,1\n", {"kind": "z"}, "no column 'kind'"),
            ('nodes,busbw\n"n[1-3]",1\n', {}, "3 nodes, expected a pair"),
            ('src,dst,busbw\n"a,b,1\n', {}, "line"),
        ],
    )
    def test_other_tables_are_refused_with_their_fault(self, text, where, told):
        with pytest.raises((InputError, ParseError), match=told):
            read_pairs(text, where=where)
