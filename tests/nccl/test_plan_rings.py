"""Plans on machines with NCCL's own answers: valid, never below NCCL, never above the bound, and as good as proved."""

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from scipy.optimize import linprog

from fabricd.errors import InputError
from fabricd.graph.nccl_xml import parse
from fabricd.graph.nccl_xml_read import read
from fabricd.plan.collective.bound import Kind, bound, reducing_bound
from fabricd.plan.collective.columns import Segment, make_column
from fabricd.plan.collective.cuts import Cuts
from fabricd.plan.collective.fabric import EngineRoutes, Fabric, FreeRoutes
from fabricd.plan.collective.graph_file import graph_file
from fabricd.plan.collective.machines import machines_of
from fabricd.plan.collective.plan import nccl_view, ring_plan, tree_plan
from fabricd.plan.collective.planner import COLLECTIVES, Planner, Request
from fabricd.plan.collective.trees import pack_trees
from fabricd.plan.nccl.channels import Node, ring_channel
from fabricd.plan.nccl.emulate import plan
from fabricd.plan.nccl.graphs import Channel, Pattern, SearchGraph
from fabricd.plan.what_if import WhatIf, changed
from tests.support.link_flow import demands_of, routable
from tests.support.nccl_golden import Golden, corpus, own


def is_whole(golden: Golden) -> bool:
    """Tell whether NCCL takes the machine as one, and has rings on it."""
    answers = golden.answers
    gpus = sum(node["type"] == "GPU" for node in answers["nodes"])
    whole = answers["search"].get("gpus_after_trim") == gpus and answers.get("hosts_in_xml", 1) == 1
    return whole and bool(answers["graphs"]["ring"].get("nChannels"))


OWN = [golden for golden in own("*") if is_whole(golden)]
SMALL = [golden for golden in OWN if golden.nodes == 1 and 3 <= len(golden.graph("ring").channels[0].ranks) <= 6]
SAMPLE = [one for one in [*corpus("1")[::11], *corpus("2")[::11]] if is_whole(one) and len(one.answers["links"]) < 160]


def planner(golden: Golden, routes: str = "engine", **request) -> Planner:
    order = [0] * golden.nodes
    names = [f"node{number}" for number in order] if golden.nodes > 1 else ()
    return Planner(Request(topologies=[golden.topology()], order=order, names=names, routes=routes, **request))


def check(golden: Golden, routes: str) -> None:
    planned = planner(golden, routes)
    answer = ring_plan(planned)
    ring = golden.answers["graphs"]["ring"]
    theirs = ring["nChannels"] * ring["bwInter" if golden.nodes > 1 else "bwIntra"] * 1e9
    ranks = list(range(len(answer.ranks)))
    total = answer.bandwidth_bytes_per_second
    assert all(sorted(one.ring) == ranks for one in answer.channels)
    assert sum(one.bandwidth_bytes_per_second for one in answer.channels) == pytest.approx(total)
    assert theirs * 0.999 <= total <= answer.bound_bytes_per_second * 1.0001
    assert planned.alone or total >= 0.995 * answer.limit_bytes_per_second
    gpus = len(ranks) // golden.nodes
    assert routable(golden.answers, demands_of(answer.channels, gpus, nodes=golden.nodes))
    if planned.alone or routes == "free":
        return
    equal = planned.equal_channels
    assert len({one.bandwidth_bytes_per_second for one in equal}) == 1
    assert len(equal) <= 32
    told = sum(one.bandwidth_bytes_per_second for one in equal)
    assert max(theirs * 0.999, 0.91 * total) <= told <= total * 1.0001
    assert routable(golden.answers, demands_of(equal, gpus, nodes=golden.nodes))


@pytest.mark.parametrize("golden", OWN, ids=str)
def test_plan_on_our_machines(golden: Golden) -> None:
    check(golden, "engine")


@pytest.mark.parametrize("golden", [one for one in OWN if one.nodes == 1], ids=str)
def test_free_plan_on_our_machines(golden: Golden) -> None:
    check(golden, "free")


