"""Linear programs that the solver gives up: told, and what was found before them is planned with."""

import numpy as np
import pytest

from fabricd.model.collective import CollectivePlan
from fabricd.plan.collective import linear
from fabricd.plan.collective.fabric import Fabric, FreeRoutes
from fabricd.plan.collective.graph_file import graph_file
from fabricd.plan.collective.linear import Optimum, maximise
from fabricd.plan.collective.plan import ring_plan, tree_plan
from fabricd.plan.collective.planner import Planner, Request
from fabricd.plan.collective.trees import pack_trees
from fabricd.plan.nccl.emulate import plan
from tests.support.link_flow import demands_of, routable
from tests.support.nccl_golden import own

MACHINES = [
    one
    for one in own("*")
    if str(one) in ("nvlink-mesh-sm100.1node", "numa-without-devices.2node", "switches-beside-the-tree.1node")
]
#: From programs of which none is solved to programs of which only the largest are not.
PIVOTS = (0, 2, 10, 40)


def test_an_optimum_has_its_prices():
    # 3 x + 2 y, where x + y <= 4 and x <= 3: the second unit of worth is what x has over y.
    solved = maximise(np.array([3.0, 2.0]), np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([4.0, 3.0]))
    assert isinstance(solved, Optimum)
    assert solved.values.tolist() == pytest.approx([3, 1])
    assert solved.prices.tolist() == pytest.approx([2, 1])


@pytest.mark.parametrize("presolve", [False, True])
def test_what_has_no_optimum_is_told_in_words(presolve: bool):
    nothing_fits = maximise(np.ones(1), np.ones((1, 1)), np.array([-1.0]), presolve=presolve)
    no_end = maximise(np.ones(2), np.array([[1.0, 0.0]]), np.ones(1), presolve=presolve)
    assert "infeasible" in nothing_fits
    assert "unbounded" in no_end


@pytest.mark.parametrize("pivots", PIVOTS)
@pytest.mark.parametrize("golden", MACHINES, ids=str)
def test_rings_of_programs_that_are_given_up_fit_and_say_so(golden, pivots: int, monkeypatch):
    before = Planner(_request(golden))
    best, theirs = ring_plan(before), before.nccl.ring_bandwidth * 1e9
    monkeypatch.setattr(linear, "_MAX_ITERATIONS", pivots)
    planner = Planner(_request(golden))
    made = ring_plan(planner)
    ranks = list(range(len(made.ranks)))
    assert made.channels
    assert all(sorted(one.ring) == ranks for one in made.channels)
    assert theirs * 0.9999 <= made.bandwidth_bytes_per_second <= best.bandwidth_bytes_per_second * 1.0001
    assert routable(golden.answers, demands_of(made.channels, len(ranks) // golden.nodes, nodes=golden.nodes))
    assert made.limit_bytes_per_second >= best.bandwidth_bytes_per_second * 0.9999, "a bound stays one"
    assert _told(made) == any(part.packing.unsolved for part in planner.parts)
    assert graph_file(planner)
    assert not _told(best)


def test_some_rings_are_given_up_indeed(monkeypatch):
    monkeypatch.setattr(linear, "_MAX_ITERATIONS", 0)
    assert [str(one) for one in MACHINES if _told(ring_plan(Planner(_request(one))))] == [
        "numa-without-devices.2node",
        "switches-beside-the-tree.1node",
    ]


@pytest.mark.parametrize("pivots", PIVOTS)
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
@pytest.mark.parametrize("golden", MACHINES, ids=str)
def test_trees_of_programs_that_are_given_up_fit_and_say_so(golden, collective: str, pivots: int, monkeypatch):
    fabric = Fabric(plan(golden.topology(), nodes=golden.nodes).tables[0], between_nodes=golden.nodes > 1)
    best = pack_trees([FreeRoutes(fabric)], [0] * golden.nodes, collective)
    monkeypatch.setattr(linear, "_MAX_ITERATIONS", pivots)
    packed = pack_trees([FreeRoutes(fabric)], [0] * golden.nodes, collective)
    assert best.unsolved == ""
    assert packed.unsolved or pivots
    assert 0 < packed.busbw <= best.busbw * 1.0001
    assert packed.limit >= best.busbw * 0.9999
    load = sum(tree.usage * tree.weight for tree in packed.trees)
    assert np.all(load <= fabric.capacity * golden.nodes * 1.0001)
    by_root = {tree.root: 0.0 for tree in packed.trees}
    for tree in packed.trees:
        by_root[tree.root] += tree.weight
    if collective == "all_gather":
        assert list(by_root.values()) == pytest.approx(
            [packed.busbw / (fabric.ranks * golden.nodes - 1)] * fabric.ranks
        )


def test_a_plan_of_trees_says_so_too(monkeypatch):
    monkeypatch.setattr(linear, "_MAX_ITERATIONS", 0)
    made = tree_plan(Planner(_request(MACHINES[0])))
    assert "better trees was cut short" in made.because[-1]


def _request(golden) -> Request:
    order = [0] * golden.nodes
    names = [f"node{number}" for number in order] if golden.nodes > 1 else ()
    return Request(topologies=[golden.topology()], order=order, names=names)


def _told(made: CollectivePlan) -> bool:
    return any("was not solved (" in reason for reason in made.because)
