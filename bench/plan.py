"""Rings and trees against NCCL's and against what is possible, and the time it takes to pack them.

    python -m bench.plan [--trees] [--scale] [--faults] [FOLDER ...]

A folder holds ``X.xml`` with NCCL's own answers ``X.Nnode.json`` beside it; by default tests/nccl/machines. Ratios are
median/least over the machines; times are CPU time, warm. ``--trees`` packs trees, too; ``--scale`` times whole plans
from 64 to 16,384 ranks; ``--faults`` shows what a fault on one of four nodes costs NCCL's rings and ours.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fabricd.graph.nccl_xml_merge import topology_of
from fabricd.graph.simulate.templates import load_template
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.rules import compute_paths
from fabricd.plan.collective.bound import Kind, bound
from fabricd.plan.collective.cluster import Part, joined_at_one_speed, known_columns
from fabricd.plan.collective.fabric import EngineRoutes, Fabric, FreeRoutes, Routes
from fabricd.plan.collective.machines import machines_of
from fabricd.plan.collective.plan import ring_plan
from fabricd.plan.collective.planner import Planner, Request
from fabricd.plan.collective.rings import pack
from fabricd.plan.collective.trees import pack_trees
from fabricd.plan.what_if import WhatIf, changed
from tests.support.nccl_golden import OWN, Golden

T = TypeVar("T")
_MODELS = ("engine", "free")


@dataclass
class Figures:
    """Ratios and times of all machines, by name."""

    rows: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, value: float) -> None:
        """Add one machine's figure."""
        self.rows.setdefault(name, []).append(value)

    def show(self, title: str) -> None:
        """Print a line for each name."""
        count = max(map(len, self.rows.values()), default=0)
        print(f"\n{title}: {count} machines\n{'':<44} {'median':>9} {'least':>9} {'most':>9}")
        for name, values in self.rows.items():
            print(f"{name:<44} {statistics.median(values):>9.3f} {min(values):>9.3f} {max(values):>9.3f}")


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Return a result and the CPU time it took, ms."""
    began = time.process_time()
    result = work()
    return result, (time.process_time() - began) * 1e3


def judged(folders: Sequence[Path]) -> Iterator[Golden]:
    """Yield the machines that NCCL takes as one and has rings on, of two ranks and more."""
    for folder in folders:
        for golden in map(Golden, sorted(folder.glob("*node.json"))):
            answers = golden.answers
            gpus = sum(node["type"] == "GPU" for node in answers["nodes"])
            whole = answers["search"].get("gpus_after_trim") == gpus and answers.get("hosts_in_xml", 1) == 1
            if whole and answers["graphs"]["ring"].get("nChannels") and gpus * golden.nodes > 1:
                yield golden


def measure(golden: Golden, figures: Figures, *, trees: bool) -> None:
    """Add one machine's figures."""
    fabric = Fabric(compute_paths(build_system(golden.topology())), between_nodes=golden.nodes > 1)
    kinds = [Kind(fabric, golden.nodes)]
    gather, reduce = bound(kinds, "all_gather").busbw, bound(kinds, "all_reduce").busbw
    engine, graph = EngineRoutes(fabric), golden.graph("ring")
    known = known_columns(engine, graph)
    theirs = len(graph.channels) * (graph.bandwidth_inter if golden.nodes > 1 else graph.bandwidth_intra)
    figures.add("NCCL's rings / all-gather optimum", theirs / gather)
    for model, routes in zip(_MODELS, (engine, FreeRoutes(fabric)), strict=True):
        packing, spent = timed(lambda routes=routes: pack(routes, known))
        figures.add(f"rings, {model} / all-gather optimum", packing.total / gather)
        figures.add(f"rings, {model} / certified limit", packing.total / packing.limit)
        figures.add(f"rings, {model} / NCCL's", packing.total / theirs)
        figures.add(f"rings, {model}: ms", spent)
        if model == "engine":
            part = Part(fabric, routes, tuple(known), theirs, golden.nodes, packing)
            equal, spent = timed(lambda part=part: joined_at_one_speed([part]))
            figures.add("channels of one speed / rings, engine", equal.speed * equal.count / packing.total)
            figures.add("channels of one speed: ms", spent)
        if trees:
            add_trees(routes, golden.nodes, model, figures, gather=gather, reduce=reduce, rings=packing.total)


