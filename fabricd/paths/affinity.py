"""Which NIC a GPU should use: the best ones by path, ties shared out evenly and always in the same way.

A GPU's best ports are those that no other beats by bandwidth, then by type of path; ports that it reaches only
through another GPU are that one's. Often several tie, and several GPUs share them. They are dealt out so that the
busiest port serves as few GPUs as possible: an optimal semi-matching (Harvey, Ladner, Lovasz, Tamir 2006), which is
the same whenever the node is.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fabricd.graph.graph import Graph, VertexKind
from fabricd.model.path import Path, PathType
from fabricd.paths.describe import describe
from fabricd.paths.search import PathSearch

_ORDER = {kind: order for order, kind in enumerate(PathType)}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAffinity:
    """A GPU and its ports, by vertex name."""

    gpu: str
    type: PathType = PathType.DIS  #: of its paths to the best ports; DIS without any
    bandwidth_bytes_per_second: float | None = None
    best: tuple[str, ...] = ()  #: all ports that tie for the best
    assigned: tuple[str, ...] = ()  #: those of them that it should use, so that all are used evenly


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAffinity:
    """A port and the GPUs that should use it."""

    port: str
    gpus: tuple[str, ...] = ()
    #: Its place among the node's ports in use. Ports of one rail on all nodes serve GPUs of the same places.
    rail: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Of all GPUs and ports of a node."""

    gpus: tuple[GpuAffinity, ...] = ()
    ports: tuple[PortAffinity, ...] = ()


def affinity(graph: Graph, ports: Sequence[str]) -> Affinity:
    """Return which ports each GPU of a node should use.

    Args:
        graph: of the node.
        ports: vertex names of the ports that may be used, e.g. those on networks for data, in the node's order.
    """
    gpus = [vertex.name for vertex in graph.of_kind(VertexKind.GPU)]
    wanted = set(ports)
    paths: dict[str, list[Path]] = {gpu: [] for gpu in gpus}
    for src, dst, hops in PathSearch(graph, relays=False).all_best([*gpus, *ports], apart=wanted):
        if src in paths and dst in wanted:
            paths[src].append(describe(graph, src, dst, hops))
    place = {port: number for number, port in enumerate(ports)}
    best = {gpu: _best(found, place) for gpu, found in paths.items()}
    assigned = _deal({gpu: [path.dst for path in found] for gpu, found in best.items()})
    users = {port: tuple(gpu for gpu in gpus if port in assigned[gpu]) for port in ports}
    in_use = [port for port in ports if users[port]]
    return Affinity(
        gpus=tuple(
            GpuAffinity(
                gpu=gpu,
                type=best[gpu][0].type if best[gpu] else PathType.DIS,
                bandwidth_bytes_per_second=best[gpu][0].bandwidth_bytes_per_second if best[gpu] else None,
                best=tuple(path.dst for path in best[gpu]),
                assigned=tuple(sorted(assigned[gpu], key=place.__getitem__)),
            )
            for gpu in gpus
        ),
        ports=tuple(
            PortAffinity(port=port, gpus=users[port], rail=in_use.index(port) if users[port] else None)
            for port in ports
        ),
    )


def _best(paths: Sequence[Path], place: Mapping[str, int]) -> list[Path]:
    """Return the paths to the ports that no other beats, in the node's order."""

    def key(path: Path) -> tuple[float, int]:
        width = path.bandwidth_bytes_per_second
        return (0.0 if width is None else -width, _ORDER[path.type])

    least = min(map(key, paths), default=None)
    return sorted((path for path in paths if key(path) == least), key=lambda path: place[path.dst])


def _deal(best: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Deal ports that tie to the GPUs that share them; each GPU with any gets at least one."""
    dealt: dict[str, list[str]] = {gpu: [] for gpu in best}
    for gpus in _sharing(best):
        options = {gpu: best[gpu] for gpu in gpus}
        ports = list(dict.fromkeys(port for gpu in gpus for port in best[gpu]))
        if len(ports) > len(gpus):
            by_port = {port: [gpu for gpu in gpus if port in best[gpu]] for port in ports}
            for port, gpu in _semi_matching(by_port).items():
                dealt[gpu].append(port)
            options = {gpu: best[gpu] for gpu in gpus if not dealt[gpu]}
        for gpu, port in _semi_matching(options).items():
            dealt[gpu].append(port)
    return dealt


def _sharing(best: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Yield groups of GPUs that have best ports in common, directly or through others."""
    left = [gpu for gpu in best if best[gpu]]
    while left:
        group = [left.pop(0)]
        ports = set(best[group[0]])
        while joined := [gpu for gpu in left if ports & set(best[gpu])]:
            group += joined
            left = [gpu for gpu in left if gpu not in joined]
            ports.update(*(best[gpu] for gpu in joined))
        yield sorted(group, key=list(best).index)


def _semi_matching(options: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Give each item one of its options, so that the loads of the options are as even as can be.

    Items come in turn; each takes the least loaded option that it can reach by moving earlier items to others of
    theirs.
    """
    taken: dict[str, str] = {}
    loads: dict[str, int] = {option: 0 for choices in options.values() for option in choices}
    for item in options:
        came: dict[str, str] = {}  # option -> the item that would move to it
        waiting = deque([item])
        while waiting:
            mover = waiting.popleft()
            for option in options[mover]:
                if option not in came:
                    came[option] = mover
                    waiting.extend(other for other, holds in taken.items() if holds == option)
        option = min(came, key=lambda one: loads[one])
        loads[option] += 1
        while True:
            mover = came[option]
            before = taken.get(mover)
            taken[mover] = option
            if before is None:
                break
            option = before
    return taken
