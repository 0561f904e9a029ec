"""The pieces that rings and trees are packed with, each against an independent answer."""

from itertools import pairwise, permutations

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabricd.plan.collective.arborescence import cheapest_tree
from fabricd.plan.collective.columns import Segment
from fabricd.plan.collective.heuristic import cheap_cycle, least_cycle
from fabricd.plan.collective.lanes import Lane, cut_to, overlaid
from fabricd.plan.collective.orders import TABLE_CYCLE, cheapest_cycles, cheapest_paths

FEW = settings(max_examples=40)


def matrices(least: int, most: int):
    def build(size):
        rows = st.lists(st.integers(1, 60), min_size=size * size, max_size=size * size)
        return rows.map(lambda flat: np.array(flat, dtype=float).reshape(size, size))

    return st.integers(least, most).flatmap(build)


def cycle_cost(matrix, order) -> float:
    return sum(matrix[a, b] for a, b in zip(order, (*order[1:], order[0]), strict=True))


@FEW
@given(matrices(2, 6))
def test_cheapest_cycles_are_those_of_all_orders(matrix) -> None:
    every = sorted(cycle_cost(matrix, (0, *rest)) for rest in permutations(range(1, len(matrix))))
    found = cheapest_cycles(matrix, 4)
    assert [cost for cost, _ in found] == pytest.approx(every[:4])
    assert all(cycle_cost(matrix, order) == pytest.approx(cost) for cost, order in found)


@FEW
@given(matrices(1, 5))
def test_cheapest_path_for_each_pair_of_ends(matrix) -> None:
    size = len(matrix)
    costs, orders = cheapest_paths(matrix)
    for order in permutations(range(size)):
        cost = sum(matrix[a, b] for a, b in pairwise(order))
        assert costs[order[0], order[-1]] <= cost + 1e-9
    for (first, last), order in orders.items():
        assert (order[0], order[-1], sorted(order)) == (first, last, list(range(size)))
        assert sum(matrix[a, b] for a, b in pairwise(order)) == pytest.approx(costs[first, last])


def test_dynamic_programming_finds_what_the_table_of_all_orders_finds() -> None:
    random = np.random.default_rng(3)
    small = random.integers(1, 50, (TABLE_CYCLE, TABLE_CYCLE)).astype(float)
    # One more element that costs nothing between two others: the cheapest cycle then enters and leaves it there.
    large = np.full((TABLE_CYCLE + 1, TABLE_CYCLE + 1), np.inf)
    large[:-1, :-1] = small
    large[:-1, -1], large[-1, 0] = small[:, 0], 0.0
    large[:-1, 0] = np.inf
    assert cheapest_cycles(large, 1)[0][0] == pytest.approx(cheapest_cycles(small, 1)[0][0])


def test_an_element_that_cannot_be_reached_has_no_cycle() -> None:
    matrix = np.ones((4, 4))
    matrix[:, 2] = np.inf
    assert cheapest_cycles(matrix, 3) == []
    assert np.isinf(cheap_cycle(matrix)[0])


@FEW
@given(matrices(4, 8))
def test_cheap_cycle_is_a_cycle_between_its_bound_and_the_best(matrix) -> None:
    (cost, order), bound = cheap_cycle(matrix), least_cycle(matrix)
    best = cheapest_cycles(matrix, 1)[0][0]
    assert sorted(order) == list(range(len(matrix)))
    assert cycle_cost(matrix, order) == pytest.approx(cost)
    assert bound - 1e-9 <= best <= cost + 1e-9


@FEW
@given(matrices(2, 7), st.integers(0, 6))
def test_cheapest_tree_costs_what_networkx_finds(matrix, root) -> None:
    size = len(matrix)
    root %= size
    graph = networkx.DiGraph()
    for a in range(size):
        for b in range(size):
            if a != b and b != root:
                graph.add_edge(a, b, weight=float(matrix[a, b]))
    wanted = networkx.minimum_spanning_arborescence(graph).size(weight="weight")
    parents = cheapest_tree(matrix, root)
    assert sum(matrix[parent, child] for child, parent in enumerate(parents) if child != root) == pytest.approx(wanted)
    for child in range(size):
        steps, here = 0, child
        while here != root:
            here, steps = int(parents[here]), steps + 1
            assert steps <= size


def test_a_tree_that_cannot_reach_all_is_none() -> None:
    matrix = np.ones((3, 3))
    matrix[:, 1] = np.inf
    assert cheapest_tree(matrix, 0) is None


widths = st.lists(st.integers(1, 30), min_size=1, max_size=6)


@FEW
@given(st.lists(widths, min_size=2, max_size=4))
def test_overlaid_lanes_pair_up_and_carry_what_each_lane_did(kinds) -> None:
    total = float(min(sum(one) for one in kinds))
    lanes = [
        cut_to([Lane(Segment((kind, at)), Segment((kind, at)), float(width)) for at, width in enumerate(one)], total)
        for kind, one in enumerate(kinds)
    ]
    rails = [[f"rail{at % 3}" for at, _ in enumerate(one)] for one in kinds]
    made = overlaid(lanes, rails)
    assert len({len(one) for one in made}) == 1
    assert all(len({lane.width for lane in across}) == 1 for across in zip(*made, strict=True))
    for before, after in zip(lanes, made, strict=True):
        for lane in before:
            same = sum(other.width for other in after if other.even == lane.even)
            assert same == pytest.approx(lane.width, abs=1e-6 * total)
