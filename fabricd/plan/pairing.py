"""Which pairs of nodes to measure, so that slow ports and slow ways are told apart with few measurements.

In each round every node has one partner, another one in each round; all pairs of a round can be measured at once. Three
rounds show which end of a slow pair is slow; as many as there are nodes less one are all pairs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fabricd.model.measurement import Pair
from fabricd.model.network import Network, NetworkPort

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Pairs that share no node, on one network."""

    round: int  #: counted from 0
    network: str
    pairs: tuple[Pair, ...]


def steps(networks: Iterable[Network], nodes: Sequence[str], rounds: int) -> Iterator[Step]:
    """Yield what to measure, one after the other, so that each round has seen all networks before the next begins.

    Args:
        networks: ports without an address, such as InfiniBand's, are left out.
        nodes: node_ids that count, in any order; it decides who meets whom.
        rounds: at least 1; a network of few nodes has fewer.
    """
    lanes = [(network.name, lane) for network in networks for lane in _lanes(network, nodes)]
    for number in range(rounds):
        for name, ports in lanes:
            pairs = tuple(_pair(name, a, b) for a, b in matching(ports, number))
            if pairs:
                yield Step(round=number, network=name, pairs=pairs)


def matching(items: Sequence[_T], number: int) -> list[tuple[_T, _T]]:
    """Return round ``number`` of a tournament in which each meets each once; [] when it is over.

    The circle method: all but the first move on by one place, and opposite ones meet. Where their number is odd, one
    has no partner.
    """
    places: list[_T | None] = [*items, *([None] if len(items) % 2 else [])]
    if len(places) < 2 or number >= len(places) - 1:
        return []
    turned = [places[0], *_turned(places[1:], number)]
    half = len(turned) // 2
    met = zip(turned[:half], reversed(turned[half:]), strict=True)
    return [(a, b) for a, b in met if a is not None and b is not None]


def _turned(items: Sequence[_T], by: int) -> list[_T]:
    return [*items[by:], *items[:by]]


def _lanes(network: Network, nodes: Sequence[str]) -> Iterator[list[NetworkPort]]:
    """Yield ports of one place in their nodes' lists, in the order of the nodes: the first of each, the second ..."""
    wanted = set(nodes)
    by_node: dict[str, list[NetworkPort]] = defaultdict(list)
    for port in network.ports:
        if port.address and port.node in wanted:
            by_node[port.node].append(port)
    for place in range(max(map(len, by_node.values()), default=0)):
        lane = [by_node[node][place] for node in nodes if len(by_node[node]) > place]
        if len(lane) > 1:
            yield lane


def _pair(network: str, a: NetworkPort, b: NetworkPort) -> Pair:
    return Pair(
        network=network,
        src_node=a.node,
        dst_node=b.node,
        src_interface=a.interface,
        dst_interface=b.interface,
        src_address=a.address,
        dst_address=b.address,
    )