@pytest.mark.corpus
@pytest.mark.parametrize("golden", SAMPLE, ids=str)
def test_plan_on_the_corpus(golden: Golden) -> None:
    check(golden, "engine")


@pytest.mark.parametrize("golden", [one for one in OWN if one.nodes == 2], ids=str)
def test_an_odd_number_of_machines_is_planned_and_says_what_changes_rails(golden: Golden) -> None:
    planned = Planner(Request(topologies=[golden.topology()], order=[0] * 3, names=["a", "b", "c"]))
    answer = ring_plan(planned)
    ranks = list(range(len(answer.ranks)))
    assert all(sorted(one.ring) == ranks for one in answer.channels)
    part = planned.parts[0]
    for odd in (False, True):
        load = np.zeros(len(part.fabric.links))
        for lane in planned.lanes[0]:
            segment = lane.odd if odd else lane.even
            load += part.routes.usage(segment.steps(part.fabric.ranks)) * lane.width
        assert np.all(load <= part.fabric.capacity * 1.0001)
    told = any("change rails" in line for line in answer.because)
    assert told == any(one.nics[0][0] != one.nics[-1][1] for one in answer.channels)


def fabric_of(golden: Golden) -> Fabric:
    return Fabric(plan(golden.topology(), nodes=golden.nodes).tables[0], between_nodes=golden.nodes > 1)


@pytest.mark.parametrize("golden", SMALL, ids=str)
def test_packing_reaches_the_optimum_over_all_rings(golden: Golden) -> None:
    """One linear program over every ring there is."""
    routes = EngineRoutes(fabric_of(golden))
    columns = [make_column(routes, [Segment((0, *rest))]) for rest in permutations(range(1, routes.fabric.ranks))]
    usage = np.stack([column.usage for column in columns], axis=1)
    best = -linprog(-np.ones(len(columns)), A_ub=usage, b_ub=routes.fabric.capacity).fun
    packed = planner(golden).weakest.packing
    assert packed.total == pytest.approx(best, rel=1e-3)
    assert packed.limit >= best * (1 - 1e-9)


def all_cuts(fabric: Fabric):
    """Yield every set of nodes that matters: rank, device and all else in or out; what leaves it, and its ranks."""
    cuts = Cuts(fabric)
    for chosen in product((False, True), repeat=fabric.size):
        inside = np.array([*chosen, False])
        yield cuts.leaving(inside), cuts.held(inside)


@pytest.mark.parametrize("golden", [one for one in OWN if one.nodes == 1 and len(one.answers["nodes"]) <= 12], ids=str)
def test_bound_is_the_least_of_all_cuts(golden: Golden) -> None:
    fabric = fabric_of(golden)
    if fabric.size > 14 or fabric.ranks < 2:
        pytest.skip("too many sets of nodes to try")
    ranks = fabric.ranks
    cuts = [(width, held) for width, held in all_cuts(fabric) if 0 < held < ranks]
    gathering = (ranks - 1) * min(width / held for width, held in cuts)
    assert bound([Kind(fabric, 1)], "all_gather").busbw == pytest.approx(gathering, rel=1e-6)
    crossing = 2 * (ranks - 1) / ranks * min(width for width, _ in cuts)
    assert reducing_bound([Kind(fabric, 1)]).busbw == pytest.approx(crossing, rel=1e-6)
    assert bound([Kind(fabric, 1)], "all_reduce").busbw <= crossing * (1 + 1e-9)


