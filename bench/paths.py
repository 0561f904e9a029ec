"""Time of all pairs: an 8-GPU node, a 72-GPU NVLink domain, growth to 576 GPUs; networkx does the same search beside.

    python -m bench.paths [--repeat 5] [--largest 576]

Prints the best of several runs. "search" finds the hops, "described" gives whole paths with type, figures and evidence;
the ratio is networkx's time for its search to ours for the same. Bandwidths are compared before a time is shown.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx

from fabricd.graph.from_nccl import graph_from_nccl
from fabricd.graph.graph import Graph, VertexKind
from fabricd.graph.nccl_xml_types import (
    NcclC2c,
    NcclCpu,
    NcclGpu,
    NcclNet,
    NcclNic,
    NcclNvLink,
    NcclPci,
    NcclTopology,
)
from fabricd.paths.describe import bottleneck
from fabricd.paths.query import all_paths
from fabricd.paths.search import PathSearch

GEN5 = {"link_speed": "32.0 GT/s PCIe", "link_width": 16}
#: networkx gets slow beyond.
LARGEST_FOR_NETWORKX = 144


def gpu(rank: int, bus: str, c2c: NcclC2c | None = None) -> NcclPci:
    """A GPU on NVSwitches."""
    links = (NcclNvLink(target="0000:c0:00.0", count=18, target_class="0x068000"),)
    return NcclPci(
        busid=f"{bus}:00.0",
        device_class="0x030200",
        gpus=(NcclGpu(dev=rank, rank=rank, sm=100 if c2c else 90, gdr=True, nvlinks=links, c2c=c2c),),
        **GEN5,
    )


def nic(dev: int, bus: str) -> NcclPci:
    """A 400 Gb/s card."""
    net = NcclNet(name=f"mlx5_{dev}", dev=dev, megabits_per_second=400_000, gdr=True)
    return NcclPci(busid=f"{bus}:00.0", device_class="0x020700", nics=(NcclNic(nets=(net,)),), **GEN5)


def hgx() -> NcclTopology:
    """Two sockets, eight switches with a GPU and a card each."""
    sockets = []
    for socket in range(2):
        below = tuple(
            NcclPci(
                busid=f"0000:{index + 1}0:00.0",
                device_class="0x060400",
                children=(gpu(index, f"0000:{index + 1}1"), nic(index, f"0000:{index + 1}2")),
                **GEN5,
            )
            for index in range(4 * socket, 4 * socket + 4)
        )
        sockets.append(
            NcclCpu(numaid=socket, arch="x86_64", vendor="GenuineIntel", familyid=6, modelid=143, children=below)
        )
    return NcclTopology(version=1, cpus=tuple(sockets))


def domain(gpus: int) -> NcclTopology:
    """Trays of two processors with two GPUs on C2C and two cards each, in one NVLink domain."""
    cpus = []
    for number in range(gpus // 2):
        pair = range(2 * number, 2 * number + 2)
        below = (
            *(gpu(rank, f"000{rank % 4}:01", NcclC2c(count=10, megabytes_per_second=45_000)) for rank in pair),
            *(nic(dev, f"001{dev % 4}:01") for dev in pair),
        )
        cpus.append(NcclCpu(numaid=number % 2, arch="arm64", vendor="ARM", host_hash=number // 2 + 1, children=below))
    return NcclTopology(version=1, cpus=tuple(cpus))


def best_of(repeat: int, work: Callable[[], object]) -> float:
    """Return the least time of several runs, seconds."""
    times = []
    for _ in range(repeat):
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return min(times)


def with_networkx(graph: Graph, ends: Sequence[str]) -> dict[tuple[str, str], tuple[float, list[str]]]:
    """Widest, then quickest paths by networkx: all quickest paths over the links of each width, widest first."""
    widths = sorted({hop.bandwidth_bytes_per_second or float("inf") for hop in graph.edges()}, reverse=True)
    found: dict[tuple[str, str], tuple[float, list[str]]] = {}
    for width in widths:
        wide = networkx.DiGraph()
        for hop in graph.edges():
            if (hop.bandwidth_bytes_per_second or float("inf")) >= width:
                wide.add_edge(hop.src, hop.dst, weight=hop.latency_seconds or 0.0)
        for src in ends:
            if src in wide and any((src, dst) not in found for dst in ends if dst != src):
                for dst, path in networkx.single_source_dijkstra_path(wide, src).items():
                    found.setdefault((src, dst), (width, path))
    return found


@dataclass(frozen=True)
class Case:
    """All pairs of some devices of one graph."""

    name: str
    graph: Graph
    ends: list[str]
    target: float | None = None  #: seconds, for paths that are described

    def run(self, repeat: int) -> str:
        """Return the line of the table."""
        small = len(self.ends) <= LARGEST_FOR_NETWORKX
        if small:
            self.compare()
        pairs = len(self.ends) * (len(self.ends) - 1)
        searched = best_of(repeat, lambda: sum(1 for _ in PathSearch(self.graph).all_best(self.ends)))
        described = best_of(repeat, lambda: sum(1 for _ in all_paths(self.graph, self.ends)))
        line = f"{self.name:<38} {len(self.graph):>8} {pairs:>7} {searched * 1e3:>10.2f} {described * 1e3:>12.2f}"
        line += f" {described / pairs * 1e6:>8.1f}"
        if small:
            theirs = best_of(min(repeat, 3), lambda: with_networkx(self.graph, self.ends))
            line += f" {theirs * 1e3:>12.1f} {theirs / searched:>6.1f}"
        if self.target is None:
            return line
        return f"{line}   {'within' if described < self.target else 'MISSED'} {self.target * 1e3:.0f} ms"

    def compare(self) -> None:
        """Fail unless networkx finds the same bandwidths between GPUs."""
        gpus = [name for name in self.ends if self.graph[name].kind is VertexKind.GPU]
        theirs = with_networkx(self.graph, gpus)
        for src, dst, hops in PathSearch(self.graph).all_best(gpus):
            if (bottleneck(hops) or float("inf")) != theirs[src, dst][0]:
                raise SystemExit(f"networkx disagrees on {src} - {dst}")


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description="Time of the best paths of all pairs.")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--largest", type=int, default=576)
    options = parser.parse_args()
    columns = ("vertices", "pairs", "search ms", "described ms", "us/pair", "networkx ms", "ratio")
    print(
        f"{'all pairs':<38} {columns[0]:>8} {columns[1]:>7} {columns[2]:>10} {columns[3]:>12} {columns[4]:>8}", end=""
    )
    print(f" {columns[5]:>12} {columns[6]:>6}")
    ports = (VertexKind.GPU, VertexKind.HCA_PORT)
    node, rack = graph_from_nccl(hgx()), graph_from_nccl(domain(72))
    few = min(options.repeat, 2)
    print(Case("8 GPUs and 8 NICs of a node", node, ends(node, *ports), 0.005).run(4 * options.repeat))
    print(Case("72 GPUs of an NVLink domain", rack, ends(rack, VertexKind.GPU), 0.2).run(options.repeat))
    print(Case("72 GPUs and 72 NICs of one", rack, ends(rack, *ports)).run(few))
    for gpus in (8, 16, 32, 64, 144, 288, 576):
        if gpus <= options.largest:
            graph = graph_from_nccl(domain(gpus))
            print(Case(f"{gpus} GPUs of an NVLink domain", graph, ends(graph, VertexKind.GPU)).run(few))


def ends(graph: Graph, *kinds: VertexKind) -> list[str]:
    """Return the names of the vertices of some kinds."""
    return [vertex.name for vertex in graph.of_kind(*kinds)]


if __name__ == "__main__":
    main()
