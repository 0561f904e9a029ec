"""The networks of all nodes, and where nodes stand: worked out when somebody asks, and kept until something changes.

What it costs grows with the number of nodes, seconds for ten thousand. So that a map in which something changes all the
time takes a small part of a processor for it, what is dear is not worked out anew for a while: until then the last
answer is given, with its age.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fabricd.background import in_thread
from fabricd.cluster.measuring import Measurer
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.placement_files import PlacementFiles
from fabricd.graph.networks import find_networks_of
from fabricd.graph.networks_node import KnownPorts
from fabricd.graph.placement import placement
from fabricd.model.measurement import Measurement
from fabricd.model.network import Network
from fabricd.model.path import Rejected
from fabricd.model.placement import Place
from fabricd.model.snapshot import Snapshot

#: What takes less of a processor than this is always worked out anew.
_CHEAP_SECONDS = 0.25
#: What takes more is worked out anew only after so many times of what it took.
_REST = 10
#: Files are looked at again after this time.
_FILES_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What was worked out."""

    networks: tuple[Network, ...]
    rejected: tuple[Rejected, ...]
    places: tuple[Place, ...]
    version: str  #: of what it was worked out from
    begun_at: float  #: monotonic
    seconds: float  #: of a processor that it took


class Overview:
    """Works it out in a thread. Lives in the server's event loop.

    Args:
        nodes: the map.
        measurer: what is known of the networks between nodes.
        files: what this daemon is told of where nodes stand.
        turns: how many such searches may run at once.
        ports: what is known of the nodes' ports; path queries fill and use it, too.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        nodes: NodeMap,
        measurer: Measurer,
        files: PlacementFiles,
        turns: asyncio.Semaphore,
        ports: KnownPorts,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = nodes
        self._measurer = measurer
        self._files = files
        self._turns = turns
        self._clock = clock
        self._found: Found | None = None
        # What files say of a node makes it another one, of which path queries know nothing.
        self._ports = KnownPorts() if files.files else ports
        self._work: asyncio.Task[Found] | None = None

    @property
    def version(self) -> str:
        """What ``find`` would answer with, as its ``version``; "" when it would have to work."""
        return "" if self._found is None or self._is_due(self._found) else self._found.version

    async def find(self) -> Found:
        """Return the networks of the nodes that paths may use, and where these stand.

        Raises:
            BusyError: this node has no snapshot yet.
        """
        if self._found is not None and not self._is_due(self._found):
            return self._found
        if self._work is None:
            nodes = self._nodes.snapshots()
            self._work = asyncio.create_task(self._work_out(nodes))
        # Whoever asks meanwhile waits for the same, and it goes on when the first one does not wait any more.
        return await asyncio.shield(self._work)

    def age_seconds(self, found: Found) -> float:
        """Return the age of what might be otherwise by now; 0 while nothing has changed."""
        return 0.0 if self._is_true(found) else self._clock() - found.begun_at

    def _is_true(self, found: Found) -> bool:
        kept = self._clock() - found.begun_at < _FILES_SECONDS or not self._files.files
        return kept and found.version == self._now()

    def _is_due(self, found: Found) -> bool:
        """Whether it is to be worked out anew: something has changed, and it was cheap, or a while ago."""
        rested = found.seconds < _CHEAP_SECONDS or self._clock() - found.begun_at > (1 + _REST) * found.seconds
        return rested and not self._is_true(found)

    def _now(self) -> str:
        """Return another version with each change of the map, or of what measurements have verified."""
        measured = self._measurer.known()
        return f"{self._nodes.map_version.number}.{len(measured)}.{sum(one.reachable for one in measured)}"

    async def _work_out(self, nodes: Mapping[str, Snapshot]) -> Found:
        version, measured, begun_at = self._now(), self._measurer.known(), self._clock()
        try:
            async with self._turns:
                self._found = await in_thread(lambda: self._of(nodes, measured, version, begun_at), name="networks")
            return self._found
        finally:
            self._work = None

    def _of(
        self, nodes: Mapping[str, Snapshot], measured: tuple[Measurement, ...], version: str, begun_at: float
    ) -> Found:
        begun = time.thread_time()
        told = self._files.applied(nodes)
        ports = self._ports.of(told)
        found = find_networks_of(ports, measured)
        return Found(
            networks=found.networks,
            rejected=found.rejected,
            places=tuple(placement(told, ports=ports).values()),
            version=version,
            begun_at=begun_at,
            seconds=time.thread_time() - begun,
        )
