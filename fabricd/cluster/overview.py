"""The networks of all nodes, and where nodes stand: worked out when somebody asks, and kept until something changes."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from fabricd.background import in_thread
from fabricd.cluster.measuring import Measurer
from fabricd.cluster.nodes import NodeMap
from fabricd.graph.networks import find_networks
from fabricd.graph.placement import placement
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network
from fabricd.model.path import Rejected
from fabricd.model.placement import Place
from fabricd.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Found:
    """What was worked out."""

    networks: tuple[Network, ...]
    rejected: tuple[Rejected, ...]
    places: tuple[Place, ...]


class Overview:
    """Works it out in a thread. Lives in the server's event loop.

    Args:
        nodes: the map.
        measurer: what is known of the networks between nodes.
        turns: how many such searches may run at once.
    """

    def __init__(self, nodes: NodeMap, measurer: Measurer, turns: asyncio.Semaphore) -> None:
        self._nodes = nodes
        self._measurer = measurer
        self._turns = turns
        self._of: tuple[Mapping[str, Snapshot], str] | None = None
        self._found: Found | None = None

    @property
    def version(self) -> str:
        """Another one when measurements have changed what is verified; changes of nodes have versions of their own."""
        measured = self._measurer.known()
        return f"{len(measured)}.{sum(one.reachable for one in measured)}"

    async def find(self) -> Found:
        """Return the networks of the nodes that paths may use, and where these stand.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        async with self._turns:
            nodes, measured = self._nodes.snapshots(), self._measurer.known()
            version = self.version
            known = self._of
            if self._found is None or known is None or known[0] is not nodes or known[1] != version:
                self._found = await in_thread(lambda: _work_out(nodes, measured), name="networks")
                self._of = (nodes, version)
            return self._found


def _work_out(nodes: Mapping[str, Snapshot], measured: tuple[Measurement, ...]) -> Found:
    found = find_networks(nodes, measured)
    return Found(found.networks, found.rejected, tuple(placement(nodes).values()))
