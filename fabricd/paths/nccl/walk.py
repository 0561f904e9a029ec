"""The paths from everywhere to one node: NCCL's breadth-first search, with its pass-through rules.

A path is better if its type is; then if its bandwidth is; then if it has fewer hops. So type comes before
bandwidth: a thin NVLink beats a wide PCIe path. Source: NCCL 2.30, graph/paths.cc, ncclTopoSetPaths.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from fabricd.errors import InputError
from fabricd.paths.nccl.kinds import LOCAL_BANDWIDTH, LinkType, NodeType, PathKind
from fabricd.paths.nccl.system import Device, Gpu, Link, Node, System

#: The links of a path from its start on, as a chain: (link, rest). Paths share their tails.
Chain: TypeAlias = "tuple[Link, Chain] | None"


class Route(NamedTuple):
    """A path as NCCL keeps it.

    Attributes:
        kind: its type.
        bandwidth: of its narrowest link, GB/s.
        hops: number of links.
        chain: the links.
    """

    kind: int
    bandwidth: float
    hops: int
    chain: Chain

    def links(self) -> Iterator[Link]:
        """Yield the links from the start on."""
        chain = self.chain
        while chain is not None:
            yield chain[0]
            chain = chain[1]


#: How a link may be taken out of a GPU that is not the one at the path's end.
_NOT, _INTO_ITS_RANK, _RELAY = range(3)

#: Far end's position, bandwidth, path type of the step, the link back, one of the three above, whether NVLink.
_Step: TypeAlias = tuple[int, float, int, Link | None, int, bool]


class _State(NamedTuple):
    """A search's findings so far, by position: the fields of ``Route``."""

    kinds: list[int]
    bandwidths: list[float]
    hops: list[int]
    chains: list[Chain]


class Walker:
    """Finds the paths to one node after another in one graph."""

    def __init__(self, system: System, *, relays: bool = True) -> None:
        """Prepare the graph.

        Args:
            system: the graph.
            relays: whether NVLink paths may lead through one other GPU (not with NCCL_NVB_DISABLE=1).
        """
        self._nodes = list(system.nodes())
        self._steps = [[_step(link, relays=relays) for link in node.links] for node in self._nodes]
        self._is_device = [isinstance(node, Device) for node in self._nodes]

    def to(self, *bases: Node) -> list[Route]:
        """Return the path from every node to a node, by the nodes' positions.

        Args:
            bases: the node. Several, where a file gives them one id: NCCL then lets each search go on with what
                the earlier ones found. None, for no path at all.

        Raises:
            InputError: the best path would use a link that exists in one direction only: NCCL fails there.
        """
        count = len(self._nodes)
        state = _State([PathKind.DIS] * count, [0.0] * count, [0] * count, [None] * count)
        for base in bases:
            self._search(base, state)
        return list(map(Route, *state))

    def _search(self, base: Node, state: "_State") -> None:
        kinds, bandwidths, hops, chains = state
        own = base.device.position if isinstance(base, Gpu) else base.position
        relay_hops = 2 if isinstance(base, Gpu) else 1
        here = base.position
        kinds[here], bandwidths[here], hops[here], chains[here] = PathKind.LOC, LOCAL_BANDWIDTH, 0, None
        wave = [here]
        while wave:
            following: dict[int, None] = {}
            for here in wave:
                kind, bandwidth, count = kinds[here], bandwidths[here], hops[here]
                is_device = self._is_device[here]
                foreign = is_device and here != own
                for far, width, step_kind, back, leave, is_nvlink in self._steps[here]:
                    if foreign and leave != _INTO_ITS_RANK and (leave == _NOT or count > relay_hops):
                        continue
                    new_width = width if width < bandwidth else bandwidth
                    new_kind = kind if kind > step_kind else step_kind
                    if is_nvlink and kind == PathKind.NVL and count == relay_hops and is_device:
                        new_kind = PathKind.NVB
                    if (new_kind, -new_width, count + 1) >= (kinds[far], -bandwidths[far], hops[far]):
                        continue
                    if back is None:
                        raise self._one_way(here, far)
                    kinds[far], bandwidths[far], hops[far] = new_kind, new_width, count + 1
                    chains[far] = (back, chains[here])
                    following[far] = None
            wave = list(following)

    def _one_way(self, here: int, far: int) -> InputError:
        names = f"{self._nodes[here].name} -> {self._nodes[far].name}"
        return InputError(
            f"the link {names} has no way back: NCCL fails on this file",
            hint="every GPU that an <nvlink> leads to needs one back; without the links NCCL takes another path",
        )


def _step(link: Link, *, relays: bool) -> _Step:
    source, target = link.source, link.target
    back = next((other for other in target.links if other.target is source and other.type == link.type), None)
    leave = _NOT
    if link.type == LinkType.LOC and isinstance(target, Gpu):
        leave = _INTO_ITS_RANK
    elif link.type == LinkType.NVL and isinstance(target, Device) and relays:
        leave = _RELAY
    return target.position, link.bandwidth, _step_kind(link), back, leave, link.type == LinkType.NVL


def _step_kind(link: Link) -> int:
    """Return the type of a path of this link alone. What NIC and port are joined by does not count."""
    ends = (link.source.type, link.target.type)
    if ends == (NodeType.PCI, NodeType.PCI):
        return PathKind.PXB
    if link.type == LinkType.PCI and NodeType.CPU in ends:
        return PathKind.PHB
    return PathKind.LOC if link.type == LinkType.NET else PathKind(link.type)
