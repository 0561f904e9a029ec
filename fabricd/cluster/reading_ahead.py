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
#: What is read of so many nodes would hold the loop up whenever the interpreter looked through it for garbage.
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
        if nodes.ready:
            await _read(nodes, ends)
        await asyncio.sleep(_REST_SECONDS)


async def _read(nodes: NodeMap, ends: Ends) -> None:
    """Read what is not known."""
    clock = asyncio.get_running_loop().time
    found, begun, now = 0, clock(), nodes.snapshots()
    for node_id, snapshot in now.items():
        if ends.learn(node_id, snapshot):
            found += 1
            if found % _MANY == 0:
                gc.freeze()  # what was read stays; what is left out of the collector's rounds holds nobody up
        if clock() - begun > _SLICE_SECONDS:
            await asyncio.sleep(_PAUSE_SECONDS)
            begun = clock()
    ends.keep_to(now)
