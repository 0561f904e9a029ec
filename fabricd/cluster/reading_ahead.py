"""What nodes say of their ports, read before anybody asks for a path, so that the first question costs no more."""

import asyncio
import gc

from fabricd.cluster.nodes import NodeMap
from fabricd.paths.ends import Ends

#: Others are answered after this time, while thousands of nodes are read.
_SLICE_SECONDS = 0.002
_PAUSE_SECONDS = 0.002
#: A map in which something changes all the time is looked through so often.
_REST_SECONDS = 1.0
#: So many objects would hold the loop up whenever the interpreter looked through them for garbage.
_MANY = 1000


async def read_ahead(nodes: NodeMap, ends: Ends) -> None:
    """Read the ports of each node that is new or has changed, a few at a time, until cancelled.

    Args:
        nodes: the map.
        ends: what path queries start from.
    """
    known = 0
    while True:
        known = await nodes.map_version.wait_for_change(known, 3600.0)
        if nodes.ready and await _read(nodes, ends) > _MANY:
            gc.freeze()
        await asyncio.sleep(_REST_SECONDS)


async def _read(nodes: NodeMap, ends: Ends) -> int:
    """Read what is not known; return how many nodes that were."""
    clock = asyncio.get_running_loop().time
    found, begun, now = 0, clock(), nodes.snapshots()
    for node_id, snapshot in now.items():
        found += ends.learn(node_id, snapshot)
        if clock() - begun > _SLICE_SECONDS:
            await asyncio.sleep(_PAUSE_SECONDS)
            begun = clock()
    ends.keep_to(now)
    return found