def add_trees(
    routes: Routes, nodes: int, model: str, figures: Figures, *, gather: float, reduce: float, rings: float
) -> None:
    """Add what trees carry."""
    spread, spent = timed(lambda: pack_trees([routes], [0] * nodes, "all_gather"))
    pairs, more = timed(lambda: pack_trees([routes], [0] * nodes, "all_reduce"))
    if spread is None or pairs is None:
        return
    figures.add(f"trees, {model} / all-gather optimum", spread.busbw / gather)
    figures.add(f"trees, {model}: ms", spent)
    figures.add(f"pairs of trees, {model} / all-reduce bound", pairs.busbw / reduce)
    figures.add(f"pairs of trees, {model} / rings", pairs.busbw / rings)
    figures.add(f"pairs of trees, {model}: ms", more)


def scale(golden: Golden) -> None:
    """Print the time of whole plans: NCCL's search, packing, bound, channels of one speed, prediction."""
    topology = golden.topology()
    gpus = sum(node["type"] == "GPU" for node in golden.answers["nodes"])
    print(f"\nwhole plans on {golden}\n{'ranks':>8} {'nodes':>8} {'s':>8}")
    for ranks in (64, 256, 1024, 4096, 16384):
        nodes = ranks // gpus
        names = [f"node{number}" for number in range(nodes)]
        request = Request(topologies=[topology], order=[0] * nodes, names=names)
        _, spent = timed(lambda request=request: ring_plan(Planner(request)))
        print(f"{nodes * gpus:>8} {nodes:>8} {spent / 1e3:>8.2f}")


def faults() -> None:
    """Print rings of NCCL and of ours on four nodes, one of which has a fault."""
    print(f"\n{'four nodes, wrong on one of them':<44} {'NCCL':>9} {'ours':>9} {'channels':>9} {'possible':>9}  GB/s")
    for name in ("a100", "h100", "b200"):
        whole = topology_of(load_template(name))
        nets = [net for cpu in whole.cpus for nic, _ in cpu.nics() for net in nic.nets]
        fastest = max(net.megabits_per_second for net in nets)
        healthy = changed(whole, WhatIf(without=[net.name for net in nets if net.megabits_per_second < fastest]))
        cases = (
            ("nothing", WhatIf()),
            ("a port at half speed", WhatIf(port_speeds={"net3": fastest * 125_000 / 2})),
            ("a port gone", WhatIf(without=("net3",))),
            ("an NVLink of a GPU down", WhatIf(links_down=(("gpu3", "nvswitch", 1),))),
            ("a GPU left out", WhatIf(without=("gpu3",))),
        )
        for fault, what_if in cases:
            named = [("a", changed(healthy, what_if)), *((other, healthy) for other in "bcd")]
            planner = Planner(Request.of(machines_of(named)))
            equal = planner.equal_speed
            figures = (
                planner.nccl.ring_bandwidth,
                planner.weakest.packing.total,
                equal.speed * equal.count if equal else 0.0,
                planner.bound.busbw,
            )
            print(f"{f'{name}: {fault}':<44} " + " ".join(f"{figure:>9.1f}" for figure in figures))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[OWN], metavar="FOLDER")
    parser.add_argument("--trees", action="store_true")
    parser.add_argument("--scale", action="store_true")
    parser.add_argument("--faults", action="store_true")
    options = parser.parse_args()
    goldens = list(judged(options.folders))
    if not goldens:
        parser.error("no folder has machines with NCCL's answers")
    measure(goldens[0], Figures(), trees=options.trees)  # imports and tables
    for title, chosen in (
        ("one node", [one for one in goldens if one.nodes == 1]),
        ("several nodes", [one for one in goldens if one.nodes > 1]),
    ):
        figures = Figures()
        for golden in chosen:
            measure(golden, figures, trees=options.trees)
        figures.show(title)
    if options.faults:
        faults()
    if options.scale:
        scale(max((one for one in goldens if one.nodes > 1), key=lambda one: len(one.answers["links"])))


if __name__ == "__main__":
    main()
