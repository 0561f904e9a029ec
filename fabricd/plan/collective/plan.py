"""The plan of one collective, and why: rings, trees, or what NCCL does by itself."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import isfinite, lcm

from fabricd.errors import InputError
from fabricd.model.collective import (
    Alternative,
    CollectivePlan,
    Prediction,
    Search,
    SearchedChannel,
    Tree,
)
from fabricd.model.path import Hop, PathType
from fabricd.paths.nccl.system import HOST_SHIFT
from fabricd.plan.collective.fabric import EngineRoutes, FreeRoutes
from fabricd.plan.collective.planner import Planner, Request
from fabricd.plan.collective.reasons import in_gb, nccl_reasons, percent, ring_reasons, unsolved_reason
from fabricd.plan.collective.trees import MAX_RANKS, TreePacking, pack_trees
from fabricd.plan.nccl.emulate import Member
from fabricd.plan.nccl.graphs import SearchGraph
from fabricd.plan.nccl.job import COLLECTIVES
from fabricd.plan.predict.model import bus_factor
from fabricd.units import format_count

#: Beside rings trees are packed for so many ranks at most: more take seconds.
_TREES_BESIDE = 16
VIEWS = ("physical", "nccl")
KINDS = ("rings", "trees")
_NET_MASK = (1 << HOST_SHIFT) - 1


def collective_plan(request: Request, *, view: str = "physical", kind: str = "rings") -> CollectivePlan:
    """Return a plan.

    Args:
        request: what is to be planned.
        view: "physical" for ours, "nccl" for what NCCL does by itself.
        kind: of our plan, "rings" or "trees".

    Raises:
        InputError: a view or kind that there is not, or what cannot be planned.
    """
    for what, value, known in (("view", view, VIEWS), ("kind", kind, KINDS)):
        if value not in known:
            raise InputError(f"no {what} {value[:40]!r}", hint=f"one of {', '.join(known)}")
    planner = Planner(request)
    if view == "nccl":
        return nccl_view(planner)
    return tree_plan(planner) if kind == "trees" else ring_plan(planner)


def ring_plan(planner: Planner) -> CollectivePlan:
    """Return the plan of rings, with NCCL's own and what else there is beside it."""
    if planner.alone:
        return _one_rank(planner)
    total = planner.weakest.packing.total
    limit = min(part.packing.limit for part in planner.parts)
    trees = _trees_beside(planner)
    return CollectivePlan(
        collective=planner.request.collective,
        bytes=planner.request.size,
        ranks=planner.rank_names(),
        nodes=len(planner.request.order),
        routes=planner.request.routes,
        channels=planner.channels,
        bandwidth_bytes_per_second=sum(one.bandwidth_bytes_per_second for one in planner.channels),
        bound_bytes_per_second=planner.bound.busbw * 1e9,
        limit_bytes_per_second=max(total, limit) * 1e9 if isfinite(limit) else None,
        bottleneck=planner.bottleneck(),
        predicted=planner.predictions[1],
        alternatives=tuple(_alternatives(planner, trees)),
        because=tuple(ring_reasons(planner, trees)),
    )


def tree_plan(planner: Planner) -> CollectivePlan:
    """Return the plan of trees.

    Raises:
        InputError: too many ranks, or a rank that cannot be reached.
    """
    packing = _packed_trees(planner)
    if packing is None:
        raise InputError("some rank cannot be reached from another, so there is no tree")
    turned = planner.request.collective not in ("broadcast", "reduce")
    made = tuple(_all_trees(packing, planner.nccl.members, turned=turned))
    bound = max(planner.bound.busbw, packing.busbw)
    share = percent(packing.busbw, bound)
    return CollectivePlan(
        collective=planner.request.collective,
        bytes=planner.request.size,
        ranks=planner.rank_names(),
        nodes=len(planner.request.order),
        kind="trees",
        routes=planner.request.routes,
        trees=made,
        bandwidth_bytes_per_second=packing.busbw * 1e9,
        bound_bytes_per_second=bound * 1e9,
        limit_bytes_per_second=max(packing.busbw, packing.limit) * 1e9,
        bottleneck=tuple(_tight_links(planner, packing)),
        because=(
            f"{format_count(len(made), 'tree')} of ours, {in_gb(packing.busbw)} in all: {share} of what is possible",
            f"no schedule exceeds {in_gb(bound)}: {planner.bound.because}",
            "a plan to compare with: NCCL takes rings and trees in its own form only",
            *([unsolved_reason(packing.unsolved, "trees")] if packing.unsolved else []),
        ),
    )