@pytest.mark.parametrize("golden", OWN[::2], ids=str)
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce"])
def test_trees_reach_the_bound_and_never_exceed_it(golden: Golden, collective: str) -> None:
    fabric = fabric_of(golden)
    if fabric.ranks * golden.nodes < 2:
        pytest.skip("one rank")
    packed = pack_trees([FreeRoutes(fabric)], [0] * golden.nodes, collective)
    limit = bound([Kind(fabric, golden.nodes)], collective).busbw
    assert packed.busbw <= limit * 1.0001
    load = sum(tree.usage * tree.weight for tree in packed.trees)
    assert np.all(load <= fabric.capacity * golden.nodes * 1.0001)
    if collective != "all_reduce":  # Edmonds: trees reach the smallest cut
        assert packed.busbw >= 0.995 * limit


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
def test_trees_over_machines_that_differ_serve_every_rank(collective: str) -> None:
    whole = next(one for one in OWN if str(one) == "nvswitch-sm90.2node").topology()
    slow = changed(whole, WhatIf(port_speeds={"net0": 10e9}, without=("gpu3",)))
    named = [("a", whole), ("b", slow), ("c", whole)]
    machines = machines_of(named)
    asked = replace(Request.of(machines), routes="free", collective=collective)
    planner = Planner(asked)
    answer = tree_plan(planner)
    ranks = range(len(answer.ranks))
    assert (len(planner.parts), len(ranks)) == (2, 11)
    for tree in answer.trees:
        ends = [receiver if not tree.toward_root else sender for sender, receiver in tree.arcs]
        assert sorted([tree.root, *ends]) == list(ranks)
    total, bound_ = answer.bandwidth_bytes_per_second, answer.bound_bytes_per_second
    assert total <= bound_ * 1.0001
    of_root = [sum(tree.bandwidth_bytes_per_second for tree in answer.trees if tree.root == rank) for rank in ranks]
    if collective != "all_reduce":
        assert total >= 0.995 * bound_
        assert min(of_root) >= total / 10 * 0.999, "every rank spreads equally much to the ten others"
    else:
        assert sum(of_root) >= 2 * total * 11 / 20 * 0.999, "as much towards roots as away from them"
    leaving = sum(
        tree.bandwidth_bytes_per_second
        for tree in answer.trees
        for sender, receiver in tree.arcs
        if 4 <= sender < 7 and not 4 <= receiver < 7
    )
    assert leaving <= 10e9 * 1.0001, "what the slow port carries"
    assert any(hop.src.startswith("b/") or hop.dst.startswith("b/") for hop in answer.bottleneck)


@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_every_collective_has_a_plan_below_its_bound(collective: str) -> None:
    golden = next(one for one in OWN if str(one) == "nvlink-mesh-sm100.1node")
    answer = ring_plan(planner(golden, collective=collective, size=1 << 24))
    assert 0 < answer.bandwidth_bytes_per_second <= answer.bound_bytes_per_second * 1.0001
    assert answer.predicted is not None
    assert answer.predicted.time_seconds > 0
    trees = tree_plan(planner(golden, "free", collective=collective))
    assert 0 < trees.bandwidth_bytes_per_second <= trees.bound_bytes_per_second * 1.0001
    ranks = range(len(trees.ranks))
    for tree in trees.trees:
        ends = [receiver if not tree.toward_root else sender for sender, receiver in tree.arcs]
        assert sorted([tree.root, *ends]) == list(ranks)


@pytest.mark.parametrize("golden", OWN, ids=str)
def test_graph_file_holds_the_rings_in_nccls_form(golden: Golden) -> None:
    planned = planner(golden)
    if planned.alone:
        with pytest.raises(InputError, match="one rank"):
            graph_file(planned)
        return
    graph = parse(graph_file(planned)).root.children[0]
    gpus = planned.nccl.tables[0].system.gpus
    assert float(graph.attributes["speedintra"]) <= planned.equal_speed.speed
    assert len(graph.children) == int(graph.attributes["nchannels"]) <= 32
    total = float(graph.attributes["speedintra"]) * len(graph.children)
    assert total == pytest.approx(planned.equal_speed.speed * planned.equal_speed.count, rel=1e-4)
    wanted = sorted((gpu.device.host << 56 | gpu.dev) for gpu in gpus)
    if graph.attributes["crossnic"] == "2":  # every second machine takes its neighbour's place in each pair
        channels = [[one.attributes["dev"] for one in channel.named("net")] for channel in graph.children]
        assert all(a == b[::-1] for a, b in zip(channels[::2], channels[1::2], strict=True))
    for channel in graph.children:
        assert sorted(int(one.attributes["dev"], 16) for one in channel.named("gpu")) == wanted
        assert len(channel.named("net")) == (2 if golden.nodes > 1 else 0)


