"""NCCL's graph, paths and search emulated: milliseconds a machine, on files whose answers NCCL's own code gave.

    python -m bench.nccl [--repeat 5] [FOLDER ...]

A folder holds ``X.xml`` with ``X.Nnode.json`` beside it; by default tests/nccl/machines. Prints CPU time, the best of
several runs, and how many answers agree with NCCL's. A search is that for rings, trees and NVLS together.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fabricd.graph.nccl_xml_read import read
from fabricd.paths.nccl.build import build_system
from fabricd.paths.nccl.domain import searched_paths
from fabricd.paths.nccl.kinds import PathKind
from fabricd.paths.nccl.rules import compute_paths
from fabricd.paths.nccl.system import Gpu, Net
from fabricd.plan.nccl.machine import Machine
from fabricd.plan.nccl.search import Found, search_all
from tests.support.nccl_golden import OWN, Golden


def best_of(repeat: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the least CPU time of several runs, ms, and what the last gave."""
    least, result = float("inf"), None
    for _ in range(repeat):
        began = time.process_time()
        result = work()
        least = min(least, time.process_time() - began)
    return least * 1e3, result


def paths_agree(golden: Golden) -> tuple[int, int]:
    """Return how many pairs agree in type and bandwidth, and of how many."""
    table = compute_paths(build_system(golden.topology()))
    ends: list[Gpu | Net] = [*table.system.gpus, *table.system.nets]
    pairs = [(a, b) for a in ends for b in ends if a is not b and (isinstance(a, Gpu) or isinstance(b, Gpu))]
    good = 0
    for (src, dst), wanted in zip(pairs, golden.answers["paths"], strict=True):
        route = table.get(src, dst)
        near = abs(route.bandwidth - wanted["bw"]) <= 1e-3 * wanted["bw"]
        good += PathKind(route.kind).name == wanted["type"] and near
    return good, len(pairs)


def searches_agree(golden: Golden, found: Found) -> int:
    """Return how many of the three searches have NCCL's channels and speeds."""
    good = 0
    for name in ("ring", "tree", "nvls"):
        ours, theirs = getattr(found, name), golden.graph(name)
        good += [one.ranks for one in ours.channels] == [one.ranks for one in theirs.channels] and all(
            abs(our - their) <= 1e-3 * their
            for our, their in (
                (ours.bandwidth_intra, theirs.bandwidth_intra),
                (ours.bandwidth_inter, theirs.bandwidth_inter),
            )
        )
    return good


def show(name: str, times: Sequence[float], good: int, count: int) -> None:
    """Print a line."""
    median, most = statistics.median(times), max(times)
    print(f"{name:<28} {len(times):>5} {median:>9.2f} {most:>9.2f} {good:>8}/{count}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[OWN], metavar="FOLDER")
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    goldens = [Golden(path) for folder in options.folders for path in sorted(folder.glob("*node.json"))]
    print(f"{'':<28} {'files':>5} {'median ms':>9} {'max ms':>9} {'agree':>8}")
    files = [golden for golden in goldens if golden.nodes == 1]
    times = [best_of(options.repeat, lambda text=one.text: compute_paths(build_system(read(text))))[0] for one in files]
    agreed = [paths_agree(golden) for golden in files]
    show("file to all paths", times, sum(good for good, _ in agreed), sum(count for _, count in agreed))
    for title, chosen in (
        ("search within one machine", [golden for golden in goldens if golden.nodes == 1]),
        ("search for several machines", [golden for golden in goldens if golden.nodes > 1]),
    ):
        times, good = [], 0
        for golden in chosen:
            wanted = golden.answers["search"]
            table = searched_paths(golden.topology(), rank=wanted["rank"])
            machine = Machine(table, between_nodes=bool(wanted["inter"]))
            spent, found = best_of(1, lambda machine=machine: search_all(machine))
            times.append(spent)
            good += searches_agree(golden, found)
        show(title, times, good, 3 * len(chosen))


if __name__ == "__main__":
    main()