def _tight_links(planner: Planner, packing: TreePacking) -> Iterator[Hop]:
    """Yield the links that hold trees back, kind by kind of machine."""
    ends = list(accumulate(len(part.fabric.links) for part in planner.parts))
    for part, end in zip(planner.parts, ends, strict=True):
        yield from planner.tightest(part, packing.prices[end - len(part.fabric.links) : end])


def nccl_view(planner: Planner) -> CollectivePlan:
    """Return what NCCL will do by itself: its searches, its rings, and its choice for the size."""
    request = planner.request
    choice = planner.nccl.choose(COLLECTIVES[request.collective], request.size)
    predicted = None
    if choice is not None and choice.time > 0:
        seconds = choice.time * 1e-6
        predicted = Prediction(
            time_seconds=seconds,
            busbw_bytes_per_second=_bus_factor(planner) * request.size / seconds,
            algorithm=choice.algorithm,
            protocol=choice.protocol,
            basis="NCCL's own model, by which it chooses",
        )
    expected = None if planner.alone else planner.predictions[0]
    return CollectivePlan(
        collective=request.collective,
        bytes=request.size,
        ranks=planner.rank_names(),
        nodes=len(request.order),
        view="nccl",
        channels=planner.nccl_channels,
        bandwidth_bytes_per_second=planner.nccl.ring_bandwidth * 1e9,
        bound_bytes_per_second=(planner.nccl.ring_bandwidth if planner.alone else planner.bound.busbw) * 1e9,
        predicted=predicted,
        alternatives=() if expected is None else (Alternative(name="expected", predicted=expected),),
        searches=tuple(_searches(planner)),
        because=tuple(nccl_reasons(planner)),
    )


def _one_rank(planner: Planner) -> CollectivePlan:
    """Return NCCL's own channels: nothing leaves the GPU, so that no link bounds them."""
    total = planner.nccl.ring_bandwidth * 1e9
    return CollectivePlan(
        collective=planner.request.collective,
        bytes=planner.request.size,
        ranks=planner.rank_names(),
        channels=planner.nccl_channels,
        bandwidth_bytes_per_second=total,
        bound_bytes_per_second=total,
        because=("one rank has nobody to talk to: the figure is what NCCL assumes of a copy within a GPU",),
    )


def _packed_trees(planner: Planner) -> TreePacking | None:
    if planner.alone:
        raise InputError("one rank has nobody to talk to, so there is no tree")
    ranks, members = planner.nccl.job.ranks, planner.nccl.members
    collective = planner.request.collective
    if ranks > MAX_RANKS:
        raise InputError(f"trees over {ranks} ranks", hint=f"at most {MAX_RANKS}")
    if len(members) > 1 and collective in ("broadcast", "reduce"):
        raise InputError(f"trees of a {collective} over several machines", hint="they are packed within one machine")
    fabrics = [part.fabric for part in planner.parts]
    engine = planner.request.routes == "engine"
    routes = [EngineRoutes(fabric) if engine else FreeRoutes(fabric) for fabric in fabrics]
    return pack_trees(routes, [member.part for member in members], collective)


def _trees_beside(planner: Planner) -> TreePacking | None:
    job = planner.nccl.job
    several = len(planner.nccl.members) > 1
    if job.ranks > _TREES_BESIDE or (several and job.ranks == job.nodes):
        return None
    if planner.request.collective in ("broadcast", "reduce") and several:
        return None
    return _packed_trees(planner)


