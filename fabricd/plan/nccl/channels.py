"""From search results of all machines to channels across them: rings over all ranks, and double binary trees.

Source: NCCL 2.30, graph/connect.cc and graph/trees.cc.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fabricd.paths.nccl.environment import NcclEnvironment
from fabricd.plan.nccl.graphs import Channel, Pattern, SearchGraph

MAX_CHANNELS = 64
#: Fast machines of a Hopper cluster use every channel once more, up to this many.
_FEW_CHANNELS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine's search results; ranks in ``ring`` and ``tree`` are those of the whole job."""

    ring: SearchGraph
    tree: SearchGraph


@dataclass(frozen=True, slots=True)
class Tree:
    """One tree: by rank, whom it sends up to (-1 for none), and whom it hears from below."""

    up: tuple[int, ...]
    down: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """What runs.

    Attributes:
        searched: number of different rings; the further channels repeat them.
        rings: of each channel, from the first machine's first GPU on.
        trees: of each channel; the second half of them are second trees.
    """

    searched: int
    rings: tuple[tuple[int, ...], ...]
    trees: tuple[Tree, ...]


def copies(first: Sequence[Node], *, ranks: int, count: int) -> list[Node]:
    """Return the nodes of a job on equal machines: the ranks of each follow those of the one before.

    Args:
        first: of the first machine; several if NCCL splits it.
        ranks: on each machine.
        count: number of machines.
    """
    return [shifted(node, copy * ranks) for copy in range(count) for node in first]


def shifted(node: Node, by: int) -> Node:
    """Return a machine whose ranks are so many further on."""
    return Node(ring=_shifted(node.ring, by), tree=_shifted(node.tree, by))


def connect(nodes: Sequence[Node], *, sm: int, environment: NcclEnvironment | None = None) -> Channels:
    """Return the channels of a job.

    Args:
        nodes: all machines, in any order: NCCL orders them by rank.
        sm: lowest compute capability times ten.
        environment: limits on the number of channels.
    """
    environment = environment or NcclEnvironment()
    nodes = sorted(nodes, key=lambda node: min(node.ring.channels[0].ranks))
    count = min(min(len(node.ring.channels), len(node.tree.channels)) for node in nodes)
    rings = [_ring(nodes, channel, count) for channel in range(count)]
    trees = [_tree(nodes, channel, second=second) for second in (False, True) for channel in range(count)]
    total = min(MAX_CHANNELS, 2 * count)
    speed = min(node.ring.bandwidth_intra for node in nodes)
    if sm >= 90 and len(nodes) > 1 and speed > 45 and total < _FEW_CHANNELS:
        total = min(MAX_CHANNELS, 2 * total)
    total = _limited(total, environment)
    return Channels(
        searched=count,
        rings=tuple(rings[channel % count] for channel in range(total)),
        trees=tuple(trees[channel % (2 * count)] for channel in range(total)),
    )


def _limited(count: int, environment: NcclEnvironment) -> int:
    most = [limit for limit in (environment.max_nchannels, environment.max_ctas) if limit]
    least = [limit for limit in (environment.min_nchannels, environment.min_ctas) if limit]
    return min(max([min([count, *most]), *least]), MAX_CHANNELS)


def _shifted(graph: SearchGraph, by: int) -> SearchGraph:
    channels = tuple(replace(one, ranks=tuple(rank + by for rank in one.ranks)) for one in graph.channels)
    return replace(graph, channels=channels)


def ring_channel(node: Node, place: int, channel: int, count: int) -> Channel:
    """Return a machine's part of a ring. Crossing pairs change places on every other machine, to stay on their rail.

    Args:
        node: the machine.
        place: its number in the order of the job.
        channel: which ring.
        count: number of different rings.
    """
    crossed = node.ring.cross_nic == 2 and count % 2 == 0 and place % 2 == 1
    return node.ring.channels[channel ^ 1 if crossed else channel]


def _ring(nodes: Sequence[Node], channel: int, count: int) -> tuple[int, ...]:
    return tuple(rank for place, node in enumerate(nodes) for rank in ring_channel(node, place, channel, count).ranks)


def _tree(nodes: Sequence[Node], channel: int, *, second: bool) -> Tree:
    """Join the chains of all machines in a binary tree."""
    chains = [node.tree.channels[channel].ranks for node in nodes]
    size = sum(map(len, chains))
    up = [-1] * size
    down: list[list[int]] = [[] for _ in range(size)]
    for chain in chains:
        for parent, child in pairwise(chain):
            up[child] = parent
            down[parent].append(child)
    for node, chain in enumerate(chains):
        for place, child in enumerate(_children(len(nodes), node, second=second)):
            if child >= 0:
                parent = chain[_port(nodes[node].tree.pattern, place, len(chain))]
                up[chains[child][0]] = parent
                down[parent].append(chains[child][0])
    return Tree(tuple(up), tuple(map(tuple, down)))


def _port(pattern: Pattern, place: int, count: int) -> int:
    """Return which GPU of a chain the first or second child machine sends to."""
    if place == 0:
        return 0 if pattern is Pattern.TREE or count == 1 else 1
    return 1 if pattern is Pattern.SPLIT_TREE and count > 1 else 0


def _children(nodes: int, node: int, *, second: bool) -> tuple[int, int]:
    """Return a machine's two children, -1 for none.

    The second tree is the first one shifted by a place, or mirrored, so that no machine is inside both.
    """
    if not second:
        return _first_tree_children(nodes, node)
    if nodes % 2:
        first, other = _first_tree_children(nodes, (node - 1) % nodes)
        return (first + 1) % nodes if first >= 0 else -1, (other + 1) % nodes if other >= 0 else -1
    first, other = _first_tree_children(nodes, nodes - 1 - node)
    return nodes - 1 - first if first >= 0 else -1, nodes - 1 - other if other >= 0 else -1


def _first_tree_children(nodes: int, node: int) -> tuple[int, int]:
    if node == 0:
        return -1, 1 << (nodes - 1).bit_length() - 1 if nodes > 1 else -1
    step = (node & -node) >> 1
    if not step:
        return -1, -1
    first = node - step
    while step and node + step >= nodes:
        step >>= 1
    return first, node + step if step else -1
