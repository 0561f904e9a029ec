"""Rank order: time by number of ranks, and what it gains: crossings, slowest edge, weighted time of a mesh.

    python bench/order.py [--most 16384]

Nodes of 8 ranks in random order, 32 below a leaf and 256 below a spine. Measured pairs are drawn: of ten edges one runs
at a tenth of the others' speed. With FABRICD_CORPUS, also the measured pairs of 17 H100 nodes; there an edge is a pair
of nodes, and "possible" is what the second best partner of the worst node allows.
"""

import argparse
import os
import random
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import TypeVar

from fabricd.plan.order import PairBandwidth, RankOrder, RankPlace, rank_order
from fabricd.plan.order.mesh import Mesh, MeshAxis
from fabricd.plan.order.mesh_order import mesh_order
from fabricd.plan.order.pairs_csv import read_pairs

T = TypeVar("T")

SIZES = (128, 1024, 16_384)
PER_NODE = 8


def cluster(ranks: int) -> list[RankPlace]:
    """Return ranks on nodes in random order."""
    nodes = list(range(ranks // PER_NODE))
    random.Random(1).shuffle(nodes)
    return [
        RankPlace(rank=at * PER_NODE + own, node=f"n{node}", leaf=f"l{node // 32}", spine=f"s{node // 256}")
        for at, node in enumerate(nodes)
        for own in range(PER_NODE)
    ]


def pairs(ranks: int) -> PairBandwidth:
    """Return figures of all pairs below one leaf, and of some others."""
    drawn = random.Random(2)
    nodes = ranks // PER_NODE
    inside = [pair for first in range(0, nodes, 32) for pair in combinations(range(first, min(first + 32, nodes)), 2)]
    across = [tuple(sorted(drawn.sample(range(nodes), 2))) for _ in range(40 * nodes)] if nodes > 32 else []
    return PairBandwidth(
        {
            (f"n{a}", f"n{b}"): drawn.uniform(30e9, 45e9) * (0.1 if drawn.random() < 0.1 else 1)
            for a, b in (*inside, *across)
        }
    )


def timed(function: Callable[[], T]) -> tuple[T, float]:
    """Return a result and its seconds of this process."""
    begun = time.process_time()
    return function(), time.process_time() - begun


def told(name: str, found: RankOrder, seconds: float) -> str:
    """Return a line of the table."""
    crossed = ", ".join(f"{one.level} {one.before} > {one.after} (least {one.least})" for one in found.crossings)
    edges = ""
    if found.slowest_before and found.slowest_after and found.bound_bytes_per_second:
        figures = (found.slowest_before.bandwidth_bytes_per_second, found.slowest_after.bandwidth_bytes_per_second)
        edges = " > ".join(f"{figure / 1e9:.1f}" for figure in figures)
        edges = f"slowest {edges} GB/s, possible {found.bound_bytes_per_second / 1e9:.1f}"
    return f"{name:28}{seconds:8.2f} s  {found.method:8} {'; '.join(filter(None, (crossed, edges)))}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=SIZES[-1], help="ranks at most")
    most = parser.parse_args().most
    for ranks in (size for size in SIZES if size <= most):
        places, bandwidth = cluster(ranks), pairs(ranks)
        found, seconds = timed(lambda places=places: rank_order(places))
        print(told(f"{ranks} ranks, switches", found, seconds))
        found, seconds = timed(lambda places=places, bandwidth=bandwidth: rank_order(places, bandwidth=bandwidth))
        print(told(f"{ranks} ranks, measured", found, seconds))
        axes = (
            MeshAxis(name="tp", size=8, bytes=64 << 20, weight=100),
            MeshAxis(name="dp", size=ranks // 64, bytes=1 << 30),
            MeshAxis(name="pp", size=8, collective="send_recv", bytes=16 << 20, weight=8),
        )
        mesh, seconds = timed(lambda places=places, axes=axes: mesh_order(places, Mesh(axes=axes)))
        ratio = mesh.weighted_seconds_before / mesh.weighted_seconds
        print(f"{f'{ranks} ranks, tp x dp x pp':28}{seconds:8.2f} s  mesh     weighted time {ratio:.3f} times shorter")
    matrix = Path(os.environ.get("FABRICD_CORPUS", "")) / "measurements/pairwise-17node-h100.csv"
    for test in ("alltoall_perf", "sendrecv_perf") if matrix.is_file() else ():
        for gpus in ("1", "4", "8"):
            known = read_pairs(matrix.read_text(), where={"test": test, "G": gpus})
            nodes = [RankPlace(rank=number, node=name) for number, name in enumerate(known.names)]
            found, seconds = timed(lambda nodes=nodes, known=known: rank_order(nodes, bandwidth=known))
            print(told(f"17 nodes, {test[:-5]} x {gpus}", found, seconds))


if __name__ == "__main__":
    main()