def _all_trees(packing: TreePacking, members: Sequence[Member], *, turned: bool) -> Iterator[Tree]:
    """Yield the trees of all roots: those of the first machine of each kind, and the same for those that are alike.

    Args:
        packing: the trees.
        members: all machines, in the order that the packing counts its ranks in.
        turned: whether every machine's ranks are roots.
    """
    ranks = [rank for member in members for rank in member.ranks]
    starts = list(accumulate((len(member.ranks) for member in members), initial=0))
    alike: dict[int, list[int]] = {}
    for place, member in enumerate(members):
        alike.setdefault(member.part, []).append(place)
    turns = lcm(*map(len, alike.values())) if turned else 1
    for turn in range(turns):
        moved: dict[int, int] = {}
        for places in alike.values():
            for at, place in enumerate(places):
                there = places[(at + turn) % len(places)]
                moved |= {
                    starts[place] + local: ranks[starts[there] + local] for local in range(len(members[place].ranks))
                }
        for tree in packing.trees:
            kind = members[bisect_right(starts, tree.root) - 1].part
            yield Tree(
                root=moved[tree.root],
                arcs=tuple((moved[a], moved[b]) for a, b in tree.arcs),
                toward_root=tree.toward_root,
                bandwidth_bytes_per_second=tree.weight * 1e9 * len(alike[kind]) / turns,
            )


def _alternatives(planner: Planner, trees: TreePacking | None) -> Iterator[Alternative]:
    theirs, ours = planner.predictions
    yield Alternative(
        name="nccl",
        bandwidth_bytes_per_second=planner.nccl.ring_bandwidth * 1e9,
        channels=planner.nccl_channels,
        count=len(planner.nccl_channels),
        predicted=theirs,
    )
    equal = planner.equal_speed
    if equal is not None:
        yield Alternative(
            name="equal speed",
            bandwidth_bytes_per_second=equal.speed * equal.count * 1e9,
            channels=planner.equal_channels,
            count=equal.count,
            predicted=ours,
            because=("what a graph file can tell NCCL: one speed for all channels, 32 channels at most",),
        )
    if trees is not None:
        yield Alternative(name="trees", bandwidth_bytes_per_second=trees.busbw * 1e9, count=len(trees.trees))
    if planner.nccl.job.nvls.channels and planner.request.collective == "all_reduce":
        yield Alternative(
            name="nvls",
            bandwidth_bytes_per_second=planner.reduced_in_network * 1e9,
            count=len(planner.nccl.job.nvls.channels),
            because=("the NVSwitch reduces: each byte leaves a GPU once; nominal, NVLS reaches less",),
        )
    if planner.request.collective == "all_reduce" and planner.reduced_by_network is not None:
        yield Alternative(
            name="sharp",
            bandwidth_bytes_per_second=planner.reduced_by_network * 1e9,
            because=(
                "the network's switches reduce (SHARP), which every port offers: the message leaves and enters each "
                "machine once; at most, if machines reduce as fast within",
            ),
        )


def _searches(planner: Planner) -> Iterator[Search]:
    names = planner.request.names or [""] * len(planner.request.order)
    for number, found in enumerate(planner.nccl.found):
        place = next(place for place, member in enumerate(planner.nccl.members) if member.part == number)
        machine = names[min(place, len(names) - 1)]
        for algorithm, graph in (("ring", found.ring), ("tree", found.tree), ("nvls", found.nvls)):
            if graph.channels:
                yield _search(algorithm, machine, graph)


def _search(algorithm: str, machine: str, graph: SearchGraph) -> Search:
    return Search(
        algorithm=algorithm,
        machine=machine,
        channels=tuple(
            SearchedChannel(
                ranks=one.ranks, nets=(one.nets[0] & _NET_MASK, one.nets[1] & _NET_MASK) if one.nets else None
            )
            for one in graph.channels
        ),
        bandwidth_intra_bytes_per_second=round(graph.bandwidth_intra * 1e9, 3),
        bandwidth_inter_bytes_per_second=round(graph.bandwidth_inter * 1e9, 3),
        type_intra=PathType(graph.type_intra.name),
        type_inter=PathType(graph.type_inter.name),
        crossing=graph.cross_nic == 2,
    )


def _bus_factor(planner: Planner) -> float:
    return bus_factor(COLLECTIVES[planner.request.collective], planner.nccl.job.ranks)
