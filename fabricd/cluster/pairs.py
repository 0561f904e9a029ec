"""Measures many pairs of nodes, each by whichever of its two can: a node takes part in one at a time."""

import asyncio
from collections.abc import Iterable

from fabricd.cluster.measuring import Measurer, checked
from fabricd.cluster.nodes import NodeMap
from fabricd.cluster.peer_post import PeerPost
from fabricd.errors import FabricError
from fabricd.model.measurement import Measurement, MeasureRequest, Pair

#: For one pair, as another daemon is asked for it. A measurement takes up to about a second; a network that drops
#: packets takes two.
_PAIR_SECONDS = 8.0
#: Pairs at once, whatever their number: each is a connection to another daemon.
_AT_ONCE = 32


class PairMeasurer:
    """Measures pairs, from this node or by asking others.

    Args:
        nodes: what is known of the pairs' nodes.
        measurer: measures from this node.
        post: asks other nodes' daemons to measure.
    """

    def __init__(self, nodes: NodeMap, measurer: Measurer, post: PeerPost) -> None:
        self._nodes = nodes
        self._measurer = measurer
        self._post = post

    async def measure(
        self, pairs: Iterable[Pair], *, max_age_seconds: float, seconds: float
    ) -> tuple[list[Measurement], dict[Pair, str]]:
        """Return what was measured in time, and why the rest was not.

        Args:
            pairs: none twice.
            max_age_seconds: a measurement that is not older will do.
            seconds: for all of them together.
        """
        found: list[Measurement] = []
        unmeasured: dict[Pair, str] = {}
        # Two measurements of one node would measure each other.
        busy: dict[str, asyncio.Lock] = {}
        room = asyncio.Semaphore(_AT_ONCE)

        async def one(pair: Pair) -> None:
            first, second = sorted((pair.src_node, pair.dst_node))
            if first == second:  # it would wait for itself
                unmeasured[pair] = "not measured: one daemon cannot be both ends"
                return
            async with busy.setdefault(first, asyncio.Lock()), busy.setdefault(second, asyncio.Lock()), room:
                try:
                    found.append(await self._measure(pair, max_age_seconds))
                except FabricError as error:
                    unmeasured[pair] = f"not measured: {error.message}"

        tasks = {asyncio.create_task(one(pair)): pair for pair in pairs}
        if tasks:
            try:
                _, late = await asyncio.wait(tasks, timeout=seconds)
            finally:
                for task in tasks:
                    task.cancel()
            for task in late:
                unmeasured[tasks[task]] = f"not measured within {seconds:g} s"
            for task in tasks.keys() - late:
                task.result()
        return found, unmeasured

    async def _measure(self, pair: Pair, max_age_seconds: float) -> Measurement:
        """Return a measurement of a pair, by whichever of the two nodes can make it.

        Raises:
            FabricError: neither can.
        """
        known = self._measurer.find(pair.src_address, pair.dst_address, max_age_seconds)
        if known is not None:
            return known
        forth = MeasureRequest(
            dst_node=pair.dst_node,
            src_address=pair.src_address,
            dst_address=pair.dst_address,
            network=pair.network,
            max_age_seconds=max_age_seconds,
        )
        back = MeasureRequest(
            dst_node=pair.src_node,
            src_address=pair.dst_address,
            dst_address=pair.src_address,
            network=pair.network,
            max_age_seconds=max_age_seconds,
        )
        here = self._nodes.local.node.node_id
        order = [(pair.src_node, forth), (pair.dst_node, back)]
        order.sort(key=lambda item: item[0] != here)  # this daemon itself, if it can
        reasons: list[FabricError] = []
        for node_id, request in order:
            try:
                if node_id == here:
                    return await self._measurer.measure(request)
                url = self._nodes.url_of(node_id)
                measured = await self._post(url, "/v1/measure", request, Measurement, seconds=_PAIR_SECONDS)
                return self._measurer.remember(checked(measured, node_id, request))
            except FabricError as error:
                reasons.append(error)
        raise reasons[0]