@pytest.mark.parametrize("golden", [one for one in OWN if one.nodes == 2], ids=str)
def test_nccl_makes_our_rings_of_the_graph_file(golden: Golden) -> None:
    """By NCCL's own rule for which channel a machine takes part in."""
    planned = planner(golden)
    graph = parse(graph_file(planned)).root.children[0]
    gpus = sorted(planned.nccl.tables[0].system.gpus, key=lambda gpu: gpu.rank)
    places = {gpu.device.host << 56 | gpu.dev: place for place, gpu in enumerate(gpus)}

    def devs(channel, tag: str) -> list[int]:
        return [int(one.attributes["dev"], 16) for one in channel.named(tag)]

    channels = tuple(
        Channel(ranks=tuple(places[dev] for dev in devs(one, "gpu")), nets=tuple(devs(one, "net")))
        for one in graph.children
    )
    ring = SearchGraph(pattern=Pattern.RING, channels=channels, cross_nic=int(graph.attributes["crossnic"]))
    machine = Node(ring=ring, tree=ring)
    for number, ours in enumerate(planned.equal_channels):
        taken = [ring_channel(machine, place, number, len(channels)) for place in (0, 1)]
        ring_of_all = [rank + place * len(gpus) for place, one in enumerate(taken) for rank in one.ranks]
        assert tuple(ring_of_all) == ours.ring
        assert tuple(one.nets for one in taken) == ours.nics


def test_nccl_view_is_what_nccl_answers() -> None:
    golden = next(one for one in OWN if str(one) == "nvswitch-sm90.2node")
    answer = nccl_view(planner(golden))
    ring = next(one for one in answer.searches if one.algorithm == "ring")
    theirs = golden.answers["graphs"]["ring"]
    assert [one.ranks for one in ring.channels] == [tuple(one["intra"]) for one in theirs["channels"]]
    assert [one.nets for one in ring.channels] == [tuple(one["net"]) for one in theirs["channels"]]
    assert ring.type_inter == theirs["typeInter"]
    choice = next(one for one in golden.answers["choices"]["AllReduce"] if one["bytes"] == 1 << 30)
    assert (answer.predicted.algorithm, answer.predicted.protocol) == (choice["algo"], choice["proto"])
    assert answer.predicted.time_seconds == pytest.approx(choice["time_us"] * 1e-6, rel=0.01)


def alternatives(xml: str) -> tuple[Planner, dict[str, float]]:
    planner = Planner(Request(topologies=[read(xml, source="a machine")], order=[0] * 2, names=["a", "b"]))
    return planner, {one.name: one.bandwidth_bytes_per_second for one in ring_plan(planner).alternatives}


@pytest.mark.parametrize("golden", [one for one in OWN if one.nodes == 2], ids=str)
def test_a_network_that_reduces_bounds_an_all_reduce_by_each_machines_ports(golden: Golden) -> None:
    offered = golden.text.replace("<net ", '<net coll="1" ')
    assert "sharp" not in alternatives(golden.text)[1]
    planner, found = alternatives(offered)
    system = planner.nccl.tables[0].system
    ranks = planner.nccl.job.ranks
    ports = sum(net.bandwidth for net in system.nets)
    assert found["sharp"] <= 2 * (ranks - 1) / ranks * ports * 1e9 * (1 + 1e-9)
    assert found["sharp"] >= max(found.get("nvls", 0.0), planner.bound.busbw * 1e9) * (1 - 1e-9)
    if len(system.nets) > 1:
        assert "sharp" not in alternatives(offered.replace(' coll="1"', "", 1))[1]
